package hub

import (
	"slices"
	"strings"
)

// planUsers returns the least rights of each leaf. The lists do not depend on a leaf's streams but only on where they go, so that most changes
// of these need no new credentials: each subject in them names the leaf itself.
func planUsers(spec Spec) []User {
	users := make([]User, 0, len(spec.Leaves))
	hubHash, leafHash := AccountHash(spec.Account), AccountHash(LeafAccount)
	api := "$JS." + spec.Domain + ".API."
	for _, l := range spec.Leaves {
		u := User{Leaf: l.Name, Name: l.User, Password: l.Password, NKey: l.NKey}
		u.Publish = []string{
			api + "INFO",
			DeliverSubject(l.Name, ">"),               // records, heartbeats
			"$JSC.R." + l.Name + "." + hubHash + ".>", // the answer to RESET
		}
		for _, s := range l.Streams { // the handshake: the newest record of ours, in those hub streams alone: see docs/HUB.md, "A stolen credential"
			if get := api + "DIRECT.GET." + s.HubStream + ".data." + l.Name + ".>"; !slices.Contains(u.Publish, get) {
				u.Publish = append(u.Publish, get)
			}
		}
		u.Subscribe = []string{
			InboxPrefix(l.Name) + ".>",
			"$JS." + l.Name + ".API.CONSUMER.RESET.>",  // the hub attaches
			"$JS.FC." + l.Name + "." + leafHash + ".>", // the hub acknowledges
		}
		down := func(stream string) {
			consumer := DownConsumer(l.Name, stream)
			u.Publish = append(u.Publish,
				api+"CONSUMER.RESET."+stream+"."+consumer,                      // the leaf attaches
				"$JS.FC."+spec.Domain+"."+hubHash+"."+stream+"."+consumer+".*") // the leaf acknowledges
			u.Subscribe = append(u.Subscribe,
				"$JSC.R."+spec.Domain+"."+leafHash+"."+stream+"."+consumer+".*", // the hub's answer to RESET
				DownSubject(l.Name, stream))
		}
		if l.Commands {
			down(Commands)
		}
		if l.Documents {
			down(Documents)
		}
		users = append(users, u)
	}
	return users
}

// Users returns the leaves' users in the order of the Spec. The caller owns the result, but not its lists.
func (p Plan) Users() []User { return slices.Clone(p.users) }

// Config returns the plan's users as the `accounts` block of a nats-server configuration, for a hub of which Site writes nothing. Every hub
// server needs it, and the feature flags that it mentions; users of the operator's own go into the same account. Leaves that have neither
// key nor password are left out.
func (p Plan) Config() string {
	var b strings.Builder
	b.WriteString("# Each hub server needs nats-server " + MinVersion + " or newer, `jetstream { domain: " + p.spec.Domain + " }` and\n")
	b.WriteString("# feature_flags { js_ack_fc_v2: true, js_api_reply_v2: true }\n")
	b.WriteString("accounts {\n  SYS: {} # give it an administrator of the servers; name it as system_account\n  " + p.spec.Account + ": {\n    jetstream: enabled\n    users: [\n")
	b.WriteString("      # add an administrator here, who runs `holdfast hub apply`, and your applications\n")
	p.writeUsers(&b)
	b.WriteString("    ]\n  }\n}\n")
	return b.String()
}

// writeUsers writes the entries of a users list.
func (p Plan) writeUsers(b *strings.Builder) {
	for _, u := range p.users {
		if u.NKey == "" && u.Password == "" {
			continue
		}
		b.WriteString("      # leaf " + u.Leaf + "\n      { ")
		if u.NKey != "" {
			b.WriteString("nkey: " + quote(u.NKey))
		} else {
			b.WriteString("user: " + quote(u.Name) + ", password: " + quote(u.Password))
		}
		b.WriteString(", allowed_connection_types: [\"LEAFNODE\", \"LEAFNODE_WS\"], permissions: {\n")
		writeList(b, "publish", u.Publish)
		writeList(b, "subscribe", u.Subscribe)
		b.WriteString("      } }\n")
	}
}

func writeList(b *strings.Builder, key string, subjects []string) {
	b.WriteString("        " + key + ": [\n")
	for _, s := range subjects {
		b.WriteString("          " + quote(s) + "\n")
	}
	b.WriteString("        ]\n")
}

// quote writes a value so that the server's configuration parser takes it as one string, "$" included.
func quote(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}
