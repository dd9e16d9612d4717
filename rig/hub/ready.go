package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
)

// meta is the part of a server's JetStream report that says whether the cluster can work.
type meta struct {
	Data struct {
		Cluster *struct {
			Leader   string `json:"leader"`
			Replicas []struct {
				Name    string `json:"name"`
				Current bool   `json:"current"`
				Offline bool   `json:"offline"`
			} `json:"replicas"`
		} `json:"meta_cluster"`
	} `json:"data"`
}

// WaitReady returns when the cluster has a leader, every running node has caught up with it, and JetStream answers the administrator.
// After Restart it does not wait for the streams' own leaders.
func (c *Cluster) WaitReady(ctx context.Context) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := c.ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("hub is not ready: %w", errors.Join(ctx.Err(), err))
		case <-tick.C:
		}
	}
}

func (c *Cluster) ready(ctx context.Context) error {
	if c.Len() > 1 && !c.opts.Operator {
		if err := c.metaReady(ctx); err != nil {
			return err
		}
	}
	nc, err := c.Admin()
	if err != nil {
		return err
	}
	defer c.drop(nc)
	short, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	msg, err := nc.RequestWithContext(short, "$JS.API.INFO", nil)
	if err != nil {
		return fmt.Errorf("JetStream does not answer: %w", err)
	}
	var answer struct{ Error *struct{ Description string } }
	if err := json.Unmarshal(msg.Data, &answer); err != nil {
		return fmt.Errorf("JetStream's answer: %w", err)
	}
	if answer.Error != nil {
		return errors.New("JetStream says: " + answer.Error.Description)
	}
	return nil
}

// metaReady asks the cluster's leader for its followers.
func (c *Cluster) metaReady(ctx context.Context) error {
	nc, err := c.connect(sysUser)
	if err != nil {
		return err
	}
	defer c.drop(nc)
	short, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	msg, err := nc.RequestWithContext(short, "$SYS.REQ.SERVER.PING.JSZ", []byte(`{"leader_only":true}`))
	if err != nil {
		return fmt.Errorf("no cluster leader answers: %w", err)
	}
	var m meta
	if err := json.Unmarshal(msg.Data, &m); err != nil {
		return fmt.Errorf("the cluster leader's answer: %w", err)
	}
	if m.Data.Cluster == nil {
		return errors.New("the cluster has no leader")
	}
	running, current := c.running(), 1 // the leader
	for _, r := range m.Data.Cluster.Replicas {
		if r.Current && !r.Offline {
			current++
		}
	}
	if current < running {
		return fmt.Errorf("%d of %d nodes are current", current, running)
	}
	return nil
}

func (c *Cluster) running() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, node := range c.nodes {
		if node != nil {
			n++
		}
	}
	return n
}

// drop closes a connection and forgets it.
func (c *Cluster) drop(nc *nats.Conn) {
	nc.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, other := range c.conns {
		if other == nc {
			c.conns = append(c.conns[:i], c.conns[i+1:]...)
			return
		}
	}
}
