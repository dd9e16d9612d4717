package storage

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// BenchmarkAppend compares commits with raw append+fdatasync of the same bytes on the same disk: run it with TMPDIR on the disk in question.
func BenchmarkAppend(b *testing.B) {
	for _, group := range []int{1, 10, 100, 1000} {
		b.Run(fmt.Sprintf("path=raw/group=%d", group), func(b *testing.B) { benchRaw(b, group) })
		b.Run(fmt.Sprintf("path=store/group=%d", group), func(b *testing.B) { benchStore(b, group) })
	}
	b.Run("path=store/callers=100", benchCallers)
}

const benchSize = 200

func benchRaw(b *testing.B, group int) {
	f, err := os.Create(filepath.Join(b.TempDir(), "raw"))
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	buf := make([]byte, group*(benchSize+150)) // what a record takes in the stream with its subject, ID and stamp
	b.SetBytes(int64(group * benchSize))
	for b.Loop() {
		if _, err := f.Write(buf); err != nil {
			b.Fatal(err)
		}
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(group*b.N)/b.Elapsed().Seconds(), "records/s")
}

func benchStore(b *testing.B, group int) {
	bed := newBed(b)
	s := bed.start()
	recs := make([]Record, group)
	data := make([]byte, benchSize)
	seq := uint64(0)
	b.ReportAllocs()
	b.SetBytes(int64(group * benchSize))
	for b.Loop() {
		for i := range recs {
			seq++
			recs[i] = Record{Stream: "A", Source: "a1", Seq: seq, Data: data}
		}
		if err := s.Append(context.Background(), recs...); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(group*b.N)/b.Elapsed().Seconds(), "records/s")
}

func benchCallers(b *testing.B) {
	bed := newBed(b)
	const callers = 100
	for i := range callers {
		bed.options.Sources[fmt.Sprintf("s%d", i)] = "A"
	}
	s := bed.start()
	syncs := countSyncs(s)
	data := make([]byte, benchSize)
	seqs := make([]uint64, callers)
	b.ReportAllocs()
	b.SetBytes(callers * benchSize)
	for b.Loop() {
		var wg sync.WaitGroup
		for i := range callers {
			wg.Go(func() {
				for range 10 {
					seqs[i]++
					if err := s.Append(context.Background(), Record{Stream: "A", Source: fmt.Sprintf("s%d", i), Seq: seqs[i], Data: data}); err != nil {
						b.Error(err)
					}
				}
			})
		}
		wg.Wait()
	}
	b.ReportMetric(float64(10*callers*b.N)/b.Elapsed().Seconds(), "records/s")
	b.ReportMetric(float64(10*callers*b.N)/float64(syncs()), "records/sync")
}
