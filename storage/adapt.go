package storage

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"
)

// AddSource lets a source in that Open was not told of, into a stream that it was told of. To be called after Attach and before the source's
// first record. A source that is there already, in the same stream, is no error; in another stream it is, because its numbers belong to that one.
func (s *Store) AddSource(ctx context.Context, name, stream string) error {
	st := s.byName[stream]
	if problem := tokenProblem(name); problem != "" {
		return fmt.Errorf("add source: %s", problem)
	}
	if st == nil {
		return fmt.Errorf("add source %s: there is no stream %q", name, stream)
	}
	s.adaptMu.Lock()
	defer s.adaptMu.Unlock()
	if src := s.source(name); src != nil {
		if src.stream != st {
			return fmt.Errorf("add source %s: its records go into stream %s until the next start", name, src.stream.name())
		}
		return nil
	}
	src := newSource(name, st)
	js, err := s.server().JetStream.Stream(ctx, stream)
	if err != nil {
		return fmt.Errorf("add source %s: look at stream %s: %w", name, stream, err)
	}
	epoch, seq := s.counters.last(stream, name)
	last := recordNo{epoch, seq}
	for _, subject := range []string{name, name + ".>"} {
		r, err := lastID(ctx, js, DataSubject(s.Leaf(), stream, subject))
		if err != nil {
			return fmt.Errorf("add source %s: read its newest record: %w", name, err)
		}
		if no := (recordNo{r.id.Epoch, r.id.Seq}); no.after(last) {
			last = no
		}
	}
	src.last = lastRecord{recordNo: last}
	s.added.Store(name, src)
	return nil
}

// source returns a source by its name, nil if there is none.
func (s *Store) source(name string) *source {
	if src := s.sources[name]; src != nil {
		return src
	}
	if src, ok := s.added.Load(name); ok {
		return src.(*source)
	}
	return nil
}

// SetLimits changes the limits of streams while they are written, by the names of the streams; ttl is by source, as in Options. What must
// go because of lower ones goes as always: by position, forwarded records first, with gap records for the others. To be called after Attach.
func (s *Store) SetLimits(ctx context.Context, streams []StreamConfig, ttl map[string]time.Duration) error {
	s.adaptMu.Lock()
	defer s.adaptMu.Unlock()
	var errs []error
	for _, c := range streams {
		st := s.byName[c.Name]
		if st == nil {
			continue // it comes with the next start
		}
		before := st.config()
		st.configured.Store(&c)
		if err := s.adaptStream(ctx, st); err != nil {
			st.configured.Store(&before)
			errs = append(errs, fmt.Errorf("stream %s: %w", c.Name, err))
			continue
		}
		if err := s.keeper.setLimits(ctx, c.Name, st.limits(ttl)); err != nil {
			errs = append(errs, fmt.Errorf("stream %s: %w", c.Name, err))
		}
	}
	return errors.Join(errs...)
}

// adaptStream gives the server's stream the limits of its configuration.
func (s *Store) adaptStream(ctx context.Context, st *stream) error {
	js := s.server().JetStream
	have, err := js.Stream(ctx, st.name())
	if err != nil {
		return fmt.Errorf("look at it: %w", err)
	}
	now := have.CachedInfo()
	want := st.serverConfig(now.Config, now.State)
	if now.Config.MaxBytes == want.MaxBytes && now.Config.MaxMsgs == want.MaxMsgs {
		return nil
	}
	want.Metadata = maps.Clone(now.Config.Metadata)
	if _, err := js.UpdateStream(ctx, want); err != nil {
		return fmt.Errorf("update: %w", err)
	}
	return nil
}

// setLimits changes what a stream is held to, and lets the keeper look.
func (k *keeper) setLimits(ctx context.Context, name string, l limits) error {
	release, err := k.hold(ctx)
	if err != nil {
		return err
	}
	k.mu.Lock()
	if st := k.byName[name]; st != nil {
		st.limits = l
	}
	k.mu.Unlock()
	release()
	signal(k.wake)
	return nil
}
