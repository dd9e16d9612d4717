package powercut

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/storage"
)

// watchInterval is how often a leaf looks whether its account balances.
const watchInterval = 200 * time.Millisecond

// account is what the store of a leaf counts, over all its lives.
type account struct {
	Stored   map[string]uint64 // by source
	Rejected map[string]uint64 // by source
	Streams  map[string]storage.StreamCounters
}

func accountOf(store *storage.Store) account {
	a := account{Stored: map[string]uint64{}, Rejected: map[string]uint64{}, Streams: map[string]storage.StreamCounters{}}
	for _, s := range store.Sources() {
		a.Stored[s.Name], a.Rejected[s.Name] = s.Stored, s.Rejected
	}
	for _, s := range store.Streams() {
		a.Streams[s.Name] = s.StreamCounters
	}
	return a
}

// dropped returns how many records gap records tell of.
func (a account) dropped() (n uint64) {
	for _, s := range a.Streams {
		for _, d := range s.Dropped {
			n += d
		}
	}
	return n
}

// waiting returns how many records wait for the hub.
func (a account) waiting() (n uint64) {
	for _, s := range a.Streams {
		n += s.Waiting
	}
	return n
}

// unbalanced says what does not add up: at every moment stored = forwarded + waiting + dropped.
func (a account) unbalanced() string {
	for name, s := range a.Streams {
		sum := s.Forwarded + s.Waiting
		for _, d := range s.Dropped {
			sum += d
		}
		if s.Off != 0 || s.Stored != sum {
			return fmt.Sprintf("stream %s: %+v, off by %d", name, s, int64(s.Stored)-int64(sum))
		}
	}
	return ""
}

// tell gives the parent the account.
func (c *child) tell(store *storage.Store) error {
	text, err := json.Marshal(accountOf(store))
	if err != nil {
		return err
	}
	c.say("account %s", text)
	return nil
}

// audit looks again and again whether the account balances, until ctx ends. While records are moved, or counted anew after damage, it is off for moments.
func (c *child) audit(ctx context.Context, store *storage.Store) {
	const moments = 10 * time.Second
	for good := time.Now(); ctx.Err() == nil; pause(ctx, watchInterval) {
		if fault := accountOf(store).unbalanced(); fault == "" {
			good = time.Now()
		} else if time.Since(good) > moments {
			c.say("error account: %s", fault)
			return
		}
	}
}

// compress has the server compress the blocks of all streams that it finishes from now on.
func compress(ctx context.Context, js jetstream.JetStream) error {
	for _, name := range streamNames() {
		st, err := js.Stream(ctx, name)
		if err != nil {
			return fmt.Errorf("compress %s: %w", name, err)
		}
		cfg := st.CachedInfo().Config
		cfg.Compression = jetstream.S2Compression
		if _, err := js.UpdateStream(ctx, cfg); err != nil {
			return fmt.Errorf("compress %s: %w", name, err)
		}
	}
	return nil
}

// opened compares the account that a life opened its store with, before any record of its own, with what the devices have been told and, unless the store
// lets go of records, with what it holds of the lives before. r.life.mu is held.
func (r *rig) opened() {
	if r.older {
		return // the rest of a move comes later; at the end the account has to balance
	}
	a := r.life.opened
	if text := a.unbalanced(); text != "" {
		r.lost.Unbalanced++
		r.lost.example("opened after cut %d: %s", r.cuts, text)
	}
	acked, held := map[string]uint64{}, map[string]uint64{}
	for id := range r.acked {
		if parsed, err := storage.ParseID(id); err == nil {
			acked[parsed.Source]++
		}
	}
	for id := range r.life.has {
		if parsed, err := storage.ParseID(id); err == nil && fmt.Sprintf("%s %d", parsed.Store, parsed.Epoch) != r.life.epoch {
			held[parsed.Source]++
		}
	}
	for _, d := range r.spec.Devices {
		if n := a.Stored[d.Name]; n < acked[d.Name] || !r.letsGo && n != held[d.Name] {
			r.lost.Unbalanced++
			r.lost.example("opened after cut %d: %s has stored %d, acknowledged were %d, the leaf holds %d", r.cuts, d.Name, n, acked[d.Name], held[d.Name])
		}
	}
}

// balance compares the leaf's account at the end with what the rig knows: what its devices sent and what is at the hub.
func (r *rig) balance(total *report, arrived []arrival) {
	r.life.mu.Lock()
	a, rejects, before := r.life.account, r.life.rejects, r.life.opened
	r.life.mu.Unlock()
	fault := func(format string, args ...any) {
		total.Unbalanced++
		total.example(format, args...)
	}
	if text := a.unbalanced(); text != "" {
		fault("%s", text)
	}
	for name, s := range a.Streams {
		for reason, n := range s.Dropped {
			if reason != storage.GapDropOldest {
				fault("stream %s: %d records are gone as %s", name, n, reason)
			}
		}
	}
	total.Dropped = int(a.dropped())
	if r.older {
		return
	}
	atHub := map[string]uint64{}
	seen := map[string]bool{}
	var told, merged uint64
	for _, x := range arrived {
		if seen[x.id] {
			continue
		}
		seen[x.id] = true
		told += x.told
		merged += x.merged
		if id, err := storage.ParseID(x.id); err == nil {
			atHub[id.Source]++
		}
	}
	if r.spec.Drops {
		r.t.Logf("gap records at the hub tell of %d records, %d of them told of before; the leaf has dropped %d", told, merged, a.dropped())
	}
	if n := a.dropped(); n > told || n < told-merged {
		fault("gap records at the hub tell of %d records, %d of them told of before, the leaf has dropped %d", told, merged, n)
	}
	for _, d := range r.spec.Devices {
		missing := int64(a.Stored[d.Name]) - int64(atHub[d.Name])
		if missing < 0 || missing > 0 && !r.spec.Drops {
			fault("%s: the leaf has stored %d in all its lives, at the hub are %d", d.Name, a.Stored[d.Name], atHub[d.Name])
		}
		if got, want := a.Rejected[d.Name], before.Rejected[d.Name]+rejects[d.Name]; got != want || before.Rejected[d.Name] > r.rejected[d.Name] {
			fault("%s: %d rejected, want %d; %d of them in lives before, in which %d were", d.Name, got, want, before.Rejected[d.Name], r.rejected[d.Name])
		}
		total.Rejected += int(a.Rejected[d.Name])
	}
}
