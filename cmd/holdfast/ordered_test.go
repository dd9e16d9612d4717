package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/cmd/holdfast/status"
	fleet "github.com/holdfast-edge/holdfast/forward/hub"
	"github.com/holdfast-edge/holdfast/ingest"
	"github.com/holdfast-edge/holdfast/ingest/command"
	"github.com/holdfast-edge/holdfast/rig/hub"
	"github.com/holdfast-edge/holdfast/rig/poll"
	"github.com/holdfast-edge/holdfast/rig/wire"
	"github.com/holdfast-edge/holdfast/storage"
)

// quit is what ends a valve that obeys.
const quit = "quit\r"

// obeying has a valve answer whatever it is told, until the test ends, and returns what it has heard.
func (v *valve) obeying(t *testing.T) (heard func() []string) {
	var mu sync.Mutex
	var all []string
	var wg sync.WaitGroup
	wg.Go(func() {
		var line []byte
		b := make([]byte, 256)
		for {
			n, err := v.master.Read(b)
			if err != nil {
				return
			}
			for _, c := range b[:n] {
				if c != '\r' {
					line = append(line, c)
					continue
				}
				if strings.HasSuffix(string(line)+"\r", quit) {
					return
				}
				mu.Lock()
				all = append(all, string(line))
				mu.Unlock()
				_, _ = fmt.Fprintf(v.master, "OK %s\n", line) // what is missing shows in the outcome
				line = nil
			}
		}
	})
	t.Cleanup(func() {
		_, err := fmt.Fprint(v.slave, quit) // the daemon is gone
		closing(t, err)
		wg.Wait()
	})
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return append([]string(nil), all...)
	}
}

// outcomes reads the outcome records of the valve at the hub, by the command's ID.
func (s *site) outcomes(source string) map[string][]command.Outcome {
	all := map[string][]command.Outcome{}
	c, err := s.js.OrderedConsumer(s.t.Context(), "SENSORS", jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{storage.DataSubject(s.leaf, "SENSORS", source) + "." + command.TailOutcome},
	})
	if err != nil {
		return nil
	}
	info, err := c.Info(s.t.Context())
	if err != nil || info.NumPending == 0 {
		return nil
	}
	batch, err := c.Fetch(int(info.NumPending), jetstream.FetchMaxWait(10*time.Second))
	if err != nil {
		return nil
	}
	for m := range batch.Messages() {
		var o command.Outcome
		if err := json.Unmarshal(m.Data(), &o); err != nil {
			s.t.Errorf("outcome %s: %v", m.Data(), err)
		}
		all[o.Command] = append(all[o.Command], o)
	}
	return all
}

// TestCommandsThroughCutsAndKills sends commands from the hub, 200 (at full length 1,000) through 6 (20) cuts of the link and kills of the daemon by turns,
// to a device on a serial line. Each is executed once, in order, or its outcome says that it is unknown; those whose time is over are not executed.
func TestCommandsThroughCutsAndKills(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: runs a hub of three processes, not done with -short")
	}
	t.Parallel()
	orders, faults := 200, 6
	if *full {
		orders, faults = 1000, 20
	}
	s := &site{t: t, leaf: "pump-07", dir: t.TempDir()}
	plan, err := fleet.New(fleet.Spec{Leaves: []fleet.Leaf{{Name: s.leaf, Password: sitePassword, Commands: true, Streams: []fleet.Stream{{Name: "SENSORS"}}}}})
	if err != nil {
		t.Fatal(err)
	}
	makeDir(t, filepath.Join(s.dir, "hub"))
	if s.hub, err = hub.Start(hub.Options{Processes: true, Dir: filepath.Join(s.dir, "hub"), Accounts: plan.Config()}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closing(t, s.hub.Close()) })
	if s.js, err = s.hub.JetStream(); err != nil {
		t.Fatal(err)
	}
	if _, err := fleet.Apply(t.Context(), s.js, plan); err != nil {
		t.Fatal(err)
	}
	if s.wire, err = wire.New(s.hub.LeafAddr(0)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closing(t, s.wire.Close()) })
	v := newValve(t)
	heard := v.obeying(t)
	s.write("holdfast.yaml", fmt.Sprintf(`leaf: {name: %s, data: %q}
hub: {urls: ["nats-leaf://%s:%s@%s"], commands: true}
storage: {budget: 1GiB, reserve_free: 0, allow_volatile: true}
streams:
  - {name: SENSORS, max_bytes: 256MiB}
sources:
  - name: valve
    into: SENSORS
    serial: {port: %q, command: {end: "\\r", reply: message, prefix: OK}}
    frame: line
`, s.leaf, filepath.Join(s.dir, "data"), s.leaf, sitePassword, s.wire.Addr(), v.path))
	s.start()
	s.daemon.until(time.Minute, "capturing, and commands come", func(r status.Report) bool {
		return running(r) && len(r.Down) == 1 && r.Down[0].State == "taking"
	})

	late := map[string]bool{}
	var ids []string
	order := func(n int) {
		for range n {
			id := fmt.Sprintf("c%04d", len(ids))
			c := ingest.Command{ID: id, Source: "valve", Data: []byte(id), Timeout: time.Minute}
			if len(ids)%10 == 9 { // its time is over before it can be there
				c.NotAfter, late[id] = time.Now().Add(-time.Second), true
			}
			if _, err := s.js.PublishMsg(t.Context(), command.Message(s.leaf, c)); err != nil {
				t.Fatal(err)
			}
			ids = append(ids, id)
		}
	}
	for fault := range faults {
		order(orders / faults / 2)
		if fault%2 == 0 {
			s.wire.Cut()
			order(orders / faults / 4)
			pause(t.Context(), 500*time.Millisecond)
			closing(t, s.wire.Restore())
		} else {
			before := len(heard())
			poll.Wait(t.Context(), 5*time.Second, func() bool { return len(heard()) > before })
			s.daemon.kill()
			s.start()
		}
	}
	order(orders - len(ids))

	var got map[string][]command.Outcome
	poll.Until(t, 3*time.Minute, func() bool { got = s.outcomes("valve"); return len(got) >= len(ids) }, "an outcome of each of %d commands", len(ids))
	times, last := map[string]int{}, ""
	for _, order := range heard() {
		if times[order]++; order <= last {
			t.Errorf("the valve heard %q behind %q", order, last)
		}
		last = order
	}
	states := map[string]int{}
	for _, id := range ids {
		for _, o := range got[id] {
			if o.State != got[id][0].State {
				t.Errorf("command %s has the outcomes %+v", id, got[id])
			}
		}
		if len(got[id]) == 0 {
			t.Errorf("command %s has no outcome", id)
			continue
		}
		state := got[id][0].State
		states[state]++
		want := 0
		if state == ingest.OutcomeDone {
			want = 1
		}
		switch n := times[id]; {
		case late[id] && (n > 0 || state == ingest.OutcomeDone):
			t.Errorf("command %s, whose time is over, was executed %d times: %s", id, n, state)
		case state == ingest.OutcomeUnknown && n <= 1:
		case n != want:
			t.Errorf("command %s: %s, and the valve heard it %d times", id, state, n)
		}
	}
	t.Logf("%d commands through %d cuts and kills: %v", len(ids), faults, states)
	if states[ingest.OutcomeUnknown] > faults {
		t.Errorf("%d outcomes are unknown after %d faults", states[ingest.OutcomeUnknown], faults)
	}
	s.daemon.stop()
}
