// Package mqttserver lets MQTT devices connect straight to the gateway and acknowledges each message only after it is stored.
package mqttserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/holdfast-edge/holdfast/ingest"
	"github.com/holdfast-edge/holdfast/ingest/mqttserver/packet"
	"github.com/holdfast-edge/holdfast/ingest/seen"
	"github.com/holdfast-edge/holdfast/storage"
)

// Headers of records from clients, beside topic.Header.
const (
	HeaderQoS        = "Holdfast-QoS"    // "0" when the client asked for no acknowledgement: others may have been lost
	HeaderWill       = "Holdfast-Will"   // "1" on what the server said for a client that was lost
	HeaderClient     = "Holdfast-Client" // with Config.Identify, the client id, escaped like a topic
	HeaderUser       = "Holdfast-User"   // with Config.Identify, the user, escaped like a topic
	HeaderProperties = "Holdfast-MQTT"   // JSON of what a client of MQTT 5 says about its message, if anything
)

// Reasons under which messages count as rejected.
const (
	ReasonTopic     = "topic not valid"
	ReasonDenied    = "not allowed"
	ReasonTooLarge  = "message too large"
	ReasonQueueFull = "queue full" // wills only: others wait for room
)

// ringSlots is how many stored messages are remembered whose acknowledgement may not have reached the client, and slot 0.
const ringSlots = 1 << 16

// Options are what a Source is made of.
type Options struct {
	Name     string // of the source, unique on this leaf
	Config   Config
	StateDir string // existing or not, on the file system of the store, used by nobody else
	// Last returns the newest committed record of this source from earlier epochs. Run calls it once, before it listens. Nil:
	// there is none.
	Last func() (epoch, seq uint64)
	// Marks returns what the store's journal gave back for this source (storage.Store.Marks). Run calls it once. Nil: nothing.
	Marks func() []storage.Mark
	// Inherited returns a listener on a socket that was opened for this source under a name, the source's or with -tls behind it; nil, or a nil
	// listener: there is none, and the source listens on its address.
	Inherited func(name string) (net.Listener, error)
	Log       *slog.Logger
}

// Source is an MQTT server of versions 3.1.1 and 5. It implements ingest.Source and ingest.Commander.
//
//   - A message with QoS 1 or 2 is acknowledged, in order, after Deliver took it, or after it was refused and counted. While the
//     store takes nothing, nothing is acknowledged.
//   - What a client sends again after a lost connection or a restart, with DUP and in the session it had, is recognised when it is
//     stored, and only acknowledged. A client that begins a new session each time has no such memory to rely on.
//   - A client waits when too many of its messages wait, or when it does not take its answers; others do not.
//   - Nobody publishes or subscribes to anything that Config.Access does not allow, and never to a topic with a dollar in front.
//   - Messages are handed on to subscribers after they are stored. To clients the server sends QoS 1 at most.
//   - Sessions and subscriptions are on flash before a client is told that it has them. Retained messages, and what waits for
//     absent clients, are on flash after a stop, and after a crash as they were up to a minute before.
type Source struct {
	name   string
	cfg    Config
	dir    string
	last   func() (epoch, seq uint64)
	marks  func() []storage.Mark
	given  func(name string) (net.Listener, error)
	log    *slog.Logger
	state  *ingest.Condition
	tally  ingest.Tally
	users  *users
	certs  *certs
	saver  *saver
	intake *intake
	large  *semaphore.Weighted // who reads a large message

	patience time.Duration // how long a client may stop within a message

	began       time.Time
	heard       atomic.Int64 // when a message was stored last, in nanoseconds since began
	redelivered atomic.Uint64
	dropped     atomic.Uint64
	notRetained atomic.Uint64
	evicted     atomic.Uint64
	settled     chan []seen.Digest // acknowledgements that have reached their clients; never closed

	mu            sync.Mutex // guards the fields below; no file is read or written while it is held
	sessions      map[string]*session
	conns         map[*conn]bool // every connection; true: it has logged in
	pending       []*conn        // those that have not, oldest first
	connected     int            // sessions with a connection
	outgoing      int64          // bytes that wait for clients
	routes        map[string][]route
	retained      map[string]*kept
	retainedBytes int64
	retainedDirty bool
	gone          []string // ids of sessions whose files are to be removed
	takeovers     []takeover
	stopping      bool
	addrs         []string

	noteMu sync.Mutex // guards the fields below
	noted  string     // what was refused last
	notes  uint64
	noteAt time.Time
	logAt  time.Time

	// Run and what it calls own the fields below.
	loaded bool
	ring   *seen.Ring
	batch  []item // readings that Deliver did not take yet: they go first
}

