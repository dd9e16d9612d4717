package command

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/ingest"
	"github.com/holdfast-edge/holdfast/storage"
)

// idleReader is how long the server keeps a reader of the stream of commands that nobody asks for more.
const idleReader = 10 * time.Second

// worker executes the commands of one source.
type worker struct {
	executor *Executor
	entry    ingest.Entry
	name     string
	log      *slog.Logger
	mark     *mark
}

// run executes commands until ctx ends or something does not answer.
func (w *worker) run(ctx context.Context) error {
	e := w.executor
	stream, err := e.stream(ctx)
	if err != nil {
		return err
	}
	if w.mark, err = openMark(e.opt.Dir, w.name); err != nil {
		return err
	}
	if err := w.recover(ctx); err != nil {
		return err
	}
	info, err := stream.Info(ctx)
	if err != nil {
		return fmt.Errorf("look at stream %s: %w", Stream, err)
	}
	start := w.mark.Seq + 1
	if w.mark.Seq > info.State.LastSeq { // the stream was made anew, or a power cut took its end: the IDs tell what was executed
		start, w.mark.Seq = 1, 0 // and the number means another command from now on
		if err := w.mark.save(); err != nil {
			return err
		}
	}
	messages, err := e.read(ctx, start, false, Subject(e.opt.Leaf, w.name, ""), Subject(e.opt.Leaf, w.name, ">"))
	if err != nil {
		return err
	}
	return e.each(ctx, messages, func(m jetstream.Msg, seq uint64) error {
		if err := w.take(ctx, m, seq); err != nil {
			return err
		}
		w.clear(ctx, stream, seq)
		return nil
	})
}

// each calls f for every message until ctx ends or f fails.
func (e *Executor) each(ctx context.Context, messages jetstream.MessagesContext, f func(m jetstream.Msg, seq uint64) error) error {
	defer messages.Stop()
	defer context.AfterFunc(ctx, messages.Stop)()
	for {
		m, err := messages.Next()
		if err != nil {
			return fmt.Errorf("read stream %s: %w", Stream, err)
		}
		meta, err := m.Metadata()
		if err != nil {
			return fmt.Errorf("read stream %s: %w", Stream, err)
		}
		if err := f(m, meta.Sequence.Stream); err != nil {
			return err
		}
	}
}

// read reads the stream of commands from a sequence on.
func (e *Executor) read(ctx context.Context, start uint64, bare bool, subjects ...string) (jetstream.MessagesContext, error) {
	c, err := e.opt.JetStream.OrderedConsumer(ctx, Stream, jetstream.OrderedConsumerConfig{
		FilterSubjects: subjects, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: start, HeadersOnly: bare,
		InactiveThreshold: idleReader, // the library does not remove it when the reader stops, as for another source of the name
	})
	if err != nil {
		return nil, fmt.Errorf("read stream %s: %w", Stream, err)
	}
	messages, err := c.Messages()
	if err != nil {
		return nil, fmt.Errorf("read stream %s: %w", Stream, err)
	}
	return messages, nil
}

// recover ends a command that was in hand when the daemon ended.
func (w *worker) recover(ctx context.Context) error {
	m := w.mark
	switch m.Phase {
	case begun:
		o := Outcome{Command: m.Command, Source: w.name, Tail: m.Tail, State: ingest.OutcomeUnknown, Time: time.Now(),
			Cause: "the daemon or the machine stopped while the command was executed; look at the device"}
		w.log.Warn("a command was in hand at the last stop, its outcome is unknown", "command", o.Command)
		if err := m.answer(m.Seq, o); err != nil {
			return err
		}
	case answered:
		there, err := w.recorded(ctx, m.Command)
		if err != nil {
			return err
		}
		if there {
			return m.finish()
		}
	default:
		return nil
	}
	return w.record(ctx, *m.Outcome)
}

// recorded says whether the newest outcome record of the source is that of a command.
func (w *worker) recorded(ctx context.Context, id string) (bool, error) {
	s, err := w.executor.opt.JetStream.Stream(ctx, w.entry.Stream)
	if err != nil {
		return false, fmt.Errorf("open stream %s: %w", w.entry.Stream, err)
	}
	last, err := s.GetLastMsgForSubject(ctx, storage.DataSubject(w.executor.opt.Leaf, w.entry.Stream, w.name)+"."+TailOutcome)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read the last outcome in stream %s: %w", w.entry.Stream, err)
	}
	return last.Header.Get(HeaderCommand) == id, nil
}

