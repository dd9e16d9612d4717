package disk

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// filled returns n blocks of byte c.
func filled(n int, c byte) []byte { return bytes.Repeat([]byte{c}, n*blockSize) }

func TestSurvivors(t *testing.T) {
	const blocks = 400
	tests := []struct {
		name     string
		mode     Mode
		min, max int // survivors among the unflushed blocks
		torn     bool
	}{
		{"none", CutNone, 0, 0, false},
		{"all", CutAll, blocks, blocks, false},
		{"random", CutRandom, blocks / 3, blocks * 2 / 3, true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			d := newDevice(2 * blocks * blockSize)
			d.writeAt(filled(2*blocks, 'o'), 0)
			d.flush()
			d.writeAt(filled(blocks, 'n'), 0)
			left, s, err := d.survivors(test.mode, 7)
			if err != nil {
				t.Fatal(err)
			}
			if s.Dirty != blocks || s.Kept < test.min || s.Kept > test.max || (s.Torn > 0) != test.torn {
				t.Errorf("survivors(%s) = %+v, want %d dirty, %d to %d kept, torn: %v", test.mode, s, blocks, test.min, test.max, test.torn)
			}
			if !bytes.Equal(left[blocks*blockSize:], filled(blocks, 'o')) {
				t.Error("flushed blocks did not survive")
			}
			kept, torn := 0, 0
			for b := range blocks {
				switch n := bytes.Count(left[b*blockSize:(b+1)*blockSize], []byte{'n'}); {
				case n == blockSize:
					kept++
				case n > 0 && n%sectorSize == 0:
					torn++
				case n > 0:
					t.Errorf("block %d is torn inside a sector: %d new bytes", b, n)
				}
			}
			if kept != s.Kept || torn != s.Torn {
				t.Errorf("image holds %d kept and %d torn blocks, reported %+v", kept, torn, s)
			}
			again, _, err := d.survivors(test.mode, 7)
			if err != nil || !bytes.Equal(left, again) {
				t.Errorf("the same seed gave another image (error %v)", err)
			}
			d.flush()
			if _, s, err := d.survivors(test.mode, 7); err != nil || s.Dirty != 0 {
				t.Errorf("after a flush: survivors = %+v, %v, want none dirty", s, err)
			}
		})
	}
	if _, _, err := newDevice(blockSize).survivors("half", 1); err == nil {
		t.Error("survivors with an unknown mode succeeded")
	}
}

func TestImageRoundTrip(t *testing.T) {
	d := newDevice(64 * blockSize)
	d.writeAt(filled(3, 'a'), 20*blockSize)
	d.flush()
	path := filepath.Join(t.TempDir(), "image")
	if err := saveImage(path, d.flash); err != nil {
		t.Fatal(err)
	}
	e := newDevice(64 * blockSize)
	if err := e.load(path); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(e.flash, d.flash) || !bytes.Equal(e.cache, d.flash) {
		t.Error("the image read back differs from the medium")
	}
	if err := newDevice(65 * blockSize).load(path); err == nil {
		t.Error("loading an image smaller than the medium succeeded")
	}
	if err := e.load(path + ".missing"); !os.IsNotExist(err) {
		t.Errorf("load of a missing image: %v", err)
	}
}

func TestLatency(t *testing.T) {
	d := newDevice(blockSize)
	d.tune(Tuning{FlushLatency: 20 * time.Millisecond, WriteLatency: 10 * time.Millisecond})
	start := time.Now()
	d.writeAt([]byte("x"), 0)
	d.flush()
	if took := time.Since(start); took < 30*time.Millisecond {
		t.Errorf("a write and a flush took %v, want at least 30ms", took)
	}
	if s := d.count(); s.Writes != 1 || s.Bytes != 1 || s.Flushes != 1 || s.Dirty != 0 {
		t.Errorf("count() = %+v, want one write of one byte and one flush", s)
	}
}
