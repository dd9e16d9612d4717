// Package hub runs a JetStream cluster on the loopback that accepts leaves, for tests, the demo and benchmarks: in this process, or
// as child processes that can be killed.
package hub

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/rig/port"
)

// Names that a hub has unless Options say otherwise.
const (
	Account  = "EDGE"
	Domain   = "hub"
	Name     = "HUB"
	User     = "adm" // administrator of Account
	Password = "adm-secret"
)

// DefaultUsers lets the user "leaf" with the password "leaf" do everything in Account. Real leaves get less.
const DefaultUsers = `{ user: leaf, password: leaf }`

// startTimeout bounds the start of one node.
const startTimeout = 30 * time.Second

// Options say how a hub is built. The zero value is a hub of three nodes in this process with DefaultUsers.
type Options struct {
	Nodes     int    // 0: three
	Dir       string // directory of the stores, kept by Close; empty: a temporary one that Close removes
	Users     string // entries of the account's users list, in the server's configuration language; empty: DefaultUsers
	Accounts  string // a whole "accounts { … }" block that contains Account, in place of Users
	LeafNodes string // further lines of the leafnodes block, as a tls block
	Config    string // further lines at the top level
	// Operator says that Config puts the hub into operator mode: no accounts and users are added, and Credentials are the admin's.
	Operator    bool
	Credentials []nats.Option
	// Processes runs each node as a child process of this executable, whose main function must begin with Main.
	Processes bool
	Log       io.Writer // the servers' logs; nil: dropped
}

// Cluster is a running hub. Safe for concurrent use, except that one node is stopped and started by one caller at a time.
type Cluster struct {
	opts    Options
	dir     string
	ownDir  bool
	clients []int
	routes  []int
	leaves  []int
	log     *lockedWriter

	mu    sync.Mutex // guards the fields below
	nodes []node     // nil where a node is down
	conns []*nats.Conn
}

// node is one running server.
type node interface {
	kill() error                      // as abruptly as it can be
	stop(ctx context.Context) error   // properly
	wait(timeout time.Duration) error // until it accepts connections
	server() *server.Server           // nil for a child process
	signal(sig os.Signal) error       // to a child process
}

// Start starts all nodes and returns when the cluster has a leader. The caller closes it. A node whose port somebody took between its choice and its use never
// accepts connections: so it tries again with other ports.
func Start(o Options) (c *Cluster, err error) {
	const tries = 3
	for range tries {
		var again error
		if c, again = start(o); again == nil {
			return c, nil
		}
		err = errors.Join(err, again)
	}
	return nil, err
}

