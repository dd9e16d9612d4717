package mqtt

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-edge/holdfast/ingest"
)

// errRenewed is why a connection ends whose certificate was made with files that have changed.
var errRenewed = errors.New("the certificate was renewed")

// errDrained is why a connection ends on which messages had to be let go of.
var errDrained = errors.New("the queue has room again")

// maxKicks is how often the broker may close the connection within kickTime before somebody else is suspected.
const (
	maxKicks = 3
	kickTime = time.Minute
)

// connect keeps a connection to the broker until ctx ends.
func (s *Source) connect(ctx context.Context) {
	for ctx.Err() == nil {
		began := time.Now()
		err := s.once(ctx)
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errDrained) {
			s.log.Info("queue has room again, connecting anew for what was let go of")
			continue
		}
		if errors.Is(err, errRenewed) {
			s.log.Info("certificate files have changed, connecting anew with them")
			continue
		}
		s.settle(err, time.Since(began))
		if s.turn(err) {
			continue // each address has its chance before the pause
		}
		if s.failures.Wait(ctx) != nil {
			return
		}
	}
}

// turn chooses where the next connection goes: back to the first address when one was lost, else to the next of the list. It says
// whether there is one left that was not tried since the first.
func (s *Source) turn(err error) bool {
	var le *linkError
	if errors.As(err, &le) && le.stage == stageUse {
		s.addr = s.addrs[0]
		return false
	}
	at := slices.Index(s.addrs, s.addr) + 1
	s.addr = s.addrs[at%len(s.addrs)]
	return at < len(s.addrs)
}

// once connects, subscribes and returns why the connection ended.
func (s *Source) once(ctx context.Context) error {
	l, err := s.open(ctx)
	if err != nil {
		return err
	}
	defer l.close()
	s.current.Store(l)
	defer s.current.Store(nil)
	s.queue.wake() // what came already may have filled the queue
	if !l.guard.sessionPresent() {
		s.newSession(l)
	}
	refused, weak, err := s.subscribe(ctx, l)
	if err != nil {
		return &linkError{stageUse, l.reason(err)}
	}
	s.log.Info("connected to broker", "broker", s.addr.url, "client", s.client, "resumed", l.guard.sessionPresent())
	return s.hold(ctx, l, refused, weak)
}

// newSession is called when the broker has no session of ours. Its packet ids begin anew, so nothing that is noted by packet
// id has a meaning any more.
// Nothing can have come yet: there is no subscription.
func (s *Source) newSession(l *link) {
	old := s.session.last
	if old.Client == s.client && old.Broker == s.addr.url && !s.moved {
		s.forgotten.Add(1)
		s.log.Warn("broker has lost our session: messages that it had queued for us are gone; turn on its persistence", "client", s.client)
	}
	l.session.Store(s.delivered.begin())
}

// hold watches a connection until it ends.
func (s *Source) hold(ctx context.Context, l *link, refused, weak []string) error {
	retry := time.NewTicker(s.timing.retry)
	defer retry.Stop()
	look := time.NewTicker(s.lookInterval())
	defer look.Stop()
	stamp := s.cfg.TLS.stamp()
	s.heard.Store(int64(time.Since(s.began)))
	s.show(refused, weak)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-l.lost:
			return &linkError{stageUse, err}
		case <-look.C:
			s.show(refused, weak)
		case <-retry.C:
			if s.renewed(stamp) {
				return errRenewed
			}
			if len(refused) == 0 {
				continue
			}
			still, _, err := s.ask(ctx, l, refused)
			if err == nil {
				refused = still
				s.show(refused, weak)
			}
		}
	}
}

// renewed says whether the files of the certificate have changed since, and can be used.
func (s *Source) renewed(stamp string) bool {
	if !s.addr.secure || s.cfg.TLS.stamp() == stamp {
		return false
	}
	_, err := s.cfg.TLS.client(s.addr.host)
	return err == nil
}

// lookInterval is how often hold looks for silence.
func (s *Source) lookInterval() time.Duration {
	if s.cfg.Silence > 0 {
		return max(s.cfg.Silence/4, time.Millisecond)
	}
	return time.Hour
}

// show sets the state of a source that is connected.
func (s *Source) show(refused, weak []string) {
	quiet := time.Since(s.began) - time.Duration(s.heard.Load())
	switch {
	case len(refused) > 0:
		s.state.Set(ingest.Refused, "subscription refused: the broker does not allow "+s.who()+" to read "+quoted(refused),
			"allow it in the broker's access rules, or remove the filter from the configuration")
	case s.cfg.Silence > 0 && quiet >= s.cfg.Silence:
		s.state.Set(ingest.Silent, fmt.Sprintf("connected, and no message for more than %v", s.cfg.Silence),
			"check that the devices send, and that the topics in the configuration are theirs")
	case len(weak) > 0:
		s.state.Set(ingest.Running, "the broker grants "+quoted(weak)+" with QoS 0 only: messages may be lost", "allow QoS 1 at the broker")
	default:
		s.state.Set(ingest.Running, "", "")
	}
}

func (s *Source) who() string {
	if s.cfg.User == "" {
		return "anonymous clients"
	}
	return fmt.Sprintf("the user %q", s.cfg.User)
}

func quoted(filters []string) string {
	return `"` + strings.Join(filters, `", "`) + `"`
}

// settle notes why there is no connection, which lasted this long, and how long to wait before the next.
func (s *Source) settle(err error, lasted time.Duration) {
	st := s.explain(err)
	var le *linkError
	up := errors.As(err, &le) && le.stage == stageUse
	if up && isEnd(le.err) {
		s.kicks = append(s.kicks, time.Now())
	}
	for len(s.kicks) > 0 && time.Since(s.kicks[0]) > kickTime {
		s.kicks = s.kicks[1:]
	}
	// Two clients with one client id throw each other out as fast as they come: then the pause must grow.
	if up && (len(s.kicks) < 2 || lasted >= s.timing.settled) {
		s.failures.Reset()
	}
	if up && len(s.kicks) > maxKicks {
		st = ingest.State{Kind: ingest.Waiting,
			Cause:  fmt.Sprintf("the broker closed the connection %d times within %v: another client seems to use the client id %q", len(s.kicks), kickTime, s.client),
			Remedy: "give each client an id of its own; the broker's log names the other one"}
		s.log.Warn("client id is used by another client too, it seems", "client", s.client, "closed", len(s.kicks))
	}
	s.state.Set(st.Kind, st.Cause, st.Remedy)
	if n := s.failures.Fails(); n == 0 || (n+1)%10 == 0 {
		s.log.Warn("no connection to broker", "err", err, "cause", st.Cause, "remedy", st.Remedy, "fails", n+1, slog.Duration("lasted", lasted))
	}
}
