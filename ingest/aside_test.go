package ingest

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/holdfast-edge/holdfast/storage"
)

// TestStoreBesideInDoubt lets appends of a source and of what is stored beside it fail in turns: each comes again, and all is there
// once, in one row of numbers.
func TestStoreBesideInDoubt(t *testing.T) {
	all, beside := texts("a", "b"), texts("x", "y")
	type step struct {
		aside bool
		batch []Reading
		fails bool
	}
	for _, tc := range []struct {
		name    string
		answers []error
		steps   []step
		want    string
	}{
		{"source in doubt, other between", []error{storage.ErrClosed}, []step{{false, all[:1], true}, {true, beside[:1], false}, {false, all, false}}, "1:a 2:x 3:b"},
		{"other in doubt, source between", []error{storage.ErrClosed}, []step{{true, beside[:1], true}, {false, all[:1], false}, {true, beside, false}}, "1:x 2:a 3:y"},
		{"both in doubt", []error{storage.ErrClosed, nil, storage.ErrClosed},
			[]step{{false, all[:1], true}, {true, beside[:1], true}, {false, all, false}, {true, beside, false}}, "1:a 2:x 3:b 4:y"},
	} {
		for _, lost := range []bool{true, false} {
			t.Run(tc.name, func(t *testing.T) {
				st := &shelf{answers: tc.answers, lost: lost}
				var deliver Deliver
				src := &script{name: "gps", run: func(ctx context.Context, d Deliver) error {
					deliver = d
					return idle(ctx)
				}}
				running(t, st, func(r *Runner, _ *bytes.Buffer) {
					for i, s := range tc.steps {
						store := deliver
						if s.aside {
							store = func(ctx context.Context, batch ...Reading) error { return r.Store(ctx, "gps", batch...) }
						}
						if err := store(context.Background(), s.batch...); (err != nil) != s.fails {
							t.Errorf("step %d: %v, want an error: %t", i, err, s.fails)
						}
					}
					if got := st.stored("gps"); got != tc.want {
						t.Errorf("stored %s, want %s", got, tc.want)
					}
				}, src)
			})
		}
	}
	if err := NewRunner(&shelf{}, nil).Store(t.Context(), "gps", all...); err == nil || errors.Is(err, storage.ErrClosed) {
		t.Errorf("Store for no source = %v, want an error that says so", err)
	}
}
