// Package cost measures in a benchmark what a record costs: throughput, CPU and allocations, in the same units for every source.
package cost

import (
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Meter measures from Start on.
type Meter struct {
	began   time.Time
	cpu     time.Duration
	mallocs uint64
}

// Start begins a measurement of the whole process.
func Start() Meter {
	return Meter{began: time.Now(), cpu: used(), mallocs: mallocs()}
}

// Report ends the measurement: it reports records/s, cpu-µs/record and allocs/record.
func (m Meter) Report(b *testing.B, records int) {
	b.Helper()
	n := float64(max(records, 1))
	b.ReportMetric(n/time.Since(m.began).Seconds(), "records/s")
	b.ReportMetric(float64((used()-m.cpu).Nanoseconds())/1000/n, "cpu-µs/record")
	b.ReportMetric(float64(mallocs()-m.mallocs)/n, "allocs/record")
}

// used is the CPU time of the process so far, its own and the kernel's for it. getrusage(2)
func used() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func mallocs() uint64 {
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return s.Mallocs
}
