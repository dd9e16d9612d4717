package storage

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// wearRig drives a meter by hand.
type wearRig struct {
	device  string
	counter int64
	boot    time.Duration
	records uint64
}

func (r *wearRig) meter(bootID string, s wearState) *wearMeter {
	return &wearMeter{
		endurance: 30e12, boot: bootID, state: s,
		sinceBoot: func() time.Duration { return r.boot },
		read:      func() (string, int64, error) { return r.device, r.counter, nil },
		records:   func() uint64 { return r.records },
	}
}

func TestWearOverStartsAndBoots(t *testing.T) {
	r := &wearRig{device: "mmcblk0", counter: 5e9, boot: time.Hour}
	m := r.meter("one", wearState{})
	sample := func() {
		t.Helper()
		if err := m.sample(); err != nil {
			t.Fatal(err)
		}
	}
	sample()
	if w := m.report(); w.Written != 0 || w.PerDay != 0 || w.Life != 0 {
		t.Errorf("at the start: %+v, want nothing known", w)
	}
	for range 24 { // a day at 1 GB and a million records
		r.boot += time.Hour
		r.counter += 41_666_667
		r.records += 41_667
		sample()
	}
	near := func(got, want int64) bool { return got >= want*98/100 && got <= want*102/100 }
	check := func(when string, days int64) {
		t.Helper()
		w := m.report()
		if !near(w.PerDay, 1e9) || !near(w.PerRecord, 1000) || !near(w.Written, days*1e9) || !near(int64(w.Observed.Hours()), 24*days) {
			t.Errorf("%s: %+v, want 1 GB a day, 1000 bytes a record, %d GB in %d days", when, w, days, days)
		}
		if left := (30e12 - float64(w.Written)) / 1e9; !near(int64(w.Life.Hours()/24), int64(left)) {
			t.Errorf("%s: life %v, want %.0f days", when, w.Life, left)
		}
	}
	check("after a day", 1)
	m = r.meter("one", m.kept()) // restarted; a day passes before the next sample
	r.boot, r.counter, r.records = r.boot+24*time.Hour, r.counter+1e9, r.records+1e6
	sample()
	check("after a restart of the process", 2)
	m = r.meter("two", m.kept()) // the machine is off for a while, and counts from zero
	r.boot, r.counter, r.records = 24*time.Hour, 1e9, r.records+1e6
	sample()
	check("after a restart of the machine", 3)
	m = r.meter("two", m.kept())
	r.device, r.counter = "sda", 7e12 // moved to a disk with a past of its own
	sample()
	check("on another device", 3)
	for range 30 {
		r.boot, r.counter = r.boot+24*time.Hour, r.counter+2e9
		sample()
	}
	if w := m.report(); !near(w.PerDay, 2e9) {
		t.Errorf("after a month at 2 GB a day: %+v, want the rate of the last week", w)
	}
	r.counter += 1e14
	r.boot += 24 * time.Hour
	sample()
	if w := m.report(); w.Life != 0 || w.PerDay == 0 {
		t.Errorf("beyond the endurance: %+v, want no life left", w)
	}
}

func TestWearOfTheProcessAlone(t *testing.T) {
	r := &wearRig{counter: 1000, boot: time.Hour}
	m := r.meter("one", wearState{})
	if err := m.sample(); err != nil {
		t.Fatal(err)
	}
	r.boot, r.counter = 2*time.Hour, 5000
	if err := m.sample(); err != nil {
		t.Fatal(err)
	}
	if w := m.report(); w.Written != 5000 || w.Device != "" {
		t.Errorf("%+v, want the 5000 bytes that the process has written", w)
	}
	m = r.meter("one", m.kept())
	r.counter = 6000 // of another process
	if err := m.sample(); err != nil {
		t.Fatal(err)
	}
	if w := m.report(); w.Written != 11000 {
		t.Errorf("after a restart: %+v, want 11000", w)
	}
}

// TestDeviceWrites reads made-up kernel files: a partition's bytes are those of the whole card.
func TestDeviceWrites(t *testing.T) {
	sys, proc := t.TempDir(), t.TempDir()
	write := func(root, name, text string) {
		t.Helper()
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(proc, "self/io", "rchar: 1\nwrite_bytes: 4096\ncancelled_write_bytes: 0\n")
	dir := t.TempDir()
	if device, n, err := deviceWrites(sys, proc, dir); err != nil || device != "" || n != 4096 {
		t.Errorf("without a device: %q, %d, %v, want what the process wrote", device, n, err)
	}
	write(sys, "devices/mmcblk0/stat", "  100 0 800 1  7 0 96 1 0 1 1\n")
	write(sys, "devices/mmcblk0/mmcblk0p2/stat", "  10 0 80 1  2 0 16 1 0 1 1\n")
	write(sys, "devices/mmcblk0/mmcblk0p2/partition", "2\n")
	number, err := deviceNumber(dir)
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(sys, "dev/block", number)
	if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(sys, "devices/mmcblk0/mmcblk0p2"), link); err != nil {
		t.Fatal(err)
	}
	if device, n, err := deviceWrites(sys, proc, dir); err != nil || device != "mmcblk0" || n != 96*512 {
		t.Errorf("partition of a card: %q, %d, %v, want mmcblk0, %d", device, n, err, 96*512)
	}
	write(sys, "devices/mmcblk0/stat", "1 2 3\n")
	if _, _, err := deviceWrites(sys, proc, dir); err == nil {
		t.Error("a file with three fields gives no error")
	}
}

// TestWearIsKept stops a store and starts it again: what its device had written so far is still known.
func TestWearIsKept(t *testing.T) {
	b := newBed(t)
	s := b.start()
	poll(t, "the first sample is taken", func() bool { return !s.wear.due() })
	s.wear.mu.Lock()
	s.wear.state.Written, s.wear.state.Observed = 12345, time.Hour
	s.wear.mu.Unlock()
	b.stop()
	if w := b.open().Wear(); w.Written < 12345 || w.Observed < time.Hour {
		t.Errorf("after a restart: %+v, want 12345 bytes in an hour, or more", w)
	}
}
