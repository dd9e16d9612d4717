package blocks

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// TestRaise raises streams of all kinds, and lets the server go on with them: everything is still there, and what comes next comes above.
func TestRaise(t *testing.T) {
	t.Parallel()
	const to = 1 << 18
	for _, tt := range []struct {
		name   string
		key    Key
		config jetstream.StreamConfig
		do     func(b *bed) error // with 100 messages in the stream
		left   uint64
	}{
		{name: "plain", left: 100},
		{name: "compressed", config: jetstream.StreamConfig{Compression: jetstream.S2Compression}, left: 100},
		{name: "aes", key: Key{Secret: "0123456789abcdef", Cipher: "aes"}, left: 100},
		{name: "chacha", key: Key{Secret: "0123456789abcdef", Cipher: "chacha"}, left: 100},
		{name: "one of a subject", config: jetstream.StreamConfig{MaxMsgsPerSubject: 1, AllowDirect: true}, left: 10},
		{name: "all that fits", config: jetstream.StreamConfig{MaxMsgs: 100, Discard: jetstream.DiscardNew}, left: 100},
		{name: "with times to live", config: jetstream.StreamConfig{AllowMsgTTL: true, AllowMsgSchedules: true, SubjectDeleteMarkerTTL: time.Hour}, left: 100},
		{name: "purged", do: func(b *bed) error {
			s, err := b.js.Stream(b.ctx(), "S")
			return orElse(err, func() error { return s.Purge(b.ctx()) })
		}},
		{name: "its end removed", do: func(b *bed) error {
			s, err := b.js.Stream(b.ctx(), "S")
			return orElse(err, func() error { return s.DeleteMsg(b.ctx(), 100) })
		}, left: 99},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBed(t)
			b.key = tt.key
			b.start()
			tt.config.Name, tt.config.Subjects = "S", []string{"data.>"}
			if _, err := b.js.CreateStream(b.ctx(), tt.config); err != nil {
				t.Fatal(err)
			}
			for i := range 100 {
				if _, err := b.js.Publish(b.ctx(), fmt.Sprintf("data.%d", i%10), []byte("text")); err != nil {
					t.Fatal(err)
				}
			}
			if tt.do != nil {
				if err := tt.do(b); err != nil {
					t.Fatal(err)
				}
			}
			for _, round := range []uint64{1, 2, 2} { // the last does nothing
				b.stop()
				raised, err := b.stream().Raise(round*to, b.hands().Write)
				if err != nil {
					t.Fatal(err)
				}
				if want := b.last < round*to; raised != want {
					t.Errorf("Raise(%d) of a stream at %d = %v", round*to, b.last, raised)
				}
				b.start()
				st := b.state()
				if st.Msgs != tt.left || raised && st.LastSeq != round*to {
					t.Fatalf("raised to %d the stream has %d messages and ends at %d, want %d of them", round*to, st.Msgs, st.LastSeq, tt.left)
				}
				b.last = st.LastSeq
			}
			if tt.config.MaxMsgs > 0 {
				return // full
			}
			ack, err := b.js.Publish(b.ctx(), "data.3", []byte("new"))
			if err != nil || ack.Sequence != 2*to+1 {
				t.Fatalf("the next message got %+v, %v", ack, err)
			}
			s, err := b.js.Stream(b.ctx(), "S")
			if err != nil {
				t.Fatal(err)
			}
			if m, err := s.GetLastMsgForSubject(b.ctx(), "data.3"); err != nil || string(m.Data) != "new" {
				t.Errorf("it is %v, %v", m, err)
			}
			if tt.left > 0 {
				if m, err := s.GetLastMsgForSubject(b.ctx(), "data.8"); err != nil || string(m.Data) != "text" {
					t.Errorf("what was there is %v, %v", m, err)
				}
			}
			if r := b.walk(); r.Damaged() {
				t.Errorf("damaged: %+v", r.Blocks)
			}
		})
	}
}

func orElse(err error, do func() error) error {
	if err != nil {
		return err
	}
	return do()
}

// TestRaiseLeavesAlone: mirrors and streams in memory have no sequences of their own that could come back.
func TestRaiseLeavesAlone(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.start()
	b.fill(10, 10, jetstream.NoCompression)
	for _, c := range []jetstream.StreamConfig{
		{Name: "MIRROR", Mirror: &jetstream.StreamSource{Name: "S"}}, {Name: "MEMORY", Subjects: []string{"m"}, Storage: jetstream.MemoryStorage},
	} {
		if _, err := b.js.CreateStream(b.ctx(), c); err != nil {
			t.Fatal(err)
		}
	}
	b.stop()
	for _, name := range []string{"MIRROR", "MEMORY", "GONE"} {
		s := b.stream()
		s.Dir, s.Name = s.Dir[:len(s.Dir)-1]+name, name
		if raised, err := s.Raise(1000, func(string, []byte) error { return os.ErrPermission }); raised || err != nil {
			t.Errorf("Raise of %s = %v, %v, want it left alone", name, raised, err)
		}
	}
}
