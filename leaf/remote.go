package leaf

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

const (
	lookInterval  = time.Second           // the link's state is looked at this often at least
	closeLook     = 20 * time.Millisecond // and this often after a sign of change
	closeLooks    = 25
	retryInterval = 5 * time.Second // between attempts to apply what Enable could not
)

// Enable switches the link to the hub on or off and returns when the server has been told; it does not wait for the link. On an error,
// as for a missing credentials file, the link's state says so too, and Enable(true) is tried again every few seconds until
// Enable(false). Without a hub in the configuration it does nothing. The link of local applications goes with it.
func (s *Server) Enable(on bool) error {
	s.mu.Lock()
	s.want, s.resting = on, false
	s.mu.Unlock()
	if len(s.options().Hub.URLs) > 0 {
		s.link.enable(on)
	}
	return s.apply()
}

// Redial hangs up and dials anew, at another of the hub's addresses where there are several. It does nothing while the link is off.
func (s *Server) Redial() error {
	s.mu.Lock()
	on := s.want
	s.mu.Unlock()
	if !on || len(s.options().Hub.URLs) == 0 {
		return nil
	}
	return s.renew()
}

// renew makes the link anew, as one that the server has not known: whatever it remembers of the old one, a dial that hangs or one that it has
// forgotten to make, does not count.
func (s *Server) renew() error {
	s.reload.Lock()
	defer s.reload.Unlock()
	s.mu.Lock()
	s.generation++
	want := s.want
	s.mu.Unlock()
	if err := s.reloadWith(want); err != nil {
		return fmt.Errorf("make the link to the hub anew: %w", err)
	}
	s.note(want, true)
	return nil
}

// refresh has the server read the files of the hub section again, for the next connection.
func (s *Server) refresh() error {
	s.reload.Lock()
	defer s.reload.Unlock()
	s.mu.Lock()
	have, present := s.have, s.present
	s.mu.Unlock()
	if !present {
		return nil
	}
	return s.reloadWith(have)
}

// rest stops dialling, or goes on, while the link stays wanted.
func (s *Server) rest(on bool) {
	s.mu.Lock()
	s.resting = on && s.want
	s.mu.Unlock()
	_ = s.apply() // the link's state tells of an error, and it is applied again
}

// apply tells the server what is wanted. A dial that is still under way delays that: then it is left to the supervisor.
func (s *Server) apply() error {
	s.mu.Lock()
	want, have := s.want && !s.resting, s.have
	s.mu.Unlock()
	if want == have || len(s.options().Hub.URLs)+len(s.options().Apps.Hub.URLs) == 0 {
		return nil
	}
	err := s.tell(want)
	if errors.Is(err, errBusy) {
		return nil
	}
	if err != nil {
		s.link.refuse(problem{reason: ReasonLocal, cause: err.Error(), remedy: "correct the hub section or the file; it is tried again every few seconds"})
		return err
	}
	s.link.retract()
	return nil
}

// errBusy means that the server still dials for the remote that is to be enabled.
var errBusy = errors.New("a dial is still under way")

func busy(err error) bool {
	return err != nil && strings.Contains(err.Error(), "at the moment, try again")
}

// tell reloads the server's options with the link on or off.
func (s *Server) tell(on bool) error {
	s.reload.Lock()
	defer s.reload.Unlock()
	s.mu.Lock()
	present := s.present
	s.mu.Unlock()
	if !on && !present {
		return nil
	}
	err := s.reloadWith(on)
	if err != nil && present && errors.Is(err, server.ErrConfigReloadNotSupported) {
		// The remote was changed, as by a new nkey: take it away first.
		if err = s.reloadOptions(nil); err == nil {
			s.note(false, false)
			err = s.reloadWith(on)
		}
	}
	if err != nil {
		if busy(err) {
			return errBusy
		}
		return fmt.Errorf("switch link to the hub: %w", err)
	}
	s.note(on, true)
	return nil
}

func (s *Server) reloadWith(on bool) error {
	files := s.options().Hub.fingerprint() // before they are read
	remotes, err := s.remotes(on)
	if err != nil {
		return err
	}
	if err := s.reloadOptions(remotes); err != nil {
		return err
	}
	s.mu.Lock()
	changed := s.files != files
	s.files = files
	s.mu.Unlock()
	if changed {
		s.link.renewed()
	}
	return nil
}

func (s *Server) reloadOptions(remotes []*server.RemoteLeafOpts) error {
	o, err := s.serverOptions(remotes)
	if err != nil {
		return err
	}
	return s.srv.ReloadOptions(o)
}

func (s *Server) note(have, present bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.have, s.present = have, present
}

// supervise keeps the link's state and applies what Enable left, until ctx ends.
func (s *Server) supervise(ctx context.Context) {
	tick := time.NewTicker(lookInterval)
	defer tick.Stop()
	closely := time.NewTimer(0)
	defer closely.Stop()
	looks, tried := 0, time.Now()
	care := &tender{server: s, free: make(chan bool, 1)}
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.link.heard:
			looks = closeLooks
			closely.Reset(0)
		case <-closely.C:
			s.look()
			if looks--; looks > 0 {
				closely.Reset(closeLook)
			}
			if s.link.puzzled() {
				s.watch.Add(1)
				go func() {
					defer s.watch.Done()
					p, _ := s.examine(ctx) // nothing found is a result, too
					s.link.learn(p)
				}()
			}
		case <-tick.C:
			s.look()
			care.tend(ctx, time.Now())
			s.mu.Lock()
			pending := (s.want && !s.resting) != s.have
			s.mu.Unlock()
			if pending && (time.Since(tried) >= retryInterval || s.link.State() != LinkRefused) {
				tried = time.Now()
				_ = s.apply() // the link's state tells of an error
			}
		}
	}
}

// look compares the link's state with the server's own list of connections.
func (s *Server) look() {
	s.link.settle(s.connections())
}

// connections returns the server's leaf connections: one, or none.
func (s *Server) connections() []*server.LeafInfo {
	if s.srv.NumLeafNodes() == 0 {
		return nil
	}
	z, err := s.srv.Leafz(&server.LeafzOptions{Account: AccountCapture})
	if err != nil {
		return nil
	}
	return z.Leafs
}

// AppLink tells whether local applications have a link of their own to the hub, and whether it is up.
func (s *Server) AppLink() (configured, up bool) {
	if len(s.options().Apps.Hub.URLs) == 0 {
		return false, false
	}
	z, err := s.srv.Leafz(&server.LeafzOptions{Account: AccountApp})
	return true, err == nil && len(z.Leafs) > 0
}

// Link returns the state of the link to the hub.
func (s *Server) Link() Link {
	l := s.link.current()
	if l.State == LinkUp {
		for _, c := range s.connections() {
			if d, err := time.ParseDuration(c.RTT); err == nil {
				l.RTT = d
			}
		}
	}
	return l
}

// Changed returns a channel that holds a value when the link's State or Reason has changed since the last receive. For one receiver.
func (s *Server) Changed() <-chan struct{} { return s.link.changed }
