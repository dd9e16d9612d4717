package storage

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-edge/holdfast/storage/journal"
)

const benchSize = 200

// rawLog is what a commit is compared with: append and fdatasync of as many bytes as the records take in the stream.
type rawLog struct {
	f   *os.File
	buf []byte
}

func newRawLog(b *testing.B, group int) *rawLog {
	f, err := os.Create(filepath.Join(b.TempDir(), "raw"))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = f.Close() })
	const around = 150 // subject, ID, stamp, checksum
	return &rawLog{f, make([]byte, group*(benchSize+around))}
}

func (r *rawLog) commit(b *testing.B) {
	if _, err := r.f.Write(r.buf); err != nil {
		b.Fatal(err)
	}
	if err := unix.Fdatasync(int(r.f.Fd())); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkAppend commits groups of one caller, each beside a raw append of the same bytes so that both see the same disk. Metric of-raw is the raw
// one's time by ours. Run it with TMPDIR on the disk in question.
func BenchmarkAppend(b *testing.B) {
	for _, group := range []int{1, 10, 100, 1000} {
		b.Run(fmt.Sprintf("group=%d", group), func(b *testing.B) {
			bed := newBed(b)
			bed.options.Journal.Size = defaultJournal
			s := bed.start()
			raw := newRawLog(b, group)
			recs := make([]Record, group)
			data := make([]byte, benchSize)
			seq := uint64(0)
			var ours, theirs time.Duration
			b.ReportAllocs()
			for b.Loop() {
				for i := range recs {
					seq++
					recs[i] = Record{Stream: "A", Source: "a1", Seq: seq, Data: data}
				}
				begin := time.Now()
				if err := s.Append(context.Background(), recs...); err != nil {
					b.Fatal(err)
				}
				middle := time.Now()
				raw.commit(b)
				ours, theirs = ours+middle.Sub(begin), theirs+time.Since(middle)
			}
			b.ReportMetric(float64(group*b.N)/ours.Seconds(), "records/s")
			b.ReportMetric(float64(group*b.N)/theirs.Seconds(), "raw-records/s")
			b.ReportMetric(theirs.Seconds()/ours.Seconds(), "of-raw")
		})
	}
}

// BenchmarkAppendCallers has a hundred callers with one record at a time, beside raw groups of a hundred.
func BenchmarkAppendCallers(b *testing.B) {
	const callers, each = 100, 10
	bed := newBed(b)
	bed.options.Journal.Size = defaultJournal
	for i := range callers {
		bed.options.Sources[fmt.Sprintf("s%d", i)] = "A"
	}
	s := bed.start()
	syncs := 0
	bed.ring(func([]journal.Entry) error { syncs++; return nil })
	raw := newRawLog(b, callers)
	data := make([]byte, benchSize)
	seqs := make([]uint64, callers)
	var ours, theirs time.Duration
	b.ReportAllocs()
	for b.Loop() {
		begin := time.Now()
		var wg sync.WaitGroup
		for i := range callers {
			wg.Go(func() {
				for range each {
					seqs[i]++
					if err := s.Append(context.Background(), Record{Stream: "A", Source: fmt.Sprintf("s%d", i), Seq: seqs[i], Data: data}); err != nil {
						b.Error(err)
					}
				}
			})
		}
		wg.Wait()
		middle := time.Now()
		for range each {
			raw.commit(b)
		}
		ours, theirs = ours+middle.Sub(begin), theirs+time.Since(middle)
	}
	b.ReportMetric(float64(callers*each*b.N)/ours.Seconds(), "records/s")
	b.ReportMetric(float64(callers*each*b.N)/float64(syncs), "records/sync")
	b.ReportMetric(theirs.Seconds()/ours.Seconds(), "of-raw")
}
