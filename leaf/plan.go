package leaf

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// What becomes of an asset.
const (
	AssetCreate   = "create"
	AssetUpdate   = "update"
	AssetRecreate = "recreate" // the server cannot change it to what is declared, so it is deleted and made anew
)

// AssetChange is one difference between what is declared and what is there.
type AssetChange struct {
	Kind   string   `json:"kind"` // stream, consumer, key-value bucket or object store
	Name   string   `json:"name"` // a consumer's stream is in front of it, with a slash between
	Action string   `json:"action"`
	Fields []string `json:"fields,omitempty"` // key: from -> to
	Loss   string   `json:"loss,omitempty"`   // what would be lost, in words; empty: nothing
	Error  string   `json:"error,omitempty"`  // what the server says against it

	asset asset
}

// String returns the change in one line.
func (c AssetChange) String() string {
	text := c.Action + " " + c.Kind + " " + c.Name
	if len(c.Fields) > 0 {
		text += ": " + strings.Join(c.Fields, ", ")
	}
	if c.Loss != "" {
		text += "; loses " + c.Loss
	}
	if c.Error != "" {
		text += "; " + c.Error
	}
	return text
}

const assetTimeout = 30 * time.Second // bounds each use of the assets' server

// scratch is a server of its own that knows nothing: it tells what the real one would say to a configuration.
type scratch struct {
	manager
	srv *server.Server
	dir string
}

func newScratch(apps Apps) (*scratch, error) {
	dir, err := os.MkdirTemp("", "holdfast-jetstream-")
	if err != nil {
		return nil, fmt.Errorf("check jetstream: %w", err)
	}
	s := &scratch{dir: dir}
	o := &server.Options{}
	err = o.ProcessConfigString(fmt.Sprintf("accounts { %s { jetstream: %s, users: [ { user: u, password: p } ] } }\nno_auth_user: u\n", AccountApp, apps.jetstream()))
	if err == nil {
		o.DontListen, o.NoLog, o.NoSigs = true, true, true
		o.JetStream, o.StoreDir, o.JetStreamMaxMemory, o.JetStreamMaxStore = true, dir, maxMemory, unlimitedStore
		o.JetStreamLimits = server.JSLimitOpts{Duplicates: apps.DuplicateWindow}
		s.srv, err = server.NewServer(o)
	}
	if err == nil {
		s.srv.Start()
		if !s.srv.ReadyForConnections(startTimeout) {
			err = errStart
		} else {
			s.nc, err = nats.Connect("", nats.InProcessServer(s.srv))
		}
	}
	if err != nil {
		s.close()
		return nil, fmt.Errorf("check jetstream: %w", err)
	}
	return s, nil
}

func (s *scratch) close() {
	if s.nc != nil {
		s.nc.Close()
	}
	if s.srv != nil {
		s.srv.Shutdown()
		s.srv.WaitForShutdown()
	}
	_ = os.RemoveAll(s.dir) // what is left is in a temporary folder, and empty of data
}

// CheckAssets holds the section against a server, in pedantic mode, and reports what it refuses. A consumer of a stream that is not declared
// is checked when it is made.
func CheckAssets(apps Apps, js JetStream, fault func(key, problem, remedy string)) error {
	if js.Empty() {
		return nil
	}
	s, err := newScratch(apps)
	if err != nil {
		return err
	}
	defer s.close()
	ctx, cancel := context.WithTimeout(context.Background(), assetTimeout)
	defer cancel()
	failed := map[string]bool{}
	for _, a := range js.assets() {
		if a.consumer != nil && (failed[a.stream.Name] || !js.declares(a.stream.Name)) {
			continue
		}
		if err := s.create(ctx, a, a.config(), true); err != nil {
			failed[a.stream.Name] = true
			fault(a.path, "the server refuses it: "+err.Error(), "see docs/JETSTREAM.md, or the same key in the documentation of NATS")
		}
	}
	return nil
}

// declares tells whether a stream is declared, as such or as a bucket.
func (j JetStream) declares(stream string) bool {
	return slices.ContainsFunc(j.assets(), func(a asset) bool { return a.consumer == nil && a.stream.Name == stream })
}