// take executes one command, or says why not, and stores the outcome.
func (w *worker) take(ctx context.Context, m jetstream.Msg, seq uint64) error {
	e := w.executor
	c, err := parse(e.opt.Leaf, string(e.opt.Store.ID()), m, seq)
	if w.mark.knows(c.ID) {
		w.log.Info("a command came again and was not executed again", "command", c.ID)
		return nil
	}
	out := ingest.Outcome{}
	if err != nil {
		out = ingest.Refuse(err.Error())
	} else if out = w.judge(c); out.State == "" {
		if err := w.mark.begin(seq, c); err != nil {
			return fmt.Errorf("the command is not executed: %w", err) // no device was touched: it comes again
		}
		out = w.execute(ctx, c)
	}
	o := outcome(c, out)
	if err := w.mark.answer(seq, o); err != nil {
		w.log.Warn("a command is done and its mark not written; after a crash its outcome is unknown", "command", c.ID, "err", err)
	}
	w.log.Info("command executed", "command", c.ID, "state", o.State, "cause", o.Cause)
	return w.record(ctx, o)
}

// judge says why a command must not be begun; the zero outcome: it may.
func (w *worker) judge(c ingest.Command) ingest.Outcome {
	switch clock := w.executor.opt.Store.Clock(); {
	case !c.NotAfter.IsZero() && clock != storage.ClockSynced:
		return ingest.Refuse(fmt.Sprintf("it must begin before %s, and the gateway does not know the time: its clock is %s",
			c.NotAfter.UTC().Format(time.RFC3339), clock))
	case !c.NotAfter.IsZero() && time.Now().After(c.NotAfter):
		return ingest.Outcome{State: ingest.OutcomeExpired, Cause: "it had to begin before " + c.NotAfter.UTC().Format(time.RFC3339)}
	}
	if _, ok := w.entry.Source.(ingest.Commander); !ok {
		return ingest.Refuse("source " + w.name + " takes no commands")
	}
	return ingest.Outcome{}
}

// execute lets the source execute a command, for as long as it may take.
func (w *worker) execute(ctx context.Context, c ingest.Command) (out ingest.Outcome) {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	err := ingest.Guard(func() error {
		out = w.entry.Source.(ingest.Commander).Command(ctx, c)
		return nil
	})
	if err != nil {
		w.log.Error("source panicked in a command", "command", c.ID, "err", err)
		return ingest.Outcome{State: ingest.OutcomeUnknown, Cause: err.Error()}
	}
	return out
}

// record stores the outcome of the command in hand, tells who waits for it, and frees the mark. It waits while the store takes nothing.
func (w *worker) record(ctx context.Context, o Outcome) error {
	if ctx.Err() != nil { // what was done is worth a moment more
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeLast)
		defer cancel()
		ctx = last
	}
	r, err := o.reading()
	if err != nil {
		return err
	}
	if err := w.executor.opt.Record(ctx, w.name, r); err != nil {
		return fmt.Errorf("store the outcome of command %s: %w", o.Command, err)
	}
	w.executor.tell(o)
	return w.mark.finish()
}

// clear removes from the stream what is done, but for the last one: a stream that is fed from a hub goes on from its newest message.
func (w *worker) clear(ctx context.Context, s jetstream.Stream, seq uint64) {
	leaf := w.executor.opt.Leaf
	for _, subject := range []string{Subject(leaf, w.name, ""), Subject(leaf, w.name, ">")} {
		if err := s.Purge(ctx, jetstream.WithPurgeSubject(subject), jetstream.WithPurgeSequence(seq)); err != nil && ctx.Err() == nil {
			w.log.Debug("executed commands not removed", "err", err) // the next one removes them too
		}
	}
}

// strays refuses commands for sources that are not there, until ctx ends. Their outcome is a record of the first source that takes commands.
func (e *Executor) strays(ctx context.Context) error {
	stream, err := e.stream(ctx)
	if err != nil {
		return err
	}
	messages, err := e.read(ctx, 1, true, Subject(e.opt.Leaf, ">", ""))
	if err != nil {
		return err
	}
	return e.each(ctx, messages, func(m jetstream.Msg, seq uint64) error {
		c, _ := parse(e.opt.Leaf, string(e.opt.Store.ID()), m, seq) // refused in any case
		sources := e.sources()
		if len(sources) == 0 || slices.ContainsFunc(sources, func(n ingest.Entry) bool { return n.Source.Name() == c.Source }) {
			return nil
		}
		speaker := max(slices.IndexFunc(sources, func(n ingest.Entry) bool { _, ok := n.Source.(ingest.Commander); return ok }), 0)
		e.opt.Log.Warn("a command for a source that is not there was refused", "source", c.Source, "command", c.ID)
		r, err := outcome(c, ingest.Refuse(fmt.Sprintf("there is no source %q", c.Source))).reading()
		if err != nil {
			return err
		}
		if err := e.opt.Record(ctx, sources[speaker].Source.Name(), r); err != nil {
			return fmt.Errorf("store the outcome of command %s: %w", c.ID, err)
		}
		if err := stream.DeleteMsg(ctx, seq); err != nil && !errors.Is(err, jetstream.ErrMsgNotFound) {
			return fmt.Errorf("remove command %s from stream %s: %w", c.ID, Stream, err)
		}
		return nil
	})
}
