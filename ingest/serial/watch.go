package serial

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/holdfast-edge/holdfast/ingest"
)

// watch finds out that an open port is of no use: dead, replaced, or silent.
type watch struct {
	source *Source
	tick   time.Duration

	looked time.Time // when the path was last compared with the device
	frame  time.Time // when the last message came, or the port was opened
	bytes  int64     // that came since
	silent bool
	poked  time.Time // when the device was last poked

	fresh bool // bytes came, and the framer was not told of a silence since

	empty int       // reads without bytes and without waiting, in a row
	since time.Time // when the first of them was
}

func newWatch(s *Source, silent bool) *watch {
	now := time.Now()
	w := &watch{source: s, tick: tick, looked: now, frame: now, silent: silent}
	for _, d := range []time.Duration{s.cfg.Silence, s.cfg.Reopen} {
		if d > 0 {
			w.tick = min(w.tick, d)
		}
	}
	return w
}

// wait returns how long a read may take: a framer that goes by silences is told of one soon, but only once.
func (w *watch) wait() time.Duration {
	if w.fresh && w.source.pause > 0 {
		return min(w.tick, w.source.pause)
	}
	return w.tick
}

// heard takes note of n bytes and the good frames they completed.
func (w *watch) heard(good, n int, now time.Time) {
	w.empty = 0
	w.fresh = w.fresh || n > 0
	w.bytes += int64(n)
	if good == 0 {
		return
	}
	w.frame, w.bytes = now, 0
	if w.silent {
		w.silent = false
		w.source.cond.Set(ingest.Running, "", "")
	}
}

// dead counts a read that returned nothing, and says whether they come so fast that the port is dead. Without this, some drivers
// keep a reader of a pulled-out device busy for ever.
func (w *watch) dead(now time.Time) bool {
	if w.empty == 0 {
		w.since = now
	}
	w.empty++
	if w.empty <= deadReads {
		return false
	}
	if now.Sub(w.since) <= deadWithin {
		return true
	}
	w.empty = 0
	return false
}

// look compares path and device, and the time with the configured silence.
func (w *watch) look(dev device, now time.Time) error {
	if quiet := w.source.cfg.Silence; quiet > 0 && now.Sub(w.frame) >= quiet {
		w.silent = true
		cause := fmt.Sprintf("%s is open, and nothing came for %s", w.source.cfg.Port, quiet)
		remedy := "check the device's power, its cable, and which of its pins sends"
		if w.bytes > 0 {
			cause = fmt.Sprintf("%s gives bytes, and no message for %s", w.source.cfg.Port, quiet)
			remedy = "check baud, data bits, parity and frame type against the device's manual; the rejected counters say what is wrong"
		}
		w.source.cond.Set(ingest.Silent, cause, remedy)
		if now.Sub(w.poked) >= quiet {
			w.poked = now
			w.source.mu.Lock()
			m := w.source.mouth
			w.source.mu.Unlock()
			w.source.poke(m)
		}
	}
	if again := w.source.cfg.Reopen; again > 0 && now.Sub(w.frame) >= again {
		if w.source.cfg.Silence == 0 {
			w.source.cond.Set(ingest.Silent, fmt.Sprintf("%s is open, and no message came for %s", w.source.cfg.Port, again),
				"check the device's power and cable; the port is opened anew meanwhile")
		}
		w.source.log.Info("port is opened anew for its silence", slog.Duration("dur", again))
		return errSilent
	}
	if now.Sub(w.looked) < tick {
		return nil
	}
	w.looked = now
	return dev.Gone()
}
