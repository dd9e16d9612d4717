package command

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/ingest"
	"github.com/holdfast-edge/holdfast/storage"
)

// How a worker whose stream or flash does not answer is started again.
const (
	retryMin  = 250 * time.Millisecond
	retryMax  = 10 * time.Second
	storeLast = 2 * time.Second // how long a stop waits for an outcome to be stored
)

// Store is what an Executor needs of *storage.Store.
type Store interface {
	ID() storage.StoreID
	Clock() storage.ClockState
	Sync() error // puts the stream of commands on flash
}

// ErrNoSource means that no source of that name takes commands.
var ErrNoSource = errors.New("no such source")

// Options say whose commands are executed.
type Options struct {
	Leaf      string
	Dir       string // for the marks; made if it is not there
	JetStream jetstream.JetStream
	Store     Store
	Entries   []ingest.Entry // all sources, with their streams; those that are no Commander refuse
	Record    func(ctx context.Context, source string, batch ...ingest.Reading) error
	Log       *slog.Logger
}

// Executor executes the commands in the stream of commands: those of one source in order and one at a time, those of several sources
// beside each other.
//
//   - Before a device is touched, a mark on flash says for which command. A crash in between makes the outcome unknown: no command
//     is executed twice.
//   - A command with a time limit is refused while the clock is not synchronised, and expired when the time is over.
//   - The outcome is stored as a record of the source, before the next command of the source begins.
type Executor struct {
	opt Options

	mu      sync.Mutex                     // guards the fields below
	calls   map[string]chan ingest.Outcome // callers that wait, by command ID; each holds one and is never closed
	entries []ingest.Entry
	halts   map[string]func() // of the workers that run, by source: stops one and waits
	ctx     context.Context   // of Run, nil outside it
	wg      *sync.WaitGroup   // of Run
	// whether commands for sources that are not there are looked for: as soon as there is a source, whose record tells of them
	straying bool
}

// New returns an executor; nothing happens before Run.
func New(opt Options) *Executor {
	return &Executor{opt: opt, calls: map[string]chan ingest.Outcome{}, entries: opt.Entries, halts: map[string]func(){}}
}

// Run executes commands until ctx ends. It needs an attached store, and makes the stream of commands if it is not there.
func (e *Executor) Run(ctx context.Context) error {
	if err := os.MkdirAll(e.opt.Dir, 0o750); err != nil {
		return fmt.Errorf("make the folder of command marks: %w", err)
	}
	var wg sync.WaitGroup
	e.mu.Lock()
	e.ctx, e.wg = ctx, &wg
	for _, entry := range e.entries {
		e.start(entry)
	}
	e.mu.Unlock()
	<-ctx.Done()
	e.mu.Lock()
	e.ctx, e.straying = nil, false // nothing is started any more
	e.mu.Unlock()
	wg.Wait()
	return ctx.Err()
}

// start runs the worker of a source until Run's context ends or it is halted. mu is held.
func (e *Executor) start(entry ingest.Entry) {
	if e.ctx == nil || e.ctx.Err() != nil {
		return
	}
	if run := e.ctx; !e.straying {
		e.straying = true
		e.wg.Go(func() { e.keep(run, e.opt.Log, e.strays) })
	}
	ctx, cancel := context.WithCancel(e.ctx)
	done := make(chan struct{})
	name := entry.Source.Name()
	e.halts[name] = func() {
		cancel()
		<-done
	}
	w := &worker{executor: e, entry: entry, name: name, log: e.opt.Log.With("source", name)}
	e.wg.Go(func() {
		defer close(done)
		defer cancel()
		e.keep(ctx, w.log, w.run)
	})
}

