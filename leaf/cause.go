package leaf

import (
	"fmt"
	"strings"
	"time"
)

// Reason classifies what is wrong with the link, in a word for programs.
type Reason string

// The reasons.
const (
	ReasonDNS         Reason = "dns"            // the hub's name is not found
	ReasonTCP         Reason = "tcp"            // no connection to the hub's address
	ReasonProxy       Reason = "proxy"          // no connection to the proxy, or not through it
	ReasonLost        Reason = "lost"           // the connection ended
	ReasonSilent      Reason = "silent"         // nothing came back
	ReasonTLS         Reason = "tls"            // certificates do not agree
	ReasonClock       Reason = "clock"          // certificates do not agree with the date
	ReasonCredentials Reason = "credentials"    // the hub does not accept who we are
	ReasonPermissions Reason = "permissions"    // the hub does not allow what we do
	ReasonDuplicate   Reason = "duplicate name" // another leaf of our name is connected
	ReasonVersion     Reason = "version"        // hub and leaf do not fit each other
	ReasonNoHub       Reason = "not a hub"      // something else answers at the address
	ReasonLoop        Reason = "loop"           // the hub sees us twice in its own topology
	ReasonLocal       Reason = "local"          // a file or the configuration here
	ReasonHub         Reason = "hub"            // the hub said something else; Cause has its words
)

// problem is a Reason in words.
type problem struct {
	reason        Reason
	refused       bool // somebody must act
	vague         bool // an examination may tell more
	lasting       bool // the hub says it once, and later only that it does not accept us
	cause, remedy string
}

// rule recognises a problem by what the server's log says, in lower case.
type rule struct {
	has     []string // all of them
	reason  Reason
	refused bool
	lasting bool
	cause   string // with {hub}, the hub's address, {name}, our name, and {date}, the date here
	remedy  string
}

// dialRules are for attempts that made no connection.
var dialRules = []rule{
	{has: []string{"proxy connect failed: 407"}, reason: ReasonProxy, refused: true, cause: "the proxy does not accept our user and password", remedy: "correct hub.proxy.user and the file of its password"},
	{has: []string{"proxy connect failed: 403"}, reason: ReasonProxy, refused: true, cause: "the proxy does not allow connections to {hub}", remedy: "have the proxy allow CONNECT to {hub}"},
	{has: []string{"proxy connect failed"}, reason: ReasonProxy, cause: "the proxy cannot connect to {hub}", remedy: "check the hub's address, and what the proxy allows"},
	{has: []string{"failed to connect to proxy"}, reason: ReasonProxy, cause: "the proxy does not answer", remedy: "check hub.proxy.url and this machine's network"},
	{has: []string{"proxy"}, reason: ReasonProxy, cause: "what answers at hub.proxy.url is no HTTP proxy", remedy: "check hub.proxy.url"},
	{has: []string{"no such host"}, reason: ReasonDNS, cause: "the name of {hub} is not found", remedy: "check the hub's address and this machine's DNS"},
	{has: []string{"server misbehaving"}, reason: ReasonDNS, cause: "DNS does not answer properly for {hub}", remedy: "check this machine's DNS"},
	{has: []string{"lookup ", "i/o timeout"}, reason: ReasonDNS, cause: "DNS does not answer", remedy: "check this machine's network and DNS"},
	{has: []string{"lookup "}, reason: ReasonDNS, cause: "the name of {hub} cannot be looked up", remedy: "check this machine's network and DNS"},
	{has: []string{"connection refused"}, reason: ReasonTCP, cause: "{hub} refuses connections", remedy: "check that the hub runs and that port is its leaf port"},
	{has: []string{"i/o timeout"}, reason: ReasonTCP, cause: "{hub} does not answer within the dial time-out", remedy: "check the address, and firewalls on the way"},
	{has: []string{"network is unreachable"}, reason: ReasonTCP, cause: "there is no route to {hub}", remedy: "check this machine's network"},
	{has: []string{"no route to host"}, reason: ReasonTCP, cause: "there is no route to {hub}", remedy: "check this machine's network"},
}

