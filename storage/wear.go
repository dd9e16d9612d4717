package storage

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// wearInterval is how often the device's counters are read and kept for the next start.
	wearInterval = 10 * time.Minute
	// wearDay is the time that one entry of the history stands for, and wearDays how many are kept: rates are of the last week that the machine ran.
	wearDay  = 24 * time.Hour
	wearDays = 7
	// wearYoung is how long the meter must have run before it tells a rate.
	wearYoung = 10 * time.Minute
	// sectorSize is the unit of the kernel's counters, whatever the device's own is: Documentation/block/stat.rst.
	sectorSize = 512
)

// Wear says what is written to the device under the data directory. Time is that during which the machine ran, whatever the clock said.
type Wear struct {
	Device    string        // as the kernel names it, such as mmcblk0; empty if it does not show its counters: then Written is what this process wrote
	Observed  time.Duration // how long, since the store was made
	Written   int64         // bytes in that time, by all programs
	PerDay    int64         // bytes a day, over the last week at most; 0: not known yet
	PerRecord int64         // bytes for each record stored, over the same time, whoever wrote them; 0: not known yet
	Endurance int64         // bytes that the device can take, as configured; 0: not said
	Life      time.Duration // how long that lasts from now at the present rate; 0: not known
}

// wearState is what the meter keeps for the next start.
type wearState struct {
	Boot     string        `json:"boot,omitempty"`   // the kernel's boot ID, in which Counter holds
	Device   string        `json:"device,omitempty"` // that Counter is of
	Counter  int64         `json:"counter,omitempty"`
	At       time.Duration `json:"at,omitempty"`      // time since boot when Counter was read
	Records  uint64        `json:"records,omitempty"` // stored at that time
	Written  int64         `json:"written,omitempty"`
	Observed time.Duration `json:"observed,omitempty"`
	Days     []wearEntry   `json:"days,omitempty"` // oldest first; the last one is being filled
}

type wearEntry struct {
	For     time.Duration `json:"for"`
	Bytes   int64         `json:"bytes"`
	Records uint64        `json:"records"`
}

// wearMeter adds up what a device writes, over all starts and boots. Safe for concurrent use.
type wearMeter struct {
	endurance int64
	boot      string
	sinceBoot func() time.Duration
	read      func() (device string, bytes int64, err error) // the counter of bytes written since boot, or since the start of the process without a device
	records   func() uint64                                  // stored since the store was made

	mu    sync.Mutex // guards the fields below
	state wearState
	begun bool          // sampled in this process
	at    time.Duration // when that was last
}

// sample reads the counter. Between two samples of one boot everything is known; of a boot before, what came behind its last sample is not.
func (w *wearMeter) sample() error {
	device, counter, err := w.read()
	if err != nil {
		return err
	}
	now, records := w.sinceBoot(), w.records()
	w.mu.Lock()
	defer w.mu.Unlock()
	s := &w.state
	if !w.begun && device == "" {
		s.Counter, s.At, s.Boot, s.Device = 0, now, w.boot, "" // the counter began with this process
	}
	if s.Boot == w.boot && s.Device == device && counter >= s.Counter && now >= s.At {
		w.add(now-s.At, counter-s.Counter, records-min(records, s.Records))
	} else if s.Device == device && device != "" && s.Boot != "" && s.Boot != w.boot {
		w.add(now, counter, records-min(records, s.Records)) // all of this boot
	}
	s.Boot, s.Device, s.Counter, s.At, s.Records = w.boot, device, counter, now, records
	w.begun, w.at = true, now
	return nil
}

// add accounts for some time. Needs mu.
func (w *wearMeter) add(d time.Duration, written int64, records uint64) {
	s := &w.state
	s.Written += written
	s.Observed += d
	if n := len(s.Days); n == 0 || s.Days[n-1].For >= wearDay {
		s.Days = append(s.Days, wearEntry{})
	}
	s.Days = s.Days[max(0, len(s.Days)-wearDays):]
	e := &s.Days[len(s.Days)-1]
	e.For += d
	e.Bytes += written
	e.Records += records
}