// Set changes whose commands are executed, while they are. A command in hand of a source that is taken away or replaced ends as at a stop. One
// call at a time.
func (e *Executor) Set(entries []ingest.Entry) {
	e.mu.Lock()
	old := e.entries
	halts := e.halts
	e.mu.Unlock()
	for _, entry := range old {
		name := entry.Source.Name()
		if halt := halts[name]; halt != nil && !slices.Contains(entries, entry) {
			halt()
			delete(halts, name)
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.entries = entries
	for _, entry := range entries {
		if !slices.Contains(old, entry) {
			e.start(entry)
		}
	}
}

// sources returns the entries as they are now.
func (e *Executor) sources() []ingest.Entry {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.entries
}

// keep runs part until ctx ends, again after a pause when it fails.
func (e *Executor) keep(ctx context.Context, log *slog.Logger, part func(context.Context) error) {
	back := ingest.Backoff{Min: retryMin, Max: retryMax}
	for ctx.Err() == nil {
		began := time.Now()
		err := ingest.Guard(func() error { return part(ctx) })
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > retryMax {
			back.Reset()
		}
		if n := back.Fails() + 1; n == 1 || n%10 == 0 {
			log.Warn("commands are not executed at present, will be tried again", "err", err, "fails", n)
		}
		_ = back.Wait(ctx) // ctx is looked at next
	}
}

// stream returns the stream of commands, made if it is not there.
func (e *Executor) stream(ctx context.Context) (jetstream.Stream, error) {
	s, err := e.opt.JetStream.Stream(ctx, Stream)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		s, err = e.opt.JetStream.CreateStream(ctx, e.config())
	}
	if err != nil {
		return nil, fmt.Errorf("open stream %s: %w", Stream, err)
	}
	return s, nil
}

func (e *Executor) config() jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: Stream, Description: "commands for the sources of this leaf", Subjects: []string{Subject(e.opt.Leaf, ">", "")},
		MaxMsgs: maxWaiting, MaxBytes: maxWaitingBytes, MaxMsgSize: 2 * maxCommand, Discard: jetstream.DiscardNew, AllowDirect: true,
	}
}

// newID makes an ID for a command that has none.
func (e *Executor) newID() string {
	return fmt.Sprintf("%s.%s.%s", e.opt.Leaf, e.opt.Store.ID(), rand.Text())
}

// Submit puts a command into the stream. It is on flash, and will be executed once, when Submit returns nil. A command without an
// ID gets one, which is returned. Errors: there is no such source, it takes no commands, or the stream takes none.
func (e *Executor) Submit(ctx context.Context, c ingest.Command) (id string, err error) {
	entries := e.sources()
	i := slices.IndexFunc(entries, func(n ingest.Entry) bool { return n.Source.Name() == c.Source })
	if i < 0 {
		return "", fmt.Errorf("%w: %q is not configured; %s", ErrNoSource, c.Source, able(entries))
	}
	if _, ok := entries[i].Source.(ingest.Commander); !ok {
		return "", fmt.Errorf("%w: %s takes no commands; %s", ErrNoSource, c.Source, able(entries))
	}
	if len(c.Data) > maxCommand {
		return "", fmt.Errorf("the command has %d bytes, and %d are allowed", len(c.Data), maxCommand)
	}
	if c.ID == "" {
		c.ID = e.newID()
	}
	if _, err := e.stream(ctx); err != nil {
		return "", err
	}
	if _, err := e.opt.JetStream.PublishMsg(ctx, Message(e.opt.Leaf, c)); err != nil {
		return "", fmt.Errorf("put the command into stream %s: %w", Stream, err)
	}
	if err := e.opt.Store.Sync(); err != nil {
		return "", fmt.Errorf("put the command on flash: %w; it may be executed all the same", err)
	}
	return c.ID, nil
}

// able names the sources that take commands.
func able(entries []ingest.Entry) string {
	var names []string
	for _, e := range entries {
		if _, ok := e.Source.(ingest.Commander); ok {
			names = append(names, e.Source.Name())
		}
	}
	if len(names) == 0 {
		return "no source takes commands"
	}
	return "commands go to: " + strings.Join(names, ", ")
}

// Do submits a command and waits for its outcome. When ctx ends first, the command stays in the stream and is executed later.
func (e *Executor) Do(ctx context.Context, c ingest.Command) (id string, out ingest.Outcome, err error) {
	if c.ID == "" {
		c.ID = e.newID()
	}
	done := make(chan ingest.Outcome, 1)
	e.mu.Lock()
	e.calls[c.ID] = done
	e.mu.Unlock()
	defer func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.calls, c.ID)
	}()
	if _, err := e.Submit(ctx, c); err != nil {
		return c.ID, out, err
	}
	select {
	case out = <-done:
		return c.ID, out, nil
	case <-ctx.Done():
		return c.ID, out, fmt.Errorf("command %s is not executed yet, and stays ordered: %w", c.ID, ctx.Err())
	}
}

// tell gives an outcome to the caller that waits for it.
func (e *Executor) tell(o Outcome) {
	e.mu.Lock()
	defer e.mu.Unlock()
	select {
	case e.calls[o.Command] <- ingest.Outcome{State: o.State, Reply: o.Reply, Cause: o.Cause}:
	default: // nobody waits
	}
}

// markDir is the folder of the marks in a store's home.
const markDir = "commands"

// MarkDir returns the folder of the marks for a store whose small files are in home.
func MarkDir(home string) string { return filepath.Join(home, markDir) }
