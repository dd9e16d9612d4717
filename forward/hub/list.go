package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/storage"
)

// LeafState is what the hub knows of a leaf.
type LeafState struct {
	Name      string          `json:"name"`
	Enrolled  bool            `json:"enrolled"`  // it has a key or a password
	Connected bool            `json:"connected"` // false also when the servers could not be asked
	Address   string          `json:"address,omitempty"`
	Seen      time.Time       `json:"seen,omitzero"` // when its newest record arrived, or now when it is connected
	Streams   []UplinkState   `json:"streams"`
	Down      []DownlinkState `json:"down,omitempty"`
}

// UplinkState is a stream of a leaf as the hub knows it.
type UplinkState struct {
	Stream    string    `json:"stream"`
	HubStream string    `json:"hub_stream"`
	Missing   bool      `json:"missing,omitempty"` // the hub has no such stream, or it does not take from the leaf: apply
	Waiting   uint64    `json:"waiting"`           // on the leaf, by what the hub heard last
	Arrived   time.Time `json:"arrived,omitzero"`  // the newest record, at the hub
	Lost      uint64    `json:"lost"`              // by gap records
	Error     string    `json:"error,omitempty"`   // what the hub's server says
}

// DownlinkState is what waits at the hub for a leaf.
type DownlinkState struct {
	Stream  string `json:"stream"`
	Waiting uint64 `json:"waiting"`
}

// List returns what a hub knows of the plan's leaves, in its order. system is a connection of an administrator of the servers, who knows which
// leaves are connected; nil for none.
func List(ctx context.Context, js jetstream.JetStream, system *nats.Conn, p Plan) ([]LeafState, error) {
	l := lister{js: js, plan: p, addresses: map[string]string{}, sources: map[string]jetstream.StreamSourceInfo{}, lost: NewAudit()}
	if system != nil {
		if err := l.connected(ctx, system); err != nil {
			return nil, err
		}
	}
	for _, name := range p.RecordStreams() {
		if err := l.look(ctx, name); err != nil {
			return nil, fmt.Errorf("list hub stream %s: %w", name, err)
		}
	}
	all := make([]LeafState, len(p.spec.Leaves))
	jobs := make([]func() error, 0, len(all))
	for i, leaf := range p.spec.Leaves {
		jobs = append(jobs, func() error {
			var err error
			all[i], err = l.leaf(ctx, leaf)
			return err
		})
	}
	return all, inParallel(jobs)
}

// lister gathers what List needs. After connected and look it is only read.
type lister struct {
	js        jetstream.JetStream
	plan      Plan
	addresses map[string]string                     // of connected leaves
	sources   map[string]jetstream.StreamSourceInfo // by hub stream, leaf and stream
	lost      *Audit                                // of gap records only
}

func (l *lister) connected(ctx context.Context, nc *nats.Conn) error {
	return everyServer(ctx, nc, "$SYS.REQ.SERVER.PING.LEAFZ", nil, func(a answer) {
		var z struct {
			Leafs []struct {
				Name string `json:"name"`
				IP   string `json:"ip"`
				Port int    `json:"port"`
			} `json:"leafs"`
		}
		if json.Unmarshal(a.Data, &z) != nil {
			return // a server that says something else
		}
		for _, leaf := range z.Leafs {
			l.addresses[leaf.Name] = fmt.Sprintf("%s:%d", hostPort(leaf.IP), leaf.Port)
		}
	})
}

// look asks a hub stream how far its sources are, and reads its gap records.
func (l *lister) look(ctx context.Context, name string) error {
	s, err := lookAt(ctx, l.js, name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	info := s.CachedInfo()
	if info.Mirror != nil && info.Config.Mirror != nil {
		l.sources[name+" "+label(info.Config.Mirror)] = *info.Mirror
	}
	for _, src := range info.Sources {
		if src.External != nil {
			l.sources[name+" "+label(&jetstream.StreamSource{Name: src.Name, External: src.External})] = *src
		}
	}
	r := newReader(l.lost, s)
	_, err = r.run(ctx, "data.*.*."+storage.GapSource, nil)
	return err
}

func (l *lister) leaf(ctx context.Context, leaf Leaf) (LeafState, error) {
	address, connected := l.addresses[leaf.Name]
	state := LeafState{Name: leaf.Name, Enrolled: leaf.NKey != "" || leaf.Password != "", Connected: connected, Address: address}
	for _, s := range leaf.Streams {
		u := UplinkState{Stream: s.Name, HubStream: s.HubStream, Lost: l.lost.Lost(leaf.Name, s.Name)}
		src, there := l.sources[s.HubStream+" "+leaf.Name+"/"+s.Name]
		u.Missing, u.Waiting = !there, src.Lag
		if src.Error != nil {
			u.Error = src.Error.Description
		}
		var err error
		if u.Arrived, err = l.arrived(ctx, s.HubStream, Filter(leaf.Name, s.Name)); err != nil {
			return state, fmt.Errorf("newest record of %s/%s: %w", leaf.Name, s.Name, err)
		}
		if u.Arrived.After(state.Seen) {
			state.Seen = u.Arrived
		}
		state.Streams = append(state.Streams, u)
	}
	for _, c := range l.plan.consumers {
		if c.Config.DeliverSubject != DownSubject(leaf.Name, c.Stream) {
			continue
		}
		d := DownlinkState{Stream: c.Stream}
		if have, err := l.js.PushConsumer(ctx, c.Stream, c.Config.Durable); err == nil {
			d.Waiting = have.CachedInfo().NumPending + uint64(have.CachedInfo().NumAckPending)
		}
		state.Down = append(state.Down, d)
	}
	if connected {
		state.Seen = time.Now()
	}
	return state, nil
}

// arrived returns when the newest record below a subject came to a hub stream; a mirror knows when it came to the leaf. Zero for none.
func (l *lister) arrived(ctx context.Context, stream, subject string) (time.Time, error) {
	s, err := lookAt(ctx, l.js, stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, err
	}
	m, err := s.GetLastMsgForSubject(ctx, subject)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, err
	}
	return m.Time, nil
}