// due reports whether it is time for the next sample that is kept.
func (w *wearMeter) due() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.begun || w.sinceBoot()-w.at >= wearInterval
}

// kept returns what is to be kept for the next start.
func (w *wearMeter) kept() wearState {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.state
	s.Days = append([]wearEntry(nil), s.Days...)
	return s
}

// report says what is known.
func (w *wearMeter) report() Wear {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.state
	r := Wear{Device: s.Device, Observed: s.Observed, Written: s.Written, Endurance: w.endurance}
	var sum wearEntry
	for _, e := range s.Days {
		sum.For += e.For
		sum.Bytes += e.Bytes
		sum.Records += e.Records
	}
	if sum.For < wearYoung {
		return r
	}
	perDay := float64(sum.Bytes) / sum.For.Hours() * 24
	r.PerDay = int64(perDay)
	if sum.Records > 0 {
		r.PerRecord = sum.Bytes / int64(sum.Records)
	}
	if left := float64(w.endurance - s.Written); w.endurance > 0 && perDay > 0 {
		const forever = 200 * 365 * 24 * time.Hour // a duration does not hold much more
		r.Life = min(time.Duration(min(max(left, 0)/perDay, forever.Hours()/24)*24*float64(time.Hour)), forever)
	}
	return r
}

// deviceWrites reads how much has been written since boot to the device that dir is on: the whole of it, as its cells are shared by all partitions. A
// file system without a device of its own (overlay, tmpfs, btrfs) shows none; then it is what this process has had written.
func deviceWrites(sys, proc, dir string) (device string, written int64, err error) {
	number, err := deviceNumber(dir)
	if err != nil {
		return "", 0, err
	}
	block, err := filepath.EvalSymlinks(filepath.Join(sys, "dev/block", number))
	if err != nil {
		written, err := processWrites(proc)
		return "", written, err
	}
	if _, err := os.Stat(filepath.Join(block, "partition")); err == nil {
		block = filepath.Dir(block)
	}
	raw, err := os.ReadFile(filepath.Join(block, "stat"))
	if err != nil {
		return "", 0, fmt.Errorf("read how much was written: %w", err)
	}
	const sectorsWritten = 6
	f := bytes.Fields(raw)
	if len(f) <= sectorsWritten {
		return "", 0, fmt.Errorf("read how much was written: %s has %d fields", filepath.Join(block, "stat"), len(f))
	}
	sectors, err := strconv.ParseInt(string(f[sectorsWritten]), 10, 64)
	if err != nil {
		return "", 0, fmt.Errorf("read how much was written: %w", err)
	}
	return filepath.Base(block), sectors * sectorSize, nil
}

// deviceNumber returns major:minor of the device that dir is on.
func deviceNumber(dir string) (string, error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return "", fmt.Errorf("look at the device of %s: %w", dir, err)
	}
	dev := uint64(st.Dev)
	if unix.Major(dev) == 0 { // of the kernel's own making, as btrfs has; the mount table names the real one
		if table, err := os.Open("/proc/self/mountinfo"); err == nil {
			defer func() { _ = table.Close() }() // read only
			if source := sourceOf(table, dev); source != "" && unix.Stat(source, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFBLK {
				dev = uint64(st.Rdev)
			}
		}
	}
	return fmt.Sprintf("%d:%d", unix.Major(dev), unix.Minor(dev)), nil
}

// processWrites reads what this process has had written: proc_pid_io(5).
func processWrites(proc string) (int64, error) {
	f, err := os.Open(filepath.Join(proc, "self/io"))
	if err != nil {
		return 0, fmt.Errorf("read how much was written: %w", err)
	}
	defer func() { _ = f.Close() }() // read only
	raw, err := io.ReadAll(f)
	if err != nil {
		return 0, fmt.Errorf("read how much was written: %w", err)
	}
	for line := range strings.Lines(string(raw)) {
		if text, found := strings.CutPrefix(line, "write_bytes:"); found {
			return strconv.ParseInt(strings.TrimSpace(text), 10, 64)
		}
	}
	return 0, errors.New("read how much was written: the kernel does not count it")
}
