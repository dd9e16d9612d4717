package storage

import (
	"context"
	"fmt"
	"sync"
	"testing"
)

func TestAppendAndReadBack(t *testing.T) {
	b := newBed(t)
	s := b.start()
	recs := []Record{
		{Stream: "A", Source: "a1", Seq: 1, Data: []byte("one")},
		{Stream: "A", Source: "a2", Seq: 1, Tail: "x.y", Data: nil, Header: map[string]string{"Why": "empty data"}},
		{Stream: "B", Source: "b1", Seq: 1, Data: []byte("three")},
	}
	if err := s.Append(b.ctx(), recs...); err != nil {
		t.Fatal(err)
	}
	a, bb := b.captured("A"), b.captured("B")
	if len(a) != 2 || len(bb) != 1 {
		t.Fatalf("A holds %v, B holds %v", a, bb)
	}
	if a[0].Subject != "data.leaf.A.a1" || a[1].Subject != "data.leaf.A.a2.x.y" || a[1].Header.Get("Why") != "empty data" {
		t.Errorf("A holds %+v", a)
	}
	want := ID{Leaf: "leaf", Store: s.ID(), Source: "a1", Epoch: 1, Seq: 1}
	if a[0].ID != want {
		t.Errorf("ID is %v, want %v", a[0].ID, want)
	}
	if st, err := ParseStamp(a[0].Header.Get(HeaderTime)); err != nil || st.Boot <= 0 {
		t.Errorf("stamp %+v, %v", st, err)
	}
	first := b.read("A")[0]
	if first.Source != EpochSource || first.Position < 1<<40 {
		t.Errorf("first record is %+v, want an epoch record at unix seconds << 20", first)
	}
}

func TestConcurrentCallersShareSyncs(t *testing.T) {
	b := newBed(t)
	for i := range 50 {
		b.options.Sources[fmt.Sprintf("s%d", i)] = "A"
	}
	s := b.start()
	syncs := countSyncs(s)
	before := syncs()
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			for n := range uint64(20) {
				if err := s.Append(context.Background(), b.record(fmt.Sprintf("s%d", i), n+1)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n := syncs() - before; n > 250 {
		t.Errorf("1000 records of 50 callers took %d syncs", n)
	} else {
		t.Logf("1000 records of 50 callers took %d syncs", n)
	}
	next := map[string]uint64{}
	got := b.captured("A")
	for _, k := range got {
		if next[k.Source]++; k.Seq != next[k.Source] {
			t.Fatalf("record %v, want seq %d", k.ID, next[k.Source])
		}
	}
	if len(got) != 1000 {
		t.Errorf("%d records in the stream, want 1000", len(got))
	}
}

// countSyncs counts the calls of syncfs from now on.
func countSyncs(s *Store) func() int {
	var mu sync.Mutex
	n := 0
	s.syncMu.Lock()
	defer s.syncMu.Unlock()
	real := s.syncfs
	s.syncfs = func(fd int) error {
		mu.Lock()
		n++
		mu.Unlock()
		return real(fd)
	}
	return func() int {
		mu.Lock()
		defer mu.Unlock()
		return n
	}
}
