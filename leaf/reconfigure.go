package leaf

import (
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// RestartNeeded returns the keys in which two configurations differ that a running server cannot take over.
func RestartNeeded(have, want Options) []string {
	var keys []string
	add := func(key string, differ bool) {
		if differ {
			keys = append(keys, key)
		}
	}
	h, w := have.Apps.limited(), want.Apps.limited()
	add("leaf", have.Config != want.Config)
	add("apps.websocket", h.Websocket != w.Websocket)
	add("apps.origins", !reflect.DeepEqual(h.Origins, w.Origins))
	add("apps.tls", h.TLS != w.TLS)
	add("apps.users", (len(h.Users) == 0) != (len(w.Users) == 0)) // whether a user is needed at all
	add("apps.max_file", (h.MaxFile == 0) != (w.MaxFile == 0))
	return keys
}

// Reconfigure makes the server run with other options, as far as RestartNeeded says that it can; the others stay as they are. Connections of
// users who are still allowed go on, and so do the links to hubs that stay the same. On an error, as for a credentials file that is not there,
// everything stays as it is.
func (s *Server) Reconfigure(o Options) error {
	s.reload.Lock()
	defer s.reload.Unlock()
	old := *s.options()
	next := old
	next.Hub, next.Append = o.Hub, o.Append
	next.Apps = o.Apps.limited()
	next.Apps.Websocket, next.Apps.Origins, next.Apps.TLS = old.Apps.Websocket, old.Apps.Origins, old.Apps.TLS
	if (len(next.Apps.Users) == 0) != (len(old.Apps.Users) == 0) {
		next.Apps.Users = old.Apps.Users
	}
	if (next.Apps.MaxFile == 0) != (old.Apps.MaxFile == 0) {
		next.Apps.MaxFile = old.Apps.MaxFile
	}
	files := next.Apps.TLS.Cert != "" || next.Hub.NKey != "" || next.Hub.TLS.set() || next.Apps.Hub.NKey != "" || next.Apps.Hub.TLS.set()
	was, is := old, next
	was.Owner, is.Owner = nil, nil            // functions cannot be compared, and this one stays
	if !files && reflect.DeepEqual(was, is) { // what is in files may have changed
		return nil
	}
	s.opts.Store(&next)
	if !reflect.DeepEqual(old.Hub, next.Hub) {
		s.step(1) // a dial that hangs belongs to the old one
	}
	if err := s.reloadAll(); err != nil {
		s.opts.Store(&old)
		if !reflect.DeepEqual(old.Hub, next.Hub) {
			s.step(-1)
		}
		return errors.Join(fmt.Errorf("change the embedded server: %w", err), s.reloadAll())
	}
	s.mu.Lock()
	want := s.want
	s.mu.Unlock()
	if hub := len(next.Hub.URLs) > 0; !reflect.DeepEqual(old.Hub, next.Hub) {
		s.link.enable(want && hub)
		s.link.configure(hub)
	}
	return nil
}

func (s *Server) step(n int) {
	s.mu.Lock()
	s.generation += n
	s.mu.Unlock()
}

// reloadAll tells the server its options as they are now. reload is held.
func (s *Server) reloadAll() error {
	s.mu.Lock()
	on := s.want && !s.resting
	s.mu.Unlock()
	remotes, err := s.remotes(on)
	if err != nil {
		return err
	}
	err = s.patiently(remotes)
	if errors.Is(err, server.ErrConfigReloadNotSupported) {
		// A remote was changed in what cannot be: take it away first.
		if err = s.patiently(nil); err == nil {
			s.note(false, false)
			err = s.patiently(remotes)
		}
	}
	if err != nil {
		return err
	}
	s.note(on, len(remotes) > 0)
	return nil
}

// patiently reloads the options; while a dial is under way the server puts that off.
func (s *Server) patiently(remotes []*server.RemoteLeafOpts) error {
	const pause = 100 * time.Millisecond
	for begun := time.Now(); ; {
		err := s.reloadOptions(remotes)
		if !busy(err) || time.Since(begun) > dialTimeout+time.Second {
			return err
		}
		time.Sleep(pause)
	}
}
