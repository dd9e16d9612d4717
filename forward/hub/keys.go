package hub

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"
)

// Accounts of a hub beside that of the leaves.
const (
	AppsAccount   = "APPS" // applications at the hub that need streams of their own
	systemAccount = "SYS"
)

// keys are what a hub's folder on the operator's machine keeps secret.
type keys struct {
	auth                 Auth
	operator, edge, apps nkeys.KeyPair // nil unless ByJWT
	sys                  nkeys.KeyPair // of the system account; nil unless ByJWT
	admin, system, app   nkeys.KeyPair // users
}

// keyFiles are the files of accounts' keys, by the field that they are kept in.
func (k *keys) keyFiles() map[string]*nkeys.KeyPair {
	return map[string]*nkeys.KeyPair{"operator.nk": &k.operator, "EDGE.nk": &k.edge, "APPS.nk": &k.apps, "SYS.nk": &k.sys}
}

func newKeys(auth Auth) (keys, error) {
	k := keys{auth: auth}
	make := func(to *nkeys.KeyPair, kind nkeys.PrefixByte, err error) error {
		if err == nil {
			*to, err = nkeys.CreatePair(kind)
		}
		return err
	}
	err := make(&k.admin, nkeys.PrefixByteUser, nil)
	err = make(&k.system, nkeys.PrefixByteUser, err)
	err = make(&k.app, nkeys.PrefixByteUser, err)
	if auth == ByJWT {
		err = make(&k.operator, nkeys.PrefixByteOperator, err)
		err = make(&k.edge, nkeys.PrefixByteAccount, err)
		err = make(&k.apps, nkeys.PrefixByteAccount, err)
		err = make(&k.sys, nkeys.PrefixByteAccount, err)
	}
	if err != nil {
		return keys{}, fmt.Errorf("make keys: %w", err)
	}
	return k, nil
}

// loadKeys reads the keys of a hub's folder.
func loadKeys(dir string, auth Auth) (keys, error) {
	k := keys{auth: auth}
	if auth == ByJWT {
		for name, to := range k.keyFiles() {
			var err error
			if *to, err = loadKey(Secret(dir, name)); err != nil {
				return keys{}, err
			}
		}
	}
	for name, to := range map[string]*nkeys.KeyPair{AdminFile: &k.admin, SystemFile: &k.system, AppsFile: &k.app} {
		var err error
		if *to, err = loadKey(Secret(dir, name)); err != nil {
			return keys{}, err
		}
	}
	return k, nil
}

func loadKey(path string) (nkeys.KeyPair, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("keys of the hub: %w", err)
	}
	k, err := jwt.ParseDecoratedNKey(data)
	if err != nil {
		return nil, fmt.Errorf("keys of the hub: %s holds no key", path) // the parser's error is left out: it may quote the file
	}
	return k, nil
}

// write writes all keys and credentials into secretDir.
func (k *keys) write(w *writer) {
	if k.auth == ByJWT {
		for name, key := range k.keyFiles() {
			seed, err := (*key).Seed()
			w.file(filepath.Join(secretDir, name), append(seed, '\n'), err)
		}
	}
	standard := []string{jwt.ConnectionTypeStandard, jwt.ConnectionTypeWebsocket}
	for _, u := range []struct {
		file, name string
		user       nkeys.KeyPair
		account    nkeys.KeyPair
	}{{AdminFile, "admin", k.admin, k.edge}, {SystemFile, "system", k.system, k.sys}, {AppsFile, "apps", k.app, k.apps}} {
		creds, err := k.credentials(u.user, u.account, User{Name: u.name}, standard)
		w.file(filepath.Join(secretDir, u.file), creds, err)
	}
}

// credentials returns a user's credentials: a JWT and a seed, or a seed alone. Without lists the user may do everything in his account.
func (k *keys) credentials(user, account nkeys.KeyPair, u User, connections []string) ([]byte, error) {
	seed, err := user.Seed()
	if err != nil {
		return nil, fmt.Errorf("credentials of %s: %w", u.Name, err)
	}
	if k.auth != ByJWT {
		return append(seed, '\n'), nil
	}
	public, err := user.PublicKey()
	if err != nil {
		return nil, fmt.Errorf("credentials of %s: %w", u.Name, err)
	}
	claims := jwt.NewUserClaims(public)
	claims.Name = u.Name
	claims.AllowedConnectionTypes = connections
	claims.Pub.Allow, claims.Sub.Allow = u.Publish, u.Subscribe
	token, err := claims.Encode(account)
	if err != nil {
		return nil, fmt.Errorf("credentials of %s: %w", u.Name, err)
	}
	creds, err := jwt.FormatUserConfig(token, seed)
	if err != nil {
		return nil, fmt.Errorf("credentials of %s: %w", u.Name, err)
	}
	return creds, nil
}