// PlanAssets returns what would have to be done so that the server has what is declared, in the order in which it is to be done. It changes nothing.
func (s *Server) PlanAssets(ctx context.Context, apps Apps, js JetStream) ([]AssetChange, error) {
	if js.Empty() {
		return nil, nil
	}
	nc, err := s.AppConnect()
	if err != nil {
		return nil, err
	}
	defer nc.Close()
	test, err := newScratch(apps)
	if err != nil {
		return nil, err
	}
	defer test.close()
	ctx, cancel := context.WithTimeout(ctx, assetTimeout)
	defer cancel()
	var changes []AssetChange
	for _, a := range js.assets() {
		c, err := planAsset(ctx, manager{nc}, test, js, a)
		if err != nil {
			return nil, fmt.Errorf("plan %s %s: %w", a.kind, a.name, err)
		}
		if c.Action != "" && c.Error == "" && a.consumer == nil {
			if c.Error, err = (manager{nc}).inTheWay(ctx, js, a.stream); err != nil {
				return nil, fmt.Errorf("plan %s %s: %w", a.kind, a.name, err)
			}
		}
		if c.Action != "" {
			changes = append(changes, c)
		}
	}
	return changes, nil
}

// inTheWay names a stream that is there without being declared and has subjects that a declared one wants; empty if there is none.
func (m manager) inTheWay(ctx context.Context, js JetStream, want server.StreamConfig) (string, error) {
	for _, subject := range want.Subjects {
		var there struct {
			Streams []string `json:"streams"`
		}
		if err := m.request(ctx, "STREAM.NAMES", map[string]string{"subject": subject}, &there); err != nil {
			return "", err
		}
		for _, name := range there.Streams {
			if name != want.Name && !js.declares(name) {
				return fmt.Sprintf("stream %s is there, is not declared, and has subjects of %s: give one of the two others, or delete it", name, subject), nil
			}
		}
	}
	return "", nil
}

func planAsset(ctx context.Context, live manager, test *scratch, js JetStream, a asset) (AssetChange, error) {
	c := AssetChange{Kind: a.kind, Name: a.name, asset: a}
	if a.consumer != nil && !js.declares(a.stream.Name) {
		// Its stream belongs to somebody else: the scratch server needs it, too.
		is, err := live.look(ctx, asset{stream: a.stream})
		if errors.Is(err, errNoAsset) {
			c.Action, c.Error = AssetCreate, "there is no stream "+a.stream.Name
			return c, nil
		}
		if err == nil {
			err = test.ensure(ctx, asset{stream: a.stream}, is.config)
		}
		if err != nil {
			return c, err
		}
	}
	have, err := live.look(ctx, a)
	if errors.Is(err, errNoAsset) {
		c.Action = AssetCreate
		if err := test.create(ctx, a, a.config(), true); err != nil {
			c.Error = err.Error()
		}
		return c, nil
	}
	if err != nil {
		return c, err
	}
	if err := test.create(ctx, a, a.config(), true); err != nil {
		c.Action, c.Error = AssetUpdate, err.Error()
		return c, nil
	}
	want, err := test.look(ctx, a)
	if err != nil {
		return c, err
	}
	if is, ok := have.config.(server.ConsumerConfig); ok && a.consumer.PauseUntil == nil {
		is.PauseUntil = nil // pausing is for who uses it, and the server does not end a pause by an update that names none
		have.config = is
	}
	if c.Fields, err = differences(have.config, want.config); err != nil || len(c.Fields) == 0 {
		return c, err
	}
	// Can the server get from one to the other?
	c.Action = AssetUpdate
	if err := test.remove(ctx, a); err != nil {
		return c, err
	}
	if err := test.create(ctx, a, have.config, false); err != nil {
		return c, err
	}
	if err := test.update(ctx, a, want.config); err != nil {
		c.Action, c.Error = AssetRecreate, ""
		if err := errors.Join(test.remove(ctx, a), test.create(ctx, a, want.config, false)); err != nil {
			return c, err
		}
	}
	c.Loss = loss(c, have, want)
	return c, nil
}

