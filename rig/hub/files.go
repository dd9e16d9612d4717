package hub

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/holdfast-edge/holdfast/rig/poll"
)

// Files is a hub of stock servers in this process, each started from a configuration file exactly as it is written.
type Files struct {
	paths []string
	log   *lockedWriter
	nodes []*server.Server // nil where a node is down
}

// StartFiles starts a server from each file and returns when they accept connections and JetStream has a leader. The caller closes it.
func StartFiles(log io.Writer, paths ...string) (*Files, error) {
	f := &Files{paths: paths, log: &lockedWriter{w: log}, nodes: make([]*server.Server, len(paths))}
	for i := range paths {
		if err := f.Start(i); err != nil {
			f.Close()
			return nil, err
		}
	}
	if !poll.Wait(context.Background(), startTimeout, f.led) {
		f.Close()
		return nil, errors.New("hub of files: JetStream has no leader")
	}
	return f, nil
}

// Start starts node i (from 0), which must be down.
func (f *Files) Start(i int) error {
	o, err := server.ProcessConfigFile(f.paths[i])
	if err != nil {
		return fmt.Errorf("hub of files: %w", err)
	}
	o.NoSigs = true
	srv, err := server.NewServer(o)
	if err != nil {
		return fmt.Errorf("hub of files: %s: %w", f.paths[i], err)
	}
	srv.SetLoggerV2(&logger{w: f.log, name: o.ServerName}, false, false, false)
	srv.Start()
	f.nodes[i] = srv
	if !srv.ReadyForConnections(startTimeout) {
		return fmt.Errorf("hub of files: %s accepts no connections after %v", f.paths[i], startTimeout)
	}
	return nil
}

// Stop stops node i and waits until it is down.
func (f *Files) Stop(i int) {
	f.nodes[i].Shutdown()
	f.nodes[i].WaitForShutdown()
	f.nodes[i] = nil
}

// Leaves returns how many leaves are connected.
func (f *Files) Leaves() int {
	n := 0
	for _, s := range f.nodes {
		if s != nil {
			n += s.NumLeafNodes()
		}
	}
	return n
}

func (f *Files) led() bool {
	if len(f.nodes) == 1 {
		return f.nodes[0].JetStreamEnabled()
	}
	for _, s := range f.nodes {
		if s.JetStreamIsLeader() && s.JetStreamClusterPeers() != nil && len(s.JetStreamClusterPeers()) == len(f.nodes) {
			return true
		}
	}
	return false
}

// Close stops all nodes.
func (f *Files) Close() {
	for i, s := range f.nodes {
		if s != nil {
			f.Stop(i)
		}
	}
}