var (
	_ ingest.Commander = (*Source)(nil)
	_ ingest.Stater    = (*Source)(nil)
	_ ingest.Counter   = (*Source)(nil)
)

// New returns a source that is not running. It fails when the configuration cannot work.
func New(o Options) (*Source, error) {
	var faults []string
	o.Config.Validate(func(key, problem, remedy string) {
		faults = append(faults, fmt.Sprintf("mqttserver.%s: %s: %s", key, problem, remedy))
	})
	if len(faults) > 0 {
		return nil, errors.New(strings.Join(faults, "\n"))
	}
	log := o.Log.With("source", o.Name)
	s := &Source{name: o.Name, cfg: o.Config, dir: o.StateDir, last: o.Last, marks: o.Marks, given: o.Inherited, log: log, state: ingest.NewCondition(log),
		users: newUsers(o.Config.Users), certs: &certs{cfg: o.Config.TLS}, intake: newIntake(o.Config.Queue),
		large: semaphore.NewWeighted(max(1, min(4, o.Config.Queue/o.Config.MaxMessage/2))), patience: patienceFor, began: time.Now(), settled: make(chan []seen.Digest, 16),
		sessions: map[string]*session{}, conns: map[*conn]bool{}, routes: map[string][]route{}, retained: map[string]*kept{}}
	s.saver = &saver{s: s, dir: filepath.Join(o.StateDir, "sessions")}
	s.ring = seen.NewRing(seen.NewFile(filepath.Join(o.StateDir, "delivered"), ringSlots, "mqttserver"), digestKey, func(f *seen.File, err error) {
		log.Warn("stored messages cannot be noted, a repeated one may be stored twice after a restart", "path", f.Path(), "err", err)
		if err := f.Drop(); err != nil {
			log.Warn("file of stored messages cannot be removed", "path", f.Path(), "err", err)
		}
	})
	return s, nil
}

// Name implements ingest.Source.
func (s *Source) Name() string { return s.name }

// State implements ingest.Stater.
func (s *Source) State() ingest.State { return s.state.State() }

// Counts implements ingest.Counter. Messages that were recognised as stored before are not counted as received again.
func (s *Source) Counts() ingest.Counts { return s.tally.Counts() }

// Addrs returns the addresses that are listened on, as host and port; none while there is no listener.
func (s *Source) Addrs() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.addrs...)
}

// Stats says more about a source.
type Stats struct {
	Connected   int    // clients at present
	Sessions    int    // those of absent clients included
	Waiting     int    // messages that wait for the store
	Outgoing    int64  // bytes that wait for clients
	Redelivered uint64 // messages that came again after they were stored, acknowledged and not stored again
	Dropped     uint64 // messages for clients that there was no room for
	NotRetained uint64 // messages that were stored and not retained, for lack of room
	Evicted     uint64 // connections closed before they logged in, to make room for others
	Notes       uint64 // refusals: logins, messages, subscriptions, faults of the protocol
}

// Stats is safe for concurrent use.
func (s *Source) Stats() Stats {
	s.noteMu.Lock()
	notes := s.notes
	s.noteMu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	return Stats{Connected: s.connected, Sessions: len(s.sessions), Waiting: s.intake.len(), Outgoing: s.outgoing, Redelivered: s.redelivered.Load(),
		Dropped: s.dropped.Load(), NotRetained: s.notRetained.Load(), Evicted: s.evicted.Load(), Notes: notes}
}

