package storage

import "testing"

func BenchmarkAdmit(b *testing.B) {
	r := newKeeperRig(b, map[string]limits{"S": {MaxBytes: 1 << 40}})
	dir := b.TempDir()
	r.k.free = func() (int64, uint64, error) { return freeOn(dir) }
	n := need{"S", 100, 25000}
	b.ReportAllocs()
	for b.Loop() {
		if err := r.k.admit(b.Context(), n); err != nil {
			b.Fatal(err)
		}
		r.k.done(true, n)
	}
}

// BenchmarkDropOldest fills a stream of 4 MiB over and over: what a record costs when for each an older one goes.
func BenchmarkDropOldest(b *testing.B) {
	r := newKeeperRig(b, map[string]limits{"S": {MaxBytes: 4 << 20}})
	for _, s := range r.k.streams {
		s.held = s.held.(*watchedStream).heldStream // the account of the tests is slow
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := r.put("S", "a", 1, 200); err != nil {
			b.Fatal(err)
		}
	}
	t := r.c.totals("S", 0)
	b.ReportMetric(float64(t.Dropped[GapDropOldest])/float64(t.Stored), "dropped/stored")
}
