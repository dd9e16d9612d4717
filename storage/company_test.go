package storage

import (
	"testing"
	"time"

	"github.com/holdfast-edge/holdfast/storage/journal"
)

// TestCompany plays comings and goings: x> is answered, >x comes back, and a number is how many are expected then.
func TestCompany(t *testing.T) {
	type step struct {
		after time.Duration
		leave string
		come  string
		want  int
	}
	cases := []struct {
		name  string
		steps []step
	}{
		{"alone", []step{{0, "a", "", 1}, {0, "", "a", 0}, {time.Millisecond, "a", "", 1}, {0, "", "a", 0}}},
		{"alone, now and then", []step{{0, "a", "", 1}, {10 * time.Millisecond, "", "", 0}, {0, "", "a", 0}}},
		{"two meet", []step{{0, "a", "", 1}, {0, "b", "", 2}, {time.Millisecond, "", "b", 1}, {time.Millisecond, "", "a", 0}}},
		{"one falls silent", []step{{0, "a", "", 1}, {0, "b", "", 2}, {0, "", "a", 1}, {6 * time.Millisecond, "", "", 0}}},
		{"answered again while away", []step{{0, "a", "", 1}, {3 * time.Millisecond, "a", "", 1}, {3 * time.Millisecond, "", "", 1}, {3 * time.Millisecond, "", "", 0}}},
		{"middle one back first", []step{{0, "a", "", 1}, {0, "b", "", 2}, {0, "c", "", 3}, {0, "", "b", 2}, {0, "", "c", 1}, {0, "", "a", 0}}},
		{"a stranger", []step{{0, "a", "", 1}, {0, "", "z", 1}}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			now := time.Now()
			comp := company{delay: 5 * time.Millisecond}
			sources := map[string]*source{}
			for _, n := range []string{"a", "b", "c", "z"} {
				sources[n] = &source{name: n}
			}
			for i, s := range c.steps {
				now = now.Add(s.after)
				comp.leave(sources[s.leave], now)
				comp.arrive(sources[s.come])
				if got := comp.expected(now); got != s.want {
					t.Fatalf("step %d: %d expected, want %d", i+1, got, s.want)
				}
			}
		})
	}
	var off company
	off.leave(&source{}, time.Now())
	if off.expected(time.Now()) != 0 {
		t.Error("without a delay somebody is expected")
	}
}

// TestMaxDelayLetsSourcesShareASync has sources that send one after the other, in pauses shorter than max_delay.
func TestMaxDelayLetsSourcesShareASync(t *testing.T) {
	cases := []struct {
		name  string
		delay time.Duration
		most  int
		least int
	}{
		{"long", time.Second, 4, 1},
		{"none", -1, 1000, 20},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			b := newBed(t)
			b.options.Commit = Commit{MaxRecords: 100, MaxDelay: max(0, c.delay)}
			s := b.start()
			all := []string{"a1", "a2", "a3", "b1"}
			errs := make(chan error, 100)
			round := func(n uint64, wait bool) {
				for _, src := range all {
					go func() { errs <- s.Append(b.ctx(), b.record(src, n)) }()
					if wait {
						if err := <-errs; err != nil {
							t.Fatal(err)
						}
					}
				}
				for range len(all) {
					if !wait {
						if err := <-errs; err != nil {
							t.Fatal(err)
						}
					}
				}
			}
			round(1, c.delay < 0)
			syncs := 0
			b.ring(func([]journal.Entry) error { syncs++; return nil })
			for n := uint64(2); n <= 6; n++ {
				round(n, c.delay < 0)
			}
			if got := syncs; got > 5*c.most || got < c.least {
				t.Errorf("20 records took %d syncs, want %d to %d", got, c.least, 5*c.most)
			}
		})
	}
}
