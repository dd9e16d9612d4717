package storage

import (
	"github.com/holdfast-edge/holdfast/storage/journal"
)

// watchedRing is a ring that calls a function before every group that it writes; an error of it is the ring's.
type watchedRing struct {
	ringLog
	before func(group []journal.Entry) error
}

func (r watchedRing) Append(group []journal.Entry) (journal.Position, error) {
	if err := r.before(group); err != nil {
		return 0, err
	}
	return r.ringLog.Append(group)
}

func (r watchedRing) AppendReserve(group []journal.Entry) (journal.Position, error) {
	if err := r.before(group); err != nil {
		return 0, err
	}
	return r.ringLog.AppendReserve(group)
}

// ring has a function called before every group that the store writes from now on.
func (b *bed) ring(before func(group []journal.Entry) error) {
	s := b.s
	s.committer.gate <- struct{}{}
	s.publisher.turn <- struct{}{}
	s.ring = watchedRing{s.ring, before}
	<-s.publisher.turn
	<-s.committer.gate
}
