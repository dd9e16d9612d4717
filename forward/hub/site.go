package hub

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-edge/holdfast/storage"
)

// Auth says where a hub knows its users from.
type Auth string

// The kinds of Auth. An empty Auth is ByConfig.
const (
	// ByJWT: credentials are signed on the operator's machine, and the servers need no change when a leaf is enrolled.
	ByJWT Auth = "jwt"
	// ByConfig: users stand in the servers' configuration, which is copied and reloaded when a leaf is enrolled.
	ByConfig Auth = "config"
)

// Site is a hub to be made: what Create writes.
type Site struct {
	Auth   Auth
	Domain string // the hub's JetStream domain; empty: the constant
	Nodes  []Node // 1, 3 or 5
}

// Node is one server of a hub.
type Node struct {
	Name string // unique in the hub
	Host string // by which leaves, clients and the other nodes reach it
	Dir  string // folder of its files on its own machine; empty: where Create writes them
	Data string // folder of its streams on its own machine; empty: "data" below Dir

	Client, Cluster, Leaf, Monitor int // ports; zero: DefaultPorts
}

// DefaultPorts are those of a node that names none: for clients, the other nodes, leaves, and monitoring on the machine itself.
var DefaultPorts = Node{Client: 4222, Cluster: 6222, Leaf: 7422, Monitor: 8222}

// Files of a hub's folder on the operator's machine. Those in secretDir are secrets, the authority's and the operator's keys most of all.
const (
	FleetFile     = "fleet.yaml"    // what the hub serves; for people to edit
	RegisterFile  = "enrolled.json" // which keys belong to which leaf; written by enrol and revoke
	AuthorityFile = "ca.pem"        // by which leaves and clients verify the hub
	LeavesDir     = "leaves"        // one file for each enrolled leaf, to be given to it
	secretDir     = "secret"
	AdminFile     = "admin.creds"  // in secretDir: administrator of EDGE
	SystemFile    = "system.creds" // in secretDir: administrator of the servers
	AppsFile      = "apps.creds"   // in secretDir: applications at the hub
	authorityKey  = "ca.key"
	nodeConfig    = "nats-server.conf"
	accountsFile  = "accounts.conf" // beside nodeConfig
	nodeCert      = "node.pem"      // in tls, beside nodeConfig
	nodeKey       = "node.key"
)

// Secret returns the path of a secret file of a hub's folder.
func Secret(dir, file string) string { return filepath.Join(dir, secretDir, file) }

// withDefaults fills in what the Site leaves out, for files below dir.
func (s Site) withDefaults(dir string) Site {
	if s.Auth == "" {
		s.Auth = ByConfig
	}
	if s.Domain == "" {
		s.Domain = Domain
	}
	nodes := make([]Node, len(s.Nodes))
	for i, n := range s.Nodes {
		if n.Name == "" {
			n.Name = "hub" + strconv.Itoa(i+1)
		}
		if n.Dir == "" {
			n.Dir = filepath.Join(dir, n.Name)
		}
		if n.Data == "" {
			n.Data = filepath.Join(n.Dir, "data")
		}
		for _, p := range []struct{ port, common *int }{
			{&n.Client, &DefaultPorts.Client}, {&n.Cluster, &DefaultPorts.Cluster}, {&n.Leaf, &DefaultPorts.Leaf}, {&n.Monitor, &DefaultPorts.Monitor},
		} {
			if *p.port == 0 {
				*p.port = *p.common
			}
		}
		nodes[i] = n
	}
	s.Nodes = nodes
	return s
}

func (s Site) check() error {
	var faults []error
	if n := len(s.Nodes); n != 1 && n != 3 && n != 5 {
		faults = append(faults, fmt.Errorf("%d nodes: a hub has 3 (or 1, or 5), so that a majority of them is clear", n))
	}
	if s.Auth != ByJWT && s.Auth != ByConfig {
		faults = append(faults, fmt.Errorf("auth %q is not %s or %s", s.Auth, ByJWT, ByConfig))
	}
	if !nameForm.MatchString(s.Domain) {
		faults = append(faults, fmt.Errorf("domain %q: a name has 1 to 64 letters, digits, - and _", s.Domain))
	}
	names := map[string]bool{}
	for _, n := range s.Nodes {
		if !nameForm.MatchString(n.Name) || names[n.Name] {
			faults = append(faults, fmt.Errorf("node %q: a name has 1 to 64 letters, digits, - and _, and no other node has it", n.Name))
		}
		names[n.Name] = true
		if n.Host == "" || strings.ContainsAny(n.Host, " \"/\\'") {
			faults = append(faults, fmt.Errorf("node %s: %q is not a host name or address", n.Name, n.Host))
		}
	}
	return errors.Join(faults...)
}

// Create writes a hub into dir, which must be empty or not exist: for each node a folder for its machine, and the fleet file, keys and
// credentials for the operator's. All files are readable by their owner only.
func (s Site) Create(dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("hub folder: %w", err)
	}
	s = s.withDefaults(dir)
	if err := s.check(); err != nil {
		return err
	}
	if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
		return fmt.Errorf("hub folder %s is not empty and is left as it is; name another", dir)
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("hub folder: %w", err)
	}
	ca, err := newAuthority(time.Now())
	if err != nil {
		return err
	}
	k, err := newKeys(s.Auth)
	if err != nil {
		return err
	}
	w := writer{dir: dir}
	w.file(AuthorityFile, ca.certPEM(), nil)
	caKey, err := ca.keyPEM()
	w.file(filepath.Join(secretDir, authorityKey), caKey, err)
	k.write(&w)
	for _, n := range s.Nodes {
		cert, key, err := ca.issue(n.Host, time.Now())
		w.file(filepath.Join(n.Name, "tls", nodeCert), cert, err)
		w.file(filepath.Join(n.Name, "tls", nodeKey), key, nil)
		w.file(filepath.Join(n.Name, "tls", AuthorityFile), ca.certPEM(), nil)
		w.file(filepath.Join(n.Name, nodeConfig), []byte(s.config(n)), nil)
		accounts, err := k.accounts(n, Plan{})
		w.file(filepath.Join(n.Name, accountsFile), []byte(accounts), err)
	}
	account, err := k.account()
	w.file(FleetFile, []byte(s.fleetFile(account)), err)
	if w.err == nil {
		w.err = os.Mkdir(filepath.Join(dir, LeavesDir), 0o700)
	}
	return w.err
}

// writer writes files below a folder until one fails.
type writer struct {
	dir string
	err error
}

func (w *writer) file(name string, data []byte, err error) {
	if w.err != nil {
		return
	}
	path := filepath.Join(w.dir, name)
	if w.err = err; err == nil {
		w.err = os.MkdirAll(filepath.Dir(path), 0o700)
	}
	if w.err == nil {
		w.err = storage.WriteFile(path, data, true)
	}
}
