package ingest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-edge/holdfast/storage"
)

func TestDeliverNumbersWithoutHoles(t *testing.T) {
	invalid := fmt.Errorf("payload too large: %w", storage.ErrInvalid)
	full := fmt.Errorf("stream SENSORS: %w", storage.ErrFull)
	refuse := func(r storage.Record) error {
		if strings.HasPrefix(string(r.Data), "bad") {
			return invalid
		}
		return nil
	}
	for _, tc := range []struct {
		name    string
		batches [][]string
		answers []error
		check   func(storage.Record) error
		want    string
		calls   string
		invalid uint64
		partial bool
	}{
		{"plain", [][]string{{"a"}, {"b", "c"}}, nil, nil, "1:a 2:b 3:c", "[[1] [2 3]]", 0, false},
		{"empty batch", [][]string{{}, {"a"}}, nil, nil, "1:a", "[[1]]", 0, false},
		{"full keeps numbers", [][]string{{"a", "b"}, {"c"}}, []error{full, full}, nil, "1:a 2:b 3:c", "[[1 2] [1 2] [1 2] [3]]", 0, false},
		{"failing store is tried again", [][]string{{"a"}}, []error{errors.New("sync: input/output error")}, nil, "1:a", "[[1] [1]]", 0, false},
		{"invalid alone", [][]string{{"bad"}, {"a"}}, nil, refuse, "1:a", "[[1] [1]]", 1, false},
		{"invalid first", [][]string{{"bad", "a", "b"}}, nil, refuse, "1:a 2:b", "[[1 2 3] [1] [1] [2]]", 1, false},
		{"invalid amid", [][]string{{"a", "bad1", "bad2", "b"}, {"c"}}, nil, refuse, "1:a 2:b 3:c", "[[1 2 3 4] [1] [2] [2] [3] [2] [3]]", 2, false},
		{"invalid last", [][]string{{"a", "bad"}, {"b"}}, nil, refuse, "1:a 2:b", "[[1 2] [1] [2] [2]]", 1, false},
		{"full while one by one", [][]string{{"bad", "a"}}, []error{nil, nil, full}, refuse, "1:a", "[[1 2] [1] [1] [1]]", 1, false},
		// A hole, because the store has c as 3 before anybody knows that 2 is none; but nothing is lost or stored twice.
		{"invalid amid, others stored", [][]string{{"a", "bad", "c"}, {"d"}}, nil, refuse, "1:a 3:c 4:d", "[[1 2 3] [1] [2] [2] [3] [4]]", 1, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			st := &shelf{answers: tc.answers, check: tc.check, partial: tc.partial}
			var failed error
			src := &script{name: "gps", run: func(ctx context.Context, deliver Deliver) error {
				for _, b := range tc.batches {
					failed = errors.Join(failed, deliver(ctx, texts(b...)...))
				}
				return idle(ctx)
			}}
			running(t, st, func(r *Runner, _ *bytes.Buffer) {
				time.Sleep(time.Minute)
				synctest.Wait()
				if failed != nil {
					t.Errorf("deliver = %v, want nil", failed)
				}
				if got := st.stored("gps"); got != tc.want {
					t.Errorf("stored %s, want %s", got, tc.want)
				}
				if got := fmt.Sprint(st.calls); got != tc.calls {
					t.Errorf("numbers of the appends %s, want %s", got, tc.calls)
				}
				s := r.Status()[0]
				if s.Rejected[ReasonInvalid] != tc.invalid || st.rejects["gps"] != tc.invalid {
					t.Errorf("rejected %d in status, %d in store, want %d", s.Rejected[ReasonInvalid], st.rejects["gps"], tc.invalid)
				}
				if tc.invalid > 0 && s.Invalid != invalid.Error() {
					t.Errorf("Invalid = %q, want %q", s.Invalid, invalid)
				}
				if s.Received != s.Stored+tc.invalid || s.Pending != 0 || int(s.Stored) != len(st.recs) {
					t.Errorf("Status() = %+v: received must be stored + rejected", s)
				}
			}, src)
		})
	}
}