// hubRules are for connections that were made and then failed.
var hubRules = []rule{
	{has: []string{"authorization violation"}, reason: ReasonCredentials, refused: true, cause: "{hub} does not accept our user, credentials or key", remedy: "enrol this leaf at the hub (again, if it was revoked), or correct hub.credentials, hub.nkey or the user in hub.urls"},
	{has: []string{"authentication failure"}, reason: ReasonCredentials, refused: true, cause: "{hub} does not accept our user, credentials or key", remedy: "enrol this leaf at the hub (again, if it was revoked), or correct hub.credentials, hub.nkey or the user in hub.urls"},
	{has: []string{"authentication expired"}, reason: ReasonCredentials, refused: true, lasting: true, cause: "our credentials have expired at {hub}", remedy: "issue new ones at the hub, with holdfast hub enrol, and bring them here: they are taken up by themselves"},
	{has: []string{"credentials revoked"}, reason: ReasonCredentials, refused: true, lasting: true, cause: "our credentials were revoked at {hub}", remedy: "issue new ones at the hub, with holdfast hub enrol, and bring them here: they are taken up by themselves"},
	{has: []string{"authentication revoked"}, reason: ReasonCredentials, refused: true, lasting: true, cause: "our credentials were revoked at {hub}", remedy: "issue new ones at the hub, with holdfast hub enrol, and bring them here: they are taken up by themselves"},
	{has: []string{"authentication timeout"}, reason: ReasonSilent, cause: "{hub} did not get our credentials in time", remedy: "raise the leafnodes authorization timeout of the hub"},
	{has: []string{"credentials file"}, reason: ReasonLocal, refused: true, cause: "hub.credentials holds no user JWT and seed", remedy: "put the .creds file made for this leaf there"},
	{has: []string{"malformed seed"}, reason: ReasonLocal, refused: true, cause: "hub.nkey holds no seed", remedy: "put the user's seed there, SU…"},
	{has: []string{"no such file"}, reason: ReasonLocal, refused: true, cause: "hub.credentials is not there", remedy: "put the .creds file made for this leaf there"},
	{has: []string{"not yet valid", "is before"}, reason: ReasonClock, refused: true, cause: "the certificate of {hub} is not valid yet at {date}, the date here", remedy: "set this machine's clock; capture goes on meanwhile"},
	{has: []string{"certificate has expired"}, reason: ReasonTLS, refused: true, cause: "the certificate of {hub} has expired at {date}, the date here", remedy: "renew the hub's certificate, or set this machine's clock if that date is wrong"},
	{has: []string{"unknown authority"}, reason: ReasonTLS, refused: true, cause: "the certificate of {hub} is signed by an authority we do not trust", remedy: "put the authority's certificate into hub.tls.ca"},
	{has: []string{"certificate is valid for"}, reason: ReasonTLS, refused: true, cause: "the certificate of {hub} is for another name", remedy: "use the name in the certificate in hub.urls, or set hub.tls.server_name"},
	{has: []string{"doesn't contain any ip sans"}, reason: ReasonTLS, refused: true, cause: "the certificate of {hub} is for a name and not for an address", remedy: "use the name in the certificate in hub.urls, or set hub.tls.server_name"},
	{has: []string{"not valid for any names"}, reason: ReasonTLS, refused: true, cause: "the certificate of {hub} is for no name", remedy: "issue the hub's certificate with its name"},
	{has: []string{"first record does not look like a tls handshake"}, reason: ReasonTLS, refused: true, cause: "{hub} does not speak TLS", remedy: "remove tls from the hub section, or configure TLS at the hub"},
	{has: []string{"remote error: tls"}, reason: ReasonTLS, refused: true, cause: "{hub} does not accept our certificate", remedy: "set hub.tls.cert and key to a certificate that the hub's authority signed"},
	{has: []string{"tls: failed to verify certificate"}, reason: ReasonTLS, refused: true, cause: "the certificate of {hub} cannot be verified", remedy: "check hub.tls.ca and the hub's certificate"},
	{has: []string{"tls handshake failure"}, reason: ReasonTLS, cause: "the TLS handshake with {hub} did not finish", remedy: "check that TLS is configured alike at both ends"},
	{has: []string{"tls handshake timeout"}, reason: ReasonSilent, cause: "{hub} did not finish the TLS handshake in time"},
	{has: []string{"duplicate remote leafnode connection"}, reason: ReasonDuplicate, refused: true, cause: "another leaf named {name} has connected to {hub}", remedy: "give each gateway its own leaf.name"},
	{has: []string{"permissions violation"}, reason: ReasonPermissions, refused: true, cause: "the hub's permissions do not allow what this leaf sends", remedy: "apply the hub's plan for this leaf again"},
	{has: []string{"loop detected"}, reason: ReasonLoop, refused: true, cause: "{hub} already reaches this server by another way", remedy: "connect the leaf once"},
	{has: []string{"same cluster name"}, reason: ReasonDuplicate, refused: true, cause: "the hub's cluster has the name of this leaf", remedy: "give this gateway another leaf.name"},
	{has: []string{"minimum version"}, reason: ReasonVersion, refused: true, cause: "{hub} demands a newer server than this holdfast has", remedy: "update holdfast"},
	{has: []string{"wrong port"}, reason: ReasonNoHub, refused: true, cause: "{hub} is not a leaf port", remedy: "use the port of the hub's leafnodes block, 7422 by default"},
	{has: []string{"incorrect port"}, reason: ReasonNoHub, refused: true, cause: "{hub} is not a leaf port", remedy: "use the port of the hub's leafnodes block, 7422 by default"},
	{has: []string{"attempted to connect to"}, reason: ReasonNoHub, refused: true, cause: "{hub} is not a leaf port", remedy: "use the port of the hub's leafnodes block, 7422 by default"},
	{has: []string{"invalid websocket connection"}, reason: ReasonNoHub, refused: true, cause: "what answers by HTTP at {hub} is not a NATS server's websocket", remedy: "check the hub's address, and its path, behind a web server"},
	{has: []string{saysHTTP}, reason: ReasonNoHub, refused: true, cause: "what answers at {hub} speaks HTTP and is not a NATS server", remedy: "use the port of the hub's leafnodes block, 7422 by default; a hub behind a web server is reached by ws:// or wss://"},
	{has: []string{"parse error"}, reason: ReasonNoHub, refused: true, cause: "what answers at {hub} is not a NATS server", remedy: "check the hub's address"},
	{has: []string{"unknown protocol"}, reason: ReasonNoHub, refused: true, cause: "what answers at {hub} is not a NATS server", remedy: "check the hub's address"},
	{has: []string{"maximum connections"}, reason: ReasonHub, cause: "{hub} has no connections left", remedy: "raise max_connections of the hub"},
	{has: []string{"maximum account"}, reason: ReasonHub, cause: "our account at {hub} has no connections left", remedy: "raise the limits of the hub's account"},
	{has: []string{"server shutdown"}, reason: ReasonLost, cause: "{hub} shut down"},
}

