package systemd

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// TestExtendWhileTheStartWorks: a start that reads on is given time, one that is stuck is not, nor one that reads for ever.
func TestExtendWhileTheStartWorks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var said []time.Duration
		n := &Notifier{
			log: slog.New(slog.DiscardHandler),
			send: func(state string) (bool, error) {
				if state != "EXTEND_TIMEOUT_USEC=60000000" {
					t.Errorf("message = %q", state)
				}
				said = append(said, time.Since(start))
				return true, nil
			},
			work: func() effort {
				at := time.Since(start)
				switch {
				case at < 35*time.Second:
					return effort{disk: int64(at / time.Second)}
				case at < 95*time.Second: // stuck
					return effort{disk: 35}
				}
				return effort{processor: at}
			},
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Hour)
		defer cancel()
		n.Extend(ctx)
		want := []time.Duration{10 * time.Second, 20 * time.Second, 30 * time.Second, 40 * time.Second, 100 * time.Second}
		if len(said) < 6 || !slices.Equal(said[:5], want) {
			t.Errorf("extended at %v, want %v first", said[:min(6, len(said))], want)
		}
		if last := said[len(said)-1]; last >= extendMost || last < extendMost-2*extendEvery {
			t.Errorf("extended last at %v, want for %v", last, extendMost)
		}
	})
}

// TestEffort: this test has used the processor, and goes on to.
func TestEffort(t *testing.T) {
	before := usedSoFar()
	for deadline := time.Now().Add(time.Minute); usedSoFar() == before && time.Now().Before(deadline); {
	}
	if usedSoFar() == before {
		t.Error("a process that works is not seen to")
	}
}
