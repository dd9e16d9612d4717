package storage

import "testing"

// TestFormerName: what waits under a name that the leaf had before never counts as forwarded, since the hub does not ask for it, until the leaf has that name again.
func TestFormerName(t *testing.T) {
	b := newBed(t)
	b.start()
	b.add("a1", 1, 10)
	b.stop()
	var proven Position
	attach := func(leaf string) StreamState {
		t.Helper()
		b.options.Leaf = leaf
		b.open()
		b.serve()
		srv := b.server()
		srv.Forwarded = func(string) (Position, bool) { return proven, true }
		if err := b.s.Attach(b.ctx(), srv); err != nil {
			t.Fatal(err)
		}
		b.add("a1", 1, 5)
		b.settle()
		proven = b.last("A")
		return b.s.Streams()[0]
	}
	for range 2 { // also at the start after
		st := attach("other")
		if st.Forwarded != 0 || st.Former == nil || st.Former.Leaf != "leaf" {
			t.Errorf("counted %+v, former %+v: want nothing forwarded, and the name leaf", st.StreamCounters, st.Former)
		}
		b.stop()
	}
	if st := attach("leaf"); st.Waiting != 0 || st.Forwarded != 25 || st.Former != nil {
		t.Errorf("under its old name again counted %+v, former %+v: want all forwarded", st.StreamCounters, st.Former)
	}
	b.stop()
	if st := attach("third"); st.Waiting != 0 || st.Former != nil {
		t.Errorf("under a third name counted %+v, former %+v: want all forwarded", st.StreamCounters, st.Former)
	}
}