func match(rules []rule, host, name, text string, now time.Time) (problem, bool) {
	lower := strings.ToLower(text)
next:
	for _, r := range rules {
		for _, s := range r.has {
			if !strings.Contains(lower, s) {
				continue next
			}
		}
		fill := strings.NewReplacer("{hub}", host, "{name}", name, "{date}", now.UTC().Format("2006-01-02 15:04"))
		return problem{reason: r.reason, refused: r.refused, lasting: r.lasting, cause: fill.Replace(r.cause), remedy: r.remedy}, true
	}
	return problem{}, false
}

// dialProblem explains why no connection was made.
func dialProblem(host, text string, now time.Time) problem {
	if p, ok := match(dialRules, host, "", text, now); ok {
		return p
	}
	return problem{reason: ReasonTCP, cause: fmt.Sprintf("no connection to %s: %s", host, text), remedy: "check this machine's network and the hub's address"}
}

// hubProblem explains an error of a connection. known is false when nothing fits: then the cause has the error's own words.
func hubProblem(host, name, text string, now time.Time) (p problem, known bool) {
	if p, ok := match(hubRules, host, name, text, now); ok {
		return p, true
	}
	return problem{reason: ReasonHub, cause: fmt.Sprintf("%s: %s", host, text)}, false
}

// hubAuthTimeout is how long a hub waits for a leaf to say who it is, unless its configuration says otherwise (nats-server 2.15).
const hubAuthTimeout = 2 * time.Second

// closeProblem explains the end of a connection of which no error was logged. wasUp is true when the hub had accepted it; lasted is
// how long it lived.
func closeProblem(host, why string, wasUp bool, lasted time.Duration) problem {
	if p, ok := match(hubRules, host, "", why, time.Time{}); ok {
		p.vague = p.reason == ReasonTLS
		return p
	}
	switch {
	case wasUp && why == "Stale Connection":
		return problem{reason: ReasonSilent, cause: fmt.Sprintf("%s did not answer %d pings", host, pingMax)}
	case wasUp:
		return problem{reason: ReasonLost, cause: fmt.Sprintf("the connection to %s ended: %s", host, strings.ToLower(why))}
	case why == "Stale Connection":
		return problem{reason: ReasonSilent, cause: fmt.Sprintf("%s did not answer our greeting within 2s", host), remedy: "a link with a longer round trip cannot be used"}
	case lasted >= hubAuthTimeout && lasted < 2*hubAuthTimeout:
		return problem{reason: ReasonSilent, vague: true, cause: fmt.Sprintf("%s hung up after %v: our greeting came too late for it, or it said nothing", host, lasted.Round(100*time.Millisecond)), remedy: "on a slow link raise the hub's limit: leafnodes { authorization { timeout: 30 } }"}
	case lasted >= firstInfoTimeout:
		return problem{reason: ReasonSilent, vague: true, cause: fmt.Sprintf("%s accepted the connection and then said nothing", host), remedy: "check what listens at that address, and firewalls on the way"}
	}
	return problem{reason: ReasonLost, vague: true, cause: fmt.Sprintf("%s hung up while we greeted: %s", host, strings.ToLower(why)), remedy: "look into the hub's log"}
}

func duplicateProblem(name string) problem {
	return problem{
		reason: ReasonDuplicate, refused: true,
		cause:  fmt.Sprintf("another leaf named %s connects to the same hub node and takes turns with this one", name),
		remedy: "give each gateway its own leaf.name",
	}
}