// Run implements ingest.Source.
func (s *Source) Run(ctx context.Context, deliver ingest.Deliver) error {
	s.state.Set(ingest.Starting, "", "")
	s.open()
	defer s.close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	wg.Go(func() { cancel(ingest.Guard(func() error { return s.commit(ctx, deliver) })) })
	wg.Go(func() { cancel(ingest.Guard(func() error { return s.keepHouse(ctx) })) })
	back := ingest.Backoff{Min: 500 * time.Millisecond, Max: listenAgain}
	for ctx.Err() == nil {
		list, err := s.listen(ctx)
		if err != nil {
			st := explain(err)
			s.state.Set(st.Kind, st.Cause, st.Remedy)
			_ = back.Wait(ctx) // ctx is looked at next
			continue
		}
		back.Reset()
		s.listening(list)
		if err := s.serve(ctx, list); ctx.Err() == nil {
			cancel(fmt.Errorf("accept connections: %w", err))
		}
		s.listening(nil)
	}
	wg.Wait()
	return context.Cause(ctx)
}

// listening notes the addresses, and that clients may come.
func (s *Source) listening(list []listener) {
	s.mu.Lock()
	s.addrs, s.stopping = nil, false
	for _, ln := range list {
		s.addrs = append(s.addrs, ln.Addr().String())
	}
	s.mu.Unlock()
	if list != nil {
		s.heard.Store(int64(time.Since(s.began)))
		s.log.Info("listening for devices", "addresses", s.Addrs())
		s.show()
	}
}

// open reads and opens the files in the state directory. Capture goes on without them.
func (s *Source) open() {
	const blind = "a repeated message may be stored twice"
	if s.loaded {
		if err := s.ring.Reopen(); err != nil {
			s.log.Warn(blind, "err", err)
		}
		return
	}
	s.loaded = true
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		s.log.Warn("state directory cannot be made", "err", err)
	}
	var epoch, seq uint64
	if s.last != nil {
		epoch, seq = s.last()
	}
	var journal []storage.Mark
	if s.marks != nil {
		journal = s.marks()
	}
	if err := s.ring.Load(epoch, seq, journal); err != nil {
		s.log.Warn(blind, "err", err)
	}
	s.saver.load()
}

func (s *Source) close() {
	s.forgetSettled()
	s.saver.saveAll()
	if err := s.ring.Close(); err != nil {
		s.log.Warn("file of stored messages does not close", "err", err)
	}
}

// keepHouse does what is due by time until ctx ends.
func (s *Source) keepHouse(ctx context.Context) error {
	second := time.NewTicker(time.Second)
	defer second.Stop()
	save := time.NewTicker(saveInterval)
	defer save.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-second.C:
			s.show()
			s.expire(time.Now())
			s.saver.clean()
			s.kick()
			if err := s.collect(ctx); err != nil {
				return err
			}
		case <-save.C:
			s.saver.saveAll()
		}
	}
}

// collect passes on which acknowledgements have reached their clients.
func (s *Source) collect(ctx context.Context) error {
	s.mu.Lock()
	list := make([]*conn, 0, len(s.conns))
	for c, in := range s.conns {
		if in {
			list = append(list, c)
		}
	}
	s.mu.Unlock()
	for _, c := range list {
		marks := c.taken()
		if len(marks) == 0 {
			continue
		}
		select {
		case s.settled <- marks:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// expire ends sessions and retained messages whose time is over, and says wills that are due.
func (s *Source) expire(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.sessions {
		if x.conn != nil {
			continue
		}
		if !x.after.IsZero() && now.After(x.after) {
			s.speak(x)
		}
		if now.Sub(x.left) > x.expiry {
			s.speak(x)
			s.end(x)
			s.gone = append(s.gone, x.id)
		}
	}
	for name, k := range s.retained {
		if !k.expires.IsZero() && now.After(k.expires) {
			delete(s.retained, name)
			s.retainedBytes, s.retainedDirty = s.retainedBytes-k.size(), true
		}
	}
}

// kick ends connections whose users are no longer in the users file.
func (s *Source) kick() {
	if s.cfg.Users == "" {
		return
	}
	if err := s.users.load(time.Now()); err != nil {
		s.note("%v", err)
		return
	}
	s.mu.Lock()
	var out []*conn
	for c, in := range s.conns {
		if in && c.byPassword && !s.users.exists(c.session.user) {
			out = append(out, c)
		}
	}
	s.mu.Unlock()
	for _, c := range out {
		s.note("client %q disconnected: its user is no longer in the users file", c.session.client)
		c.leave(packet.NotAuthorized)
	}
}
