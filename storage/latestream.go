package storage

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// lateStream is a stream of a server that comes later. Only the keeper's one worker uses it.
type lateStream struct {
	s    *Store
	name string

	mu     sync.Mutex // guards the field below
	stream held       // nil before there is a server
}

func (l *lateStream) held(ctx context.Context) (held, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stream != nil {
		return l.stream, nil
	}
	js := l.s.server().JetStream
	if js == nil {
		return nil, fmt.Errorf("%w: stream %s is not there yet", ErrUnavailable, l.name)
	}
	h, err := holdStream(ctx, js, l.name)
	if err != nil {
		return nil, err
	}
	l.stream = h
	return h, nil
}

func (l *lateStream) view(ctx context.Context) (streamView, error) {
	h, err := l.held(ctx)
	if err != nil {
		return streamView{}, err
	}
	return h.view(ctx)
}

func (l *lateStream) purge(ctx context.Context, below Position) error {
	h, err := l.held(ctx)
	if err != nil {
		return err
	}
	return h.purge(ctx, below)
}

func (l *lateStream) next(ctx context.Context, from Position) (heldRecord, error) {
	h, err := l.held(ctx)
	if err != nil {
		return heldRecord{}, err
	}
	return h.next(ctx, from)
}

func (l *lateStream) scan(ctx context.Context, from Position, fn func(heldRecord) error) error {
	h, err := l.held(ctx)
	if err != nil {
		return err
	}
	return h.scan(ctx, from, fn)
}

// makeRoom makes room in a stream that the server says is full, and reports whether it may have.
func (s *Store) makeRoom(ctx context.Context, st *stream) bool {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	kept := s.keeper.byName[st.name()]
	if kept == nil {
		return false
	}
	release, err := s.keeper.hold(ctx)
	if err != nil {
		return false
	}
	defer release()
	return s.keeper.makeRoomIn(ctx, kept, need{Stream: st.name()}) == nil
}
