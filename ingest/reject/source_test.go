package reject

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-edge/holdfast/ingest"
	"github.com/holdfast-edge/holdfast/ingest/ingesttest"
)

func newSource(cfg Config) *Source { return New("rejects", cfg, slog.New(slog.DiscardHandler)) }

func TestSource(t *testing.T) {
	ingesttest.Run(t, func(t *testing.T) ingesttest.Device {
		s := newSource(Config{PerMinute: 1000, Sample: 512})
		return ingesttest.Device{Source: s, Send: func(payload string) {
			s.Put(ingest.Reject{Source: "gps", Reason: "noise", Data: []byte(payload), Size: len(payload), Time: time.Now()})
		}}
	})
}

// TestSamplesAreLimited floods with rejects of two reasons: each has its share, and the next sample tells of those left out.
func TestSamplesAreLimited(t *testing.T) {
	s := newSource(Config{PerMinute: 3, Sample: 4})
	at := time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC)
	long := bytes.Repeat([]byte("x"), 100)
	for i := range 50 {
		s.Put(ingest.Reject{Source: "gps", Reason: "noise", Data: long, Size: 1000, Time: at.Add(time.Duration(i) * time.Millisecond)})
	}
	s.Put(ingest.Reject{Source: "gps", Reason: "bad checksum", Detail: "has 2A,\nwant 2B", Data: []byte("ab"), Size: 2, Time: at})
	s.Put(ingest.Reject{Source: "co2", Reason: "noise", Data: []byte("c"), Size: 1, Time: at})
	s.Put(ingest.Reject{Source: "gps", Reason: "noise", Data: long, Size: 7, Time: at.Add(21 * time.Second)})
	s.Put(ingest.Reject{Source: "gps", Reason: "noise", Data: long, Size: 7, Time: at.Add(-time.Hour)}) // a clock that was set back
	long[0] = 'y'
	var got []string
	done := make(chan struct{})
	ctx, stop := context.WithCancel(t.Context())
	go func() {
		defer close(done)
		_ = s.Run(ctx, func(_ context.Context, batch ...ingest.Reading) error {
			for _, r := range batch {
				got = append(got, strings.Join([]string{r.Tail, string(r.Data), r.Header[HeaderReason], r.Header[HeaderSize], r.Header[HeaderSkipped]}, "|"))
			}
			return nil
		})
	}()
	stop()
	<-done
	want := []string{
		"gps|xxxx|noise|1000|", "gps|xxxx|noise|1000|", "gps|xxxx|noise|1000|", "gps|ab|bad checksum: has 2A,?want 2B|2|", "co2|c|noise|1|", "gps|xxxx|noise|7|47",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("samples\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestConfigValidate(t *testing.T) {
	var c Config
	c.SetDefaults()
	for _, tc := range []struct {
		cfg  Config
		want string
	}{{c, ""}, {Config{}, "per_minute sample"}, {Config{PerMinute: 1e9, Sample: 1 << 30}, "per_minute sample"}} {
		var keys []string
		tc.cfg.Validate(func(key, problem, remedy string) { keys = append(keys, key) })
		if got := strings.Join(keys, " "); got != tc.want {
			t.Errorf("faults of %+v: %q, want %q", tc.cfg, got, tc.want)
		}
	}
}