// TestDeliverInDoubtKeepsNumbers lets Append fail after, or before, the records were stored: delivered again, each is there once.
func TestDeliverInDoubtKeepsNumbers(t *testing.T) {
	invalid := func(r storage.Record) error {
		if string(r.Data) == "bad" {
			return storage.ErrInvalid
		}
		return nil
	}
	type step struct {
		batch []Reading
		fails bool
	}
	all := texts("a", "b", "c", "d")
	withBad := texts("a", "bad", "c", "d")
	closed := []error{storage.ErrClosed}
	for _, tc := range []struct {
		name    string
		answers []error
		lost    bool
		check   func(storage.Record) error
		steps   []step
		want    string
	}{
		{"stored, same batch", closed, true, nil, []step{{all[:2], true}, {all[:2], false}, {all[2:], false}}, "1:a 2:b 3:c 4:d"},
		{"not stored, same batch", closed, false, nil, []step{{all[:2], true}, {all[:2], false}, {all[2:], false}}, "1:a 2:b 3:c 4:d"},
		{"stored, longer batch", closed, true, nil, []step{{all[:2], true}, {all, false}}, "1:a 2:b 3:c 4:d"},
		{"stored, in pieces", closed, true, nil, []step{{all[:3], true}, {all[:1], false}, {all[1:2], false}, {all[2:], false}}, "1:a 2:b 3:c 4:d"},
		{"not stored, source goes on", closed, false, nil, []step{{all[:2], true}, {all[2:], false}}, "1:a 2:b 3:c 4:d"},
		{"stored, source goes on", closed, true, nil, []step{{all[:2], true}, {all[2:], false}}, "1:a 2:b 3:c 4:d"},
		{"equal data, other time", closed, true, nil, []step{{all[:1], true},
			{[]Reading{{Time: base.Add(time.Hour), Data: []byte("a")}}, false}}, "1:a 2:a"},
		{"twice in doubt", []error{storage.ErrClosed, storage.ErrClosed}, true, nil, []step{{all[:2], true}, {all[:2], true}, {all, false}}, "1:a 2:b 3:c 4:d"},
		{"one by one, then in doubt", []error{nil, nil, nil, storage.ErrClosed}, true, invalid,
			[]step{{withBad, true}, {withBad, false}}, "1:a 2:c 3:d"},
		{"in doubt with an invalid one", closed, false, invalid, []step{{withBad, true}, {withBad, false}}, "1:a 2:c 3:d"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			st := &shelf{answers: tc.answers, lost: tc.lost, check: tc.check}
			src := &script{name: "gps", run: func(ctx context.Context, deliver Deliver) error {
				for i, s := range tc.steps {
					batch := make([]Reading, len(s.batch))
					for j, r := range s.batch {
						r.Data = bytes.Clone(r.Data)
						batch[j] = r
					}
					if err := deliver(ctx, batch...); (err != nil) != s.fails {
						t.Errorf("step %d: deliver = %v, want an error: %t", i, err, s.fails)
					}
					for _, r := range batch { // the source may use its buffers again
						copy(r.Data, "zzz")
					}
				}
				return idle(ctx)
			}}
			running(t, st, func(r *Runner, _ *bytes.Buffer) {
				if got := st.stored("gps"); got != tc.want {
					t.Errorf("stored %s, want %s", got, tc.want)
				}
				if s := r.Status()[0]; int(s.Stored) != len(st.recs) {
					t.Errorf("Stored = %d, want %d", s.Stored, len(st.recs))
				}
			}, src)
		})
	}
}

