package storage

import (
	"errors"
	"fmt"
	"sync"
	"testing"
)

func TestSourceAddedWhileOthersWrite(t *testing.T) {
	b := newBed(t)
	s := b.start()
	var wg sync.WaitGroup
	stop := make(chan struct{})
	var stored uint64
	wg.Go(func() {
		for seq := uint64(1); ; seq++ {
			select {
			case <-stop:
				return
			default:
			}
			if err := s.Append(b.ctx(), Record{Stream: "A", Source: "a1", Seq: seq, Data: []byte("x")}); err != nil {
				t.Error(err)
				return
			}
			stored = seq
		}
	})
	late := Record{Stream: "A", Source: "late", Seq: 1, Data: []byte("y")}
	if err := s.Append(b.ctx(), late); !errors.Is(err, ErrInvalid) {
		t.Errorf("record of a source that is not there yet: %v, want invalid", err)
	}
	for range 2 {
		if err := s.AddSource(b.ctx(), "late", "A"); err != nil {
			t.Fatal(err)
		}
	}
	for seq := uint64(1); seq <= 20; seq++ {
		late.Seq = seq
		if err := s.Append(b.ctx(), late); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	wg.Wait()
	for _, name := range []string{"late into B", "bad_stream", "_gap"} {
		stream := map[string]string{"late into B": "B", "bad_stream": "NONE", "_gap": "A"}[name]
		source := map[string]string{"late into B": "late"}[name]
		if source == "" {
			source = name
		}
		if err := s.AddSource(b.ctx(), source, stream); err == nil {
			t.Errorf("%s was added", name)
		}
	}
	b.stop()
	b.options.Sources["late"] = "A"
	s = b.start()
	if epoch, seq := s.Last("late"); epoch != s.Epoch()-1 || seq != 20 {
		t.Errorf("newest record of the added source after a restart: epoch %d, %d, want %d, 20", epoch, seq, s.Epoch()-1)
	}
	if _, seq := s.Last("a1"); seq != stored {
		t.Errorf("newest record of a1: %d, want %d", seq, stored)
	}
}

func TestLimitsChangedWhileOthersWrite(t *testing.T) {
	b := newBed(t)
	s := b.start()
	put := func(from, n uint64) {
		t.Helper()
		for seq := from; seq < from+n; seq++ {
			if err := s.Append(b.ctx(), Record{Stream: "A", Source: "a1", Seq: seq, Data: make([]byte, 1000)}); err != nil {
				t.Fatal(err)
			}
		}
	}
	put(1, 300)
	small := StreamConfig{Name: "A", MaxBytes: 1 << 20, MaxMsgs: 100, MaxMsgSize: 2000, WhenFull: DropOldest}
	if err := s.SetLimits(b.ctx(), []StreamConfig{small, {Name: "LATER"}}, nil); err != nil {
		t.Fatal(err)
	}
	put(301, 50)
	poll(t, "the lower limit holds", func() bool { return s.Streams()[0].Messages <= 110 })
	if n := s.Streams()[0].Dropped[GapDropOldest]; n < 200 {
		t.Errorf("dropped %v, want about 250", s.Streams()[0].Dropped)
	}
	if err := s.Append(b.ctx(), Record{Stream: "A", Source: "a1", Seq: 351, Data: make([]byte, 2001)}); !errors.Is(err, ErrInvalid) {
		t.Errorf("record above the new max_msg_size: %v, want invalid", err)
	}
	small.WhenFull = Refuse
	if err := s.SetLimits(b.ctx(), []StreamConfig{small}, nil); err != nil {
		t.Fatal(err)
	}
	var full error
	for seq := uint64(351); seq < 500 && full == nil; seq++ {
		full = s.Append(b.ctx(), Record{Stream: "A", Source: "a1", Seq: seq, Data: []byte(fmt.Sprint(seq))})
	}
	if !errors.Is(full, ErrFull) {
		t.Errorf("after when_full became refuse: %v, want full", full)
	}
}