// account returns how the servers call the leaves' account.
func (k *keys) account() (string, error) {
	if k.auth == ByJWT {
		return k.edge.PublicKey()
	}
	return Account, nil
}

// accountJWTs returns the accounts of operator mode, by public key.
func (k *keys) accountJWTs() (map[string]string, error) {
	tokens := map[string]string{}
	for name, pair := range map[string]nkeys.KeyPair{Account: k.edge, AppsAccount: k.apps, systemAccount: k.sys} {
		public, err := pair.PublicKey()
		if err != nil {
			return nil, fmt.Errorf("account %s: %w", name, err)
		}
		claims := jwt.NewAccountClaims(public)
		claims.Name = name
		if name != systemAccount {
			claims.Limits.JetStreamLimits = jwt.JetStreamLimits{
				MemoryStorage: jwt.NoLimit, DiskStorage: jwt.NoLimit, Streams: jwt.NoLimit, Consumer: jwt.NoLimit, MaxAckPending: jwt.NoLimit,
				MemoryMaxStreamBytes: jwt.NoLimit, DiskMaxStreamBytes: jwt.NoLimit,
			}
		}
		if tokens[public], err = claims.Encode(k.operator); err != nil {
			return nil, fmt.Errorf("account %s: %w", name, err)
		}
	}
	return tokens, nil
}

// accounts returns the accounts of the hub, for the configuration of a node. In operator mode it never changes; else it holds the plan's users.
func (k *keys) accounts(n Node, p Plan) (string, error) {
	if k.auth == ByJWT {
		return k.resolver(n)
	}
	var b strings.Builder
	b.WriteString("# Accounts and users of the hub. Written by holdfast, which writes it anew when a leaf is enrolled or revoked.\naccounts {\n")
	for _, a := range []struct {
		account, settings string
		user              nkeys.KeyPair
	}{{systemAccount, "", k.system}, {AppsAccount, "    jetstream: enabled\n", k.app}, {Account, "    jetstream: enabled\n", k.admin}} {
		public, err := a.user.PublicKey()
		if err != nil {
			return "", fmt.Errorf("account %s: %w", a.account, err)
		}
		fmt.Fprintf(&b, "  %s: {\n%s    users: [\n      # an administrator\n      { nkey: %s, allowed_connection_types: [\"STANDARD\", \"WEBSOCKET\"] }\n", a.account, a.settings, quote(public))
		if a.account == Account {
			p.writeUsers(&b)
		}
		b.WriteString("    ]\n  }\n")
	}
	b.WriteString("}\nsystem_account: " + systemAccount + "\n")
	return b.String(), nil
}

// resolver returns the operator and the store of accounts of a node in operator mode. The node's store keeps the newer of what stands here and
// what it was sent, so that a restart undoes no revocation.
func (k *keys) resolver(n Node) (string, error) {
	public, err := k.operator.PublicKey()
	if err != nil {
		return "", fmt.Errorf("operator: %w", err)
	}
	sys, err := k.sys.PublicKey()
	if err != nil {
		return "", fmt.Errorf("operator: %w", err)
	}
	claims := jwt.NewOperatorClaims(public)
	claims.Name, claims.SystemAccount = "holdfast", sys
	operator, err := claims.Encode(k.operator)
	if err != nil {
		return "", fmt.Errorf("operator: %w", err)
	}
	tokens, err := k.accountJWTs()
	if err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# Operator and accounts of the hub. Written by holdfast hub init; enrolling and revoking leaves does not change it.\noperator: %s\nsystem_account: %s\n", operator, sys)
	fmt.Fprintf(&b, "resolver {\n  type: full\n  dir: %s\n  allow_delete: false\n  interval: \"2m\"\n}\nresolver_preload {\n", quote(filepath.Join(n.Data, "accounts")))
	for _, pair := range []nkeys.KeyPair{k.sys, k.apps, k.edge} {
		public, err := pair.PublicKey()
		if err != nil {
			return "", fmt.Errorf("operator: %w", err)
		}
		fmt.Fprintf(&b, "  %s: %s\n", public, tokens[public])
	}
	b.WriteString("}\n")
	return b.String(), nil
}

// errNoKeys means that a hub was not made by Create, or its secrets are elsewhere.
var errNoKeys = errors.New("the folder has no keys of a hub: it was not made by `holdfast hub init`, or its secrets are elsewhere")