func TestDeliverNotes(t *testing.T) {
	st := &shelf{check: func(r storage.Record) error {
		if string(r.Data) == "bad" {
			return storage.ErrInvalid
		}
		return nil
	}}
	var noted []string
	note := func(data string) Reading {
		return Reading{Time: base, Data: []byte(data), Note: func(id storage.ID) ([]byte, error) {
			if data == "fail" {
				return nil, errors.New("disk gone")
			}
			noted = append(noted, data+"="+id.String())
			return []byte("mark of " + data), nil
		}}
	}
	var failed error
	src := &script{name: "zigbee", run: func(ctx context.Context, deliver Deliver) error {
		failed = deliver(ctx, note("fail"))
		if err := deliver(ctx, note("bad"), note("a")); err != nil {
			t.Errorf("deliver = %v, want nil", err)
		}
		return idle(ctx)
	}}
	running(t, st, func(*Runner, *bytes.Buffer) {
		if failed == nil || !strings.Contains(failed.Error(), "gw1.00c0ffee00.zigbee.7.1: disk gone") {
			t.Errorf("deliver with a failing note = %v, want its error and the ID", failed)
		}
		want := "bad=gw1.00c0ffee00.zigbee.7.1 a=gw1.00c0ffee00.zigbee.7.2 bad=gw1.00c0ffee00.zigbee.7.1 a=gw1.00c0ffee00.zigbee.7.1"
		if got := strings.Join(noted, " "); got != want {
			t.Errorf("noted %s\nwant %s", got, want)
		}
		if got := st.stored("zigbee"); got != "1:a" {
			t.Errorf("stored %s, want 1:a", got)
		}
	}, src)
}

// TestDeliverBlocks looks at the state and the pauses while the store is full.
func TestDeliverBlocks(t *testing.T) {
	st := &shelf{}
	for range 1000 {
		st.answers = append(st.answers, storage.ErrFull)
	}
	src := &script{name: "gps", run: func(ctx context.Context, deliver Deliver) error {
		return errors.Join(deliver(ctx, texts("a")...), idle(ctx))
	}}
	other := &script{name: "zigbee", run: func(ctx context.Context, deliver Deliver) error { return idle(ctx) }}
	running(t, st, func(r *Runner, log *bytes.Buffer) {
		time.Sleep(time.Minute)
		synctest.Wait()
		s := r.Status()
		if s[0].State.Kind != Blocked || s[0].State.Cause == "" || s[0].State.Remedy == "" || s[0].Pending != 1 || s[0].Received != 1 {
			t.Errorf("Status() = %+v, want blocked with cause and remedy and one pending", s[0])
		}
		if s[1].State.Kind != Running {
			t.Errorf("state of the other source = %v, want running", s[1].State.Kind)
		}
		st.mu.Lock()
		for i := 1; i < len(st.at); i++ {
			if d := st.at[i].Sub(st.at[i-1]); d < 75*time.Millisecond || d > blockedMax {
				t.Errorf("pause %d was %s, want 75ms to %s", i, d, blockedMax)
			}
		}
		if n := len(st.at); n < 15 || n > 30 {
			t.Errorf("%d appends in a minute, want about 18", n)
		}
		st.answers = nil
		st.mu.Unlock()
		time.Sleep(blockedMax)
		synctest.Wait()
		if s := r.Status()[0]; s.State.Kind == Blocked || s.Stored != 1 || s.Pending != 0 || !s.Last.Equal(base) {
			t.Errorf("Status() = %+v after room was made, want one stored", s)
		}
		if n := strings.Count(log.String(), "blocked by the store"); n != 2 {
			t.Errorf("%d log lines about blocking, want one for each edge:\n%s", n, log)
		}
	}, src, other)
}

func TestDeliverStopsWithContext(t *testing.T) {
	for _, tc := range []struct {
		name    string
		answers []error
	}{
		{"full", []error{storage.ErrFull, storage.ErrFull}},
		{"failing", []error{errors.New("input/output error")}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := make(chan error, 1)
			src := &script{name: "gps", run: func(ctx context.Context, deliver Deliver) error {
				err := deliver(ctx, texts("a")...)
				got <- err
				return err
			}}
			st := &shelf{answers: tc.answers}
			running(t, st, func(*Runner, *bytes.Buffer) {}, src)
			if err := <-got; !errors.Is(err, context.Canceled) {
				t.Errorf("deliver = %v, want context.Canceled", err)
			}
		})
	}
}
