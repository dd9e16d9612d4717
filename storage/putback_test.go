package storage

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
)

// TestPutBack puts back what a server has refused, what a stream that came back was promised, and nothing twice, whatever a crash leaves behind.
func TestPutBack(t *testing.T) {
	for _, encrypted := range []bool{true, false} {
		b := newBed(t)
		if encrypted {
			b.options.Key = keyFile(t, rightKey)
		}
		s := b.start()
		b.alter("A", func(c *jetstream.StreamConfig) { c.MaxMsgSize = 400 })
		big := b.record("a1", 2)
		big.Data = []byte(strings.Repeat("reading ", 100))
		if err := s.Append(b.ctx(), b.record("a1", 1), big, b.record("a1", 3)); err != nil {
			t.Fatal(err)
		}
		poll(t, "a gap record tells of it", func() bool { return s.Streams()[0].Dropped[GapRefused] == 1 })
		b.stop()
		q, err := readQuarantine(b.dir, b.options.Key)
		if err != nil || len(q) != 1 {
			t.Fatalf("set aside: %d, %v", len(q), err)
		}
		was := s.SetAside()
		if now := b.start().SetAside(); was != 1 || now != 1 { // without being asked it stays
			t.Errorf("set aside: %d, after another start %d, want 1", was, now)
		}
		b.expect("A", "a1 1", "a1 3")
		if err := AskPutBack(b.dir); !errors.Is(err, ErrLocked) {
			t.Errorf("AskPutBack beside a daemon: %v, want ErrLocked", err)
		}
		b.add("a1", 1, 1)
		b.stop()
		file := filepath.Join(b.dir, "store", "quarantine", "A")
		line, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := AskPutBack(b.dir); err != nil {
			t.Fatal(err)
		}
		check := func(when string) {
			t.Helper()
			b.expect("A", "a1 1", "a1 3", "a1 1", string(big.Data))
			all := b.captured("A")
			last := all[len(all)-1]
			if id, err := q[0].id(); err != nil || last.ID != id || !strings.Contains(q[0].Header, last.Header.Get(HeaderTime)) || !strings.Contains(last.Header.Get(HeaderPutBack), "maximum") {
				t.Errorf("%s: put back as %v, %v, %v, want %v", when, last.ID, last.Header, err, id)
			}
			if st := b.s.Streams()[0]; st.Off != 0 || st.Stored != 5 || st.Waiting != 4 {
				t.Errorf("%s: counted %+v, want 5 stored, one of them twice, 4 waiting", when, st.StreamCounters)
			}
			if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s: the quarantine still has it: %v", when, err)
			}
			if n := b.s.SetAside(); n != 0 {
				t.Errorf("%s: %d are set aside still", when, n)
			}
			if _, err := os.Stat(filepath.Join(b.dir, "store", putBackMark)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s: it is still asked for: %v", when, err)
			}
		}
		b.start()
		check("the start that it was asked of")
		// As a crash leaves it between the journal and the quarantine.
		b.kill()
		if err := errors.Join(os.WriteFile(file, line, 0o600), os.WriteFile(filepath.Join(b.dir, "store", putBackMark), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		b.start()
		check("the start after a crash")
		b.stop()
		b.start()
		check("another start")
		b.stop()
	}
}

// TestPutBackOfWhatStays asks for what cannot be put back: it stays, and is told why; what can be is put back when its stream is there.
func TestPutBackOfWhatStays(t *testing.T) {
	b := newBed(t)
	b.start()
	b.add("b1", 1, 2)
	b.stop()
	b.open() // no server: what comes stays in the journal
	b.add("b1", 1, 3)
	b.crash()
	b.loseStream("B")
	streams := b.options.Streams
	b.options.Streams = streams[:1]
	delete(b.options.Sources, "b1")
	b.start()
	b.stop()
	if err := AskPutBack(b.dir); err != nil {
		t.Fatal(err)
	}
	b.start()
	b.stop()
	q, err := readQuarantine(b.dir, "")
	if err != nil || len(q) != 4 {
		t.Fatalf("without its stream %d records stay, %v, want 4", len(q), err)
	}
	b.options.Streams = streams
	b.options.Sources["b1"] = "B"
	if err := AskPutBack(b.dir); err != nil {
		t.Fatal(err)
	}
	s := b.start()
	b.expect("B", "b1 1", "b1 2", "b1 3")
	if st := s.Streams()[1]; st.Off != 0 {
		t.Errorf("counted %+v", st.StreamCounters)
	}
	if q, err := readQuarantine(b.dir, ""); err != nil || len(q) != 1 || q[0].Stays() == "" {
		t.Errorf("%d records stay, %v, want the epoch record alone: %+v", len(q), err, q)
	}
}

// TestTakenOutAlone takes one record out of a file of the quarantine. Another stays, and so does a line that cannot be read.
func TestTakenOutAlone(t *testing.T) {
	q := quarantine{dir: t.TempDir(), files: map[string]*quarantineFile{}}
	path := filepath.Join(q.dir, "A")
	lines := map[Position]string{}
	for _, at := range []Position{1, 2} {
		line, err := q.line(Quarantined{Stream: "A", Sequence: at})
		if err != nil {
			t.Fatal(err)
		}
		lines[at] = string(line) + "\n"
	}
	if err := os.WriteFile(path, []byte(lines[1]+"{\"stream\": torn\n"+lines[2]), 0o600); err != nil {
		t.Fatal(err)
	}
	all, err := q.all()
	if err != nil || len(all) != 2 {
		t.Fatalf("read %d records, %v, want 2", len(all), err)
	}
	if err := q.keep(all, func(r Quarantined) bool { return r.Sequence != 1 }); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "{\"stream\": torn\n"+lines[2] {
		t.Errorf("the file is %q, %v, want the line that cannot be read and record 2", got, err)
	}
}