// ensure makes an asset unless it is there.
func (s *scratch) ensure(ctx context.Context, a asset, config any) error {
	if _, err := s.look(ctx, a); !errors.Is(err, errNoAsset) {
		return err
	}
	return s.create(ctx, a, config, false)
}

// differences lists the keys that differ, as key: from -> to.
func differences(have, want any) ([]string, error) {
	h, err := fields(have)
	if err != nil {
		return nil, err
	}
	w, err := fields(want)
	if err != nil {
		return nil, err
	}
	keys := maps.Clone(h)
	maps.Copy(keys, w)
	var list []string
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if h[key] != w[key] {
			list = append(list, fmt.Sprintf("%s: %s -> %s", key, orNone(h[key]), orNone(w[key])))
		}
	}
	return list, nil
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// loss says what a change would lose, or nothing.
func loss(c AssetChange, have, want found) string {
	state := have.stream.State
	switch {
	case c.Action == AssetRecreate && c.asset.consumer != nil:
		return "where the consumer is: it begins anew"
	case c.Action == AssetRecreate && state.LastSeq+uint64(state.Consumers) > 0:
		return fmt.Sprintf("all it holds: %d messages and %d consumers; its sequences, of which %d is the last, begin anew", state.Msgs, state.Consumers, state.LastSeq)
	case c.asset.consumer != nil || state.Msgs == 0:
		return ""
	}
	h, ok1 := have.config.(server.StreamConfig)
	w, ok2 := want.config.(server.StreamConfig)
	if !ok1 || !ok2 {
		return ""
	}
	var lost []string
	if w.MaxMsgs > 0 && state.Msgs > uint64(w.MaxMsgs) {
		lost = append(lost, fmt.Sprintf("%d messages above max_msgs", state.Msgs-uint64(w.MaxMsgs)))
	}
	if w.MaxBytes > 0 && state.Bytes > uint64(w.MaxBytes) {
		lost = append(lost, fmt.Sprintf("the oldest of %d bytes above max_bytes", state.Bytes-uint64(w.MaxBytes)))
	}
	if w.MaxMsgsPer > 0 && (h.MaxMsgsPer <= 0 || w.MaxMsgsPer < h.MaxMsgsPer) && state.Msgs > uint64(state.NumSubjects) {
		lost = append(lost, "older messages of a subject above max_msgs_per_subject")
	}
	if w.MaxAge > 0 && (h.MaxAge <= 0 || w.MaxAge < h.MaxAge) && time.Since(state.FirstTime) > w.MaxAge {
		lost = append(lost, "messages older than max_age")
	}
	if w.Retention != h.Retention {
		lost = append(lost, "messages that no consumer waits for")
	}
	return strings.Join(lost, ", ")
}

// ApplyAssets does what PlanAssets has returned. A change that loses data is left out unless allowLoss; it and what the server refuses are
// returned with their Error set, and do not keep the others from being done.
func (s *Server) ApplyAssets(ctx context.Context, changes []AssetChange, allowLoss bool) (failed []AssetChange, err error) {
	if len(changes) == 0 {
		return nil, nil
	}
	nc, err := s.AppConnect()
	if err != nil {
		return nil, err
	}
	defer nc.Close()
	m := manager{nc}
	ctx, cancel := context.WithTimeout(ctx, assetTimeout)
	defer cancel()
	for _, c := range changes {
		switch {
		case c.Error != "":
			failed = append(failed, c)
			continue
		case c.Loss != "" && !allowLoss:
			c.Error = "not done: it loses data; holdfast reload -allow-loss does it"
			failed = append(failed, c)
			continue
		}
		if err := m.apply(ctx, c); err != nil {
			c.Error = err.Error()
			failed = append(failed, c)
			continue
		}
		s.log.Info("jetstream asset changed", "action", c.Action, "kind", c.Kind, "name", c.Name, "fields", strings.Join(c.Fields, ", "))
	}
	return failed, nil
}

func (m manager) apply(ctx context.Context, c AssetChange) error {
	config := c.asset.config()
	switch c.Action {
	case AssetUpdate:
		return m.update(ctx, c.asset, config)
	case AssetRecreate:
		if err := m.remove(ctx, c.asset); err != nil {
			return err
		}
	}
	return m.create(ctx, c.asset, config, true)
}
