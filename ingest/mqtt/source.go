// Package mqtt takes readings from an MQTT broker and acknowledges each to it only after it is stored.
package mqtt

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"

	"github.com/holdfast-edge/holdfast/ingest"
	"github.com/holdfast-edge/holdfast/ingest/seen"
	"github.com/holdfast-edge/holdfast/storage"
)

// Headers of records from a broker, beside topic.Header.
const (
	// HeaderRetained is "1" on a message that the broker had kept for later subscribers: it may be old.
	HeaderRetained = "Holdfast-Retained"
	// HeaderQoS is "0" on a message that the broker sent without asking for an acknowledgement: others may have been lost
	// unnoticed. It is not there on messages with QoS 1 and 2.
	HeaderQoS = "Holdfast-QoS"
)

// Reasons under which messages count as rejected.
const (
	ReasonQueueFull     = "queue full" // QoS 0 only: others come again
	ReasonTooLarge      = "payload too large"
	ReasonNotSubscribed = "not subscribed" // from a subscription of an earlier configuration, or of the broker's own topics
	ReasonRetained      = "retained"       // with Retained set to RetainedSkip
)

// timing holds the times that are not configured.
type timing struct {
	connect  time.Duration // of each step of connecting, of a write, of an answer to a subscription
	ping     time.Duration // of an answer to a ping
	handover time.Duration // of handing a packet to the library
	confirm  time.Duration // between pings that confirm acknowledgements
	retry    time.Duration // between attempts to subscribe to what was refused
	backMin  time.Duration // first pause before a new connection
	backMax  time.Duration // longest one
	settled  time.Duration // a connection of this age makes the next pause a short one
}

var defaultTiming = timing{
	connect: 10 * time.Second, ping: 10 * time.Second, handover: 3 * time.Second, confirm: 10 * time.Second,
	retry: time.Minute, backMin: 500 * time.Millisecond, backMax: 30 * time.Second, settled: time.Minute,
}

// Options are what a Source is made of.
type Options struct {
	Name     string // of the source, unique on this leaf
	Leaf     string // name of the leaf
	Config   Config
	StateDir string // existing or not, on the file system of the store, used by nobody else
	// Last returns the newest committed record of this source from earlier epochs. Run calls it once, before it connects, so
	// Run must not be called before the store can tell. Nil: there is none.
	Last func() (epoch, seq uint64)
	// Marks returns what the store's journal gave back for this source (storage.Store.Marks). Run calls it once. Nil: nothing.
	Marks func() []storage.Mark
	Log   *slog.Logger
}

// Source is an MQTT client with a persistent session. It implements ingest.Source.
//
// With QoS 1 and 2 a message is acknowledged after Deliver took it, in order, on the connection it came from, and not
// otherwise: what a crash, a lost connection or a full store leaves without acknowledgement, the broker sends again. What
// comes again though it is stored is recognised (see delivered) and only acknowledged. QoS 2 is taken like QoS 1: its second
// half guards against doubles on the way, but not through a crash of either side. With QoS 0 a message that is not stored at
// once is lost: the broker sends it once, and not at all while we are away.
//
// A store that takes nothing fills the queue; the connection stays alive meanwhile, since a client that stops reading is
// thrown out by the broker. When the queue is full, further messages with QoS 1 and 2 are let go of unacknowledged, so the
// broker soon stops sending; when half of the queue is free again the source reconnects, and the broker sends them again.
type Source struct {
	name   string
	cfg    Config
	addrs  []address // the first choice first
	client string    // client id
	dir    string
	last   func() (epoch, seq uint64)
	marks  func() []storage.Mark
	log    *slog.Logger
	timing timing

	state   *ingest.Condition
	tally   ingest.Tally
	queue   *queue
	current atomic.Pointer[link]
	began   time.Time
	heard   atomic.Int64 // when a message came last, in nanoseconds since began

	redelivered atomic.Uint64
	repeated    atomic.Uint64
	forgotten   atomic.Uint64

	delivered *delivered

	// Run and what it calls own the fields below.
	loaded   bool
	addr     address // where the next connection goes, or the present one
	clean    bool    // the next connection ends the session
	moved    bool    // the present connection is to another address than the one before
	session  *sessionFile
	retained *seen.Ring
	batch    []item // readings that Deliver did not take yet: they go first
	failures ingest.Backoff
	kicks    []time.Time // when the broker closed a connection lately
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
		faults = append(faults, fmt.Sprintf("mqtt.%s: %s: %s", key, problem, remedy))
	})
	if len(faults) > 0 {
		return nil, errors.New(strings.Join(faults, "; "))
	}
	var addrs []address
	for _, b := range o.Config.brokers() {
		a, err := parseBroker(b)
		if err != nil {
			return nil, fmt.Errorf("mqtt.broker: %w", err)
		}
		addrs = append(addrs, a)
	}
	log := o.Log.With("source", o.Name)
	s := &Source{
		name: o.Name, cfg: o.Config, addrs: addrs, addr: addrs[0], client: o.Config.clientID(o.Leaf, o.Name), dir: o.StateDir, last: o.Last, marks: o.Marks, log: log,
		timing: defaultTiming, state: ingest.NewCondition(log), queue: newQueue(o.Config.Queue), began: time.Now(),
	}
	owner := strings.Join(s.cfg.brokers(), " ") + "\x00" + s.client
	s.delivered = &delivered{log: log, file: seen.NewFile(filepath.Join(o.StateDir, "delivered"), packetSlots, owner)}
	s.retained = seen.NewRing(seen.NewFile(filepath.Join(o.StateDir, "retained"), retainedSlots, ""), len(seen.Digest{}), func(f *seen.File, err error) { giveUp(log, f, err) })
	return s, nil
}