func start(o Options) (*Cluster, error) {
	if o.Nodes == 0 {
		o.Nodes = 3
	}
	if o.Users == "" {
		o.Users = DefaultUsers
	}
	ports, err := port.Pick(3 * o.Nodes)
	if err != nil {
		return nil, err
	}
	c := &Cluster{
		opts: o, dir: o.Dir, log: &lockedWriter{w: o.Log}, nodes: make([]node, o.Nodes),
		clients: ports[:o.Nodes], routes: ports[o.Nodes : 2*o.Nodes], leaves: ports[2*o.Nodes:],
	}
	if c.dir == "" {
		if c.dir, err = os.MkdirTemp("", "hub-"); err != nil {
			return nil, fmt.Errorf("start hub: %w", err)
		}
		c.ownDir = true
	}
	for i := range c.nodes {
		if err := c.launch(i); err != nil {
			return nil, errors.Join(fmt.Errorf("start hub node %d: %w", i, err), c.Close())
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*startTimeout)
	defer cancel()
	for i, n := range c.nodes {
		if err := n.wait(startTimeout); err != nil {
			return nil, errors.Join(fmt.Errorf("start hub node %d: %w", i, err), c.Close())
		}
	}
	if err := c.WaitReady(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// Len returns the number of nodes, running or not.
func (c *Cluster) Len() int { return len(c.clients) }

// LeafAddr returns the address at which node i (from 0) accepts leaves, as "host:port".
func (c *Cluster) LeafAddr(i int) string { return "127.0.0.1:" + strconv.Itoa(c.leaves[i]) }

// LeafURLs returns the addresses of all nodes for a leaf's configuration, without a user.
func (c *Cluster) LeafURLs() []string {
	urls := make([]string, len(c.leaves))
	for i := range urls {
		urls[i] = "nats-leaf://" + c.LeafAddr(i)
	}
	return urls
}

// WithUser adds a user and a password to URLs. They must be valid URLs.
func WithUser(urls []string, user, password string) ([]string, error) {
	with := make([]string, len(urls))
	for i, s := range urls {
		u, err := url.Parse(s)
		if err != nil {
			return nil, fmt.Errorf("hub address: %w", err)
		}
		u.User = url.UserPassword(user, password)
		with[i] = u.String()
	}
	return with, nil
}

// ClientURL returns the address of node i for clients. It does not hold the user.
func (c *Cluster) ClientURL(i int) string { return "nats://127.0.0.1:" + strconv.Itoa(c.clients[i]) }

// Server returns node i's server, or nil when it is down or a child process.
func (c *Cluster) Server(i int) *server.Server {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.nodes[i] == nil {
		return nil
	}
	return c.nodes[i].server()
}

// Admin connects as the administrator of Account to any running node. The connection follows the cluster through outages of nodes
// and is closed by Close at the latest.
func (c *Cluster) Admin(opts ...nats.Option) (*nats.Conn, error) {
	return c.connect(User, opts...)
}

// System connects as the administrator of the servers.
func (c *Cluster) System() (*nats.Conn, error) { return c.connect(sysUser) }

// JetStream connects as the administrator of Account and returns the cluster's JetStream.
func (c *Cluster) JetStream() (jetstream.JetStream, error) {
	nc, err := c.Admin()
	if err != nil {
		return nil, err
	}
	return jetstream.New(nc, jetstream.WithDefaultTimeout(time.Minute)) // a busy cluster elects its leaders for some seconds
}

func (c *Cluster) connect(user string, opts ...nats.Option) (*nats.Conn, error) {
	all := make([]string, c.Len())
	for i := range all {
		all[i] = c.ClientURL(i)
	}
	base := []nats.Option{
		nats.Name("rig"), nats.MaxReconnects(-1), nats.ReconnectWait(200 * time.Millisecond), nats.RetryOnFailedConnect(false),
		nats.Timeout(5 * time.Second),
	}
	if c.opts.Operator {
		base = append(base, c.opts.Credentials...)
	} else {
		base = append(base, nats.UserInfo(user, Password))
	}
	o := nats.GetDefaultOptions()
	o.Servers = all
	for _, opt := range append(base, opts...) {
		if err := opt(&o); err != nil {
			return nil, fmt.Errorf("connect to hub: %w", err)
		}
	}
	nc, err := o.Connect()
	if err != nil {
		return nil, fmt.Errorf("connect to hub: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conns = append(c.conns, nc)
	return nc, nil
}

// Kill ends node i (from 0) as abruptly as possible: a child process by SIGKILL, a server of this process by a shutdown.
func (c *Cluster) Kill(i int) error {
	n := c.take(i)
	if n == nil {
		return fmt.Errorf("kill hub node %d: it is down", i)
	}
	return n.kill()
}

// Stop ends node i properly and returns when it is down.
func (c *Cluster) Stop(ctx context.Context, i int) error {
	n := c.take(i)
	if n == nil {
		return fmt.Errorf("stop hub node %d: it is down", i)
	}
	return n.stop(ctx)
}

// Restart starts node i again after Kill or Stop, at the same ports and with the same store, and returns when it accepts connections.
func (c *Cluster) Restart(i int) error {
	if err := c.launch(i); err != nil {
		return fmt.Errorf("restart hub node %d: %w", i, err)
	}
	c.mu.Lock()
	n := c.nodes[i]
	c.mu.Unlock()
	if err := n.wait(startTimeout); err != nil {
		return fmt.Errorf("restart hub node %d: %w", i, err)
	}
	return nil
}

// Signal sends a signal to node i, which must be a child process: SIGSTOP makes a hub that is silent, SIGCONT ends that.
func (c *Cluster) Signal(i int, sig os.Signal) error {
	c.mu.Lock()
	n := c.nodes[i]
	c.mu.Unlock()
	if n == nil {
		return fmt.Errorf("signal hub node %d: it is down", i)
	}
	return n.signal(sig)
}

// Close ends all connections and nodes, and removes the stores unless Options named a directory.
func (c *Cluster) Close() error {
	c.mu.Lock()
	conns := c.conns
	c.conns = nil
	c.mu.Unlock()
	for _, nc := range conns {
		nc.Close()
	}
	var wg sync.WaitGroup
	errs := make([]error, c.Len()+1)
	for i := range c.Len() {
		if n := c.take(i); n != nil {
			wg.Add(1)
			go func() {
				defer wg.Done()
				errs[i] = n.kill()
			}()
		}
	}
	wg.Wait()
	if c.ownDir {
		errs[c.Len()] = os.RemoveAll(c.dir)
	}
	return errors.Join(errs...)
}

func (c *Cluster) take(i int) node {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.nodes[i]
	c.nodes[i] = nil
	return n
}

func (c *Cluster) launch(i int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.nodes[i] != nil {
		return errors.New("it is running")
	}
	text := c.config(i)
	var n node
	var err error
	if c.opts.Processes {
		n, err = launchChild(filepath.Join(c.dir, "node"+strconv.Itoa(i)+".json"), spec{Config: text, Operator: c.opts.Operator}, c.log)
	} else {
		n, err = launchServer(spec{Config: text, Operator: c.opts.Operator}, c.log)
	}
	if err != nil {
		return err
	}
	c.nodes[i] = n
	return nil
}

// lockedWriter lets several servers write to one log. A nil writer drops everything.
type lockedWriter struct {
	mu sync.Mutex // guards w
	w  io.Writer
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.w == nil {
		return len(p), nil
	}
	return l.w.Write(p)
}
