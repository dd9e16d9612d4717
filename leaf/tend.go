package leaf

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"time"
)

const (
	// A server that neither dials nor has a connection was seen to stay so for ever, after a connection that was reset while it was made
	// (nats-server 2.15.3; #7615 tells of hours). It says something about every attempt, and the longest one takes dialTimeout and the wait before it.
	stuckAfter   = 20 * time.Second
	stuckRefused = 45 * time.Second // after some refusals the server waits 30 s

	filesInterval  = 5 * time.Second // between looks at the files of the hub section
	preferInterval = 5 * time.Minute // between attempts to go back to the first address
	preferSettled  = time.Minute     // not in so long after link-up
)

// tender keeps the link coming back. Used by the supervisor alone.
type tender struct {
	server *Server
	looked time.Time
	rested int       // attempts when the last rest began
	until  time.Time // of the rest
	asked  time.Time // for the first address
	free   chan bool // buffered 1: the answer
}

// tend is called every lookInterval.
func (t *tender) tend(ctx context.Context, now time.Time) {
	s := t.server
	s.meter.look(s.connections())
	s.mu.Lock()
	want := s.want
	s.mu.Unlock()
	if len(s.options().Hub.URLs) == 0 || !want {
		t.until = time.Time{}
		return
	}
	l := s.link.current()
	t.watchFiles(now, l)
	if l.State == LinkUp {
		t.preferFirst(ctx, now, l)
		return
	}
	attempts, sign := s.link.attempts()
	patience := stuckAfter
	if l.State == LinkRefused {
		patience = stuckRefused
	}
	switch {
	case !t.until.IsZero():
		if now.After(t.until) {
			t.until = time.Time{}
			s.rest(false)
			s.link.awake()
		}
	case now.Sub(sign) > patience:
		s.log.Warn("the server does not dial any more, making the link anew", "dur", now.Sub(sign).Round(time.Second))
		t.renew()
	case attempts > t.rested:
		if d := pause(l.State, now.Sub(l.Since)); d > 0 {
			t.rested, t.until = attempts, now.Add(d)
			s.rest(true)
		}
	}
}

func (t *tender) renew() {
	t.server.link.awake()
	if err := t.server.renew(); err != nil {
		t.server.log.Warn("the link cannot be made anew", "err", err)
	}
}

// pause returns how long not to dial after an attempt, beyond the second or two that the server waits: longer the longer there was no
// link, so that a fleet does not knock at a hub that is down or refuses it, and a metered link does not pay for it.
func pause(state LinkState, lasted time.Duration) time.Duration {
	var d time.Duration
	switch {
	case state == LinkRefused && lasted > time.Minute, lasted > 10*time.Minute:
		d = 8 * time.Second
	}
	if lasted > time.Hour {
		d = 30 * time.Second
	}
	if d == 0 {
		return 0
	}
	return d/2 + rand.N(d)
}

// watchFiles takes up new credentials, keys and certificates: from the next connection on, which is not hastened while one is good.
func (t *tender) watchFiles(now time.Time, l Link) {
	if now.Sub(t.looked) < filesInterval {
		return
	}
	t.looked = now
	t.server.mu.Lock()
	used := t.server.files
	t.server.mu.Unlock()
	if used == "" || used == t.server.options().Hub.fingerprint() {
		return
	}
	if l.State != LinkUp {
		t.server.log.Info("files of the hub section have changed, dialling with them")
		t.renew()
		return
	}
	if err := t.server.refresh(); err != nil {
		t.server.log.Warn("files of the hub section have changed and cannot be used; looked at again", "err", err)
		return
	}
	t.server.log.Info("files of the hub section have changed, the next connection uses them")
}

// fingerprint changes with the files of the section.
func (h Hub) fingerprint() string {
	text := ""
	for _, file := range []string{h.Credentials, h.NKey, h.TLS.CA, h.TLS.Cert, h.TLS.Key, h.Proxy.PasswordFile} {
		if file == "" {
			continue
		}
		if info, err := os.Stat(file); err == nil {
			text += fmt.Sprintf("%s %d %d\n", file, info.Size(), info.ModTime().UnixNano())
		} else {
			text += file + " gone\n"
		}
	}
	return text + "."
}

// preferFirst goes back to the first address when it takes connections again.
func (t *tender) preferFirst(ctx context.Context, now time.Time, l Link) {
	h := t.server.options().Hub
	if h.Prefer != PreferFirst || len(h.URLs) < 2 || h.Proxy.URL != "" {
		return
	}
	u, err := hubURL(h.URLs[0])
	if err != nil || l.Remote == "" || u.Host == l.Remote || now.Sub(l.Since) < preferSettled {
		return
	}
	select {
	case free := <-t.free:
		if free {
			t.server.log.Info("going back to the preferred hub", "hub", u.Host, "before", l.Remote)
			t.renew()
		}
		return
	default:
	}
	if now.Sub(t.asked) < preferInterval {
		return
	}
	t.asked = now
	t.server.watch.Go(func() {
		d := net.Dialer{Timeout: dialTimeout}
		conn, err := d.DialContext(ctx, "tcp", u.Host)
		if err == nil {
			_ = conn.Close() // nothing was sent
		}
		t.free <- err == nil // there is room: one answer is taken before the next question
	})
}