// Name implements ingest.Source.
func (s *Source) Name() string { return s.name }

// ClientID returns the client id under which the broker keeps the session.
func (s *Source) ClientID() string { return s.client }

// State implements ingest.Stater.
func (s *Source) State() ingest.State { return s.state.State() }

// Counts implements ingest.Counter. Messages that were recognised as stored before are not counted as received again.
func (s *Source) Counts() ingest.Counts { return s.tally.Counts() }

// Stats says more about a source, since it was made.
type Stats struct {
	Redelivered uint64 // messages that came again after they were stored, acknowledged and not stored again
	Repeated    uint64 // retained messages that were stored before
	Forgotten   uint64 // how often the broker had lost our session, with what it had queued for us
	Queued      int    // messages that wait for the store
	QueuedBytes int64
}

// Stats is safe for concurrent use.
func (s *Source) Stats() Stats {
	st := Stats{Redelivered: s.redelivered.Load(), Repeated: s.repeated.Load(), Forgotten: s.forgotten.Load()}
	st.Queued, st.QueuedBytes = s.queue.load()
	return st
}

// Run implements ingest.Source.
func (s *Source) Run(ctx context.Context, deliver ingest.Deliver) error {
	s.state.Set(ingest.Starting, "", "")
	s.openState()
	defer s.closeState()
	s.failures = ingest.Backoff{Min: s.timing.backMin, Max: s.timing.backMax}

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	wg.Go(func() { cancel(ingest.Guard(func() error { return s.work(ctx, deliver) })) })
	s.connect(ctx)
	wg.Wait()
	return context.Cause(ctx)
}

// openState opens the files in the state directory. Capture goes on without them: then a message that comes again after a
// restart is stored twice.
func (s *Source) openState() {
	warn := func(what string, err error) {
		if err != nil {
			s.log.Warn(what, "err", err)
		}
	}
	const blind = "a repeated message may be stored twice"
	if s.loaded {
		warn(blind, s.delivered.file.Reopen())
		warn(blind, s.retained.Reopen())
		return
	}
	s.loaded = true
	warn("state directory cannot be made", os.MkdirAll(s.dir, 0o700))
	var err error
	s.session, err = openSession(filepath.Join(s.dir, "session"))
	warn("subscriptions of an earlier configuration may stay", err)
	if old := s.session.last; old.Client != "" && (old.Client != s.client || !slices.Contains(s.cfg.brokers(), old.Broker)) {
		s.log.Warn("broker or client id was changed: the old broker goes on queueing for the old client id until its session is removed there",
			"broker", old.Broker, "client", old.Client)
	}
	var epoch, seq uint64
	if s.last != nil {
		epoch, seq = s.last()
	}
	var journal []storage.Mark
	if s.marks != nil {
		journal = s.marks()
	}
	warn(blind, s.delivered.load(epoch, seq, journal))
	warn(blind, s.retained.Load(epoch, seq, journal))
}

func (s *Source) closeState() {
	if err := errors.Join(s.delivered.file.Close(), s.retained.Close()); err != nil {
		s.log.Warn("file of stored messages does not close", "err", err)
	}
}

// saveSession notes what may be subscribed to. Without the note only the clean-up of removed filters suffers.
func (s *Source) saveSession(to session) {
	if err := s.session.save(to); err != nil {
		s.log.Warn("a filter that is removed from the configuration later may stay subscribed", "err", err)
		s.session.last = to
	}
}

// receive takes a message from the library. It never blocks: the library reads nothing else meanwhile, not even the answers
// to its pings.
func (s *Source) receive(l *link, m paho.Message) {
	now := time.Now()
	s.heard.Store(int64(now.Sub(s.began)))
	index := l.received.Add(1) - 1
	msg := message{link: l, index: index, at: now, topic: m.Topic(), payload: m.Payload(), qos: m.Qos(), dup: m.Duplicate(),
		retained: m.Retained(), packet: m.MessageID(), tooLarge: l.guard.oversize(index), ack: m.Ack}
	if msg.qos > 0 && l.overrun.Load() {
		return // after one message was let go of, later ones would overtake it
	}
	if s.queue.push(msg) {
		return
	}
	if msg.qos == 0 {
		s.tally.Reject(ReasonQueueFull, len(msg.payload))
		return
	}
	l.overrun.Store(true)
	s.queue.wake() // the worker may have emptied the queue meanwhile
	n, bytes := s.queue.load()
	s.log.Warn("queue is full, the broker will be asked again for what follows", "messages", n, "bytes", bytes)
}
