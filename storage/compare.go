package storage

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"

	"github.com/holdfast-edge/holdfast/storage/blocks"
	"github.com/holdfast-edge/holdfast/storage/journal"
)

// Why a record of the journal cannot be in its stream although the stream goes beyond it.
const (
	placeTaken = "another record lies in the stream at the place that it was promised"
	placeEmpty = "its place in the stream is empty, and the journal does not have all that lies behind"
)

// promise is a record of the journal: where it was promised to lie, and a hash of its ID.
type promise struct {
	at Position
	id uint64
}

// finding is what was found at the place of a promise.
type finding uint8

const (
	nothing finding = iota
	itself
	another
)

// compare looks, before the server opens the streams, whether the journal's records lie where they were promised to, as far as the streams reach: a
// file system may keep a later block of a stream and lose an earlier one, and a server that finds the later one goes on behind it. Where the journal has all
// from the first hole on, the stream is cut off there, and Attach publishes the rest again, each record at its sequence. What cannot be brought back like
// that is set aside, with an alarm. It reads as much of the streams as the journal has, at most, and nobody waits for it.
func (s *Store) compare(ctx context.Context) error {
	seed := maphash.MakeSeed()
	all := map[*stream][]promise{}
	err := s.ring.Replay(0, func(_ journal.Position, group []journal.Entry) error {
		for i := range group {
			if r, m, err := s.locate(&group[i]); err == nil && r.st != nil && s.byName[r.st.name()] == r.st {
				all[r.st] = append(all[r.st], promise{r.at, maphash.String(seed, m.header1(headerStart))})
			}
		}
		return ctx.Err()
	})
	if err != nil {
		return err
	}
	var faults []error
	for st, promises := range all {
		slices.SortFunc(promises, func(a, b promise) int { return cmp.Compare(a.at, b.at) })
		faults = append(faults, s.compareStream(ctx, st, promises, seed))
	}
	return errors.Join(faults...)
}

// compareStream compares one stream with what it was promised, in order.
func (s *Store) compareStream(ctx context.Context, st *stream, promises []promise, seed maphash.Seed) error {
	files := s.files(st)
	found, first, reach, err := findPromised(ctx, files, promises, seed)
	if errors.Is(err, blocks.ErrEncrypted) || reach == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	from := s.counters.floor(st.name())
	if !st.known {
		from = max(from, first) // who knows what was removed
	}
	wrong := map[Position]string{}
	hole := -1
	for i, p := range promises {
		switch {
		case p.at < from || p.at > reach || found[i] == itself || s.quarantine.holds(st.name(), st.incarnation, p.at):
		case found[i] == another:
			wrong[p.at] = placeTaken
		default:
			wrong[p.at] = placeEmpty
			if hole < 0 {
				hole = i
			}
		}
	}
	if hole >= 0 && covered(promises[hole:], found[hole:], reach) {
		at := promises[hole].at
		aside, err := files.Cut(mendingHands(s.aside(), files.Name), uint64(at))
		st.verifyMu.Lock()
		clear(st.verified)
		st.verifyMu.Unlock()
		s.alarm(files.Dir, fmt.Sprintf("records from %d on were not on flash, but some behind them, up to %d: the journal brings all of them back", at, reach), cmp.Or(aside...))
		if err != nil {
			return err
		}
		for p := range wrong {
			if p >= at {
				delete(wrong, p)
			}
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	return s.setPromisesAside(st, wrong)
}

// findPromised looks into the newest blocks for what was promised. first and reach are the lowest and the highest sequence that the server would find; reach
// is 0 if the stream has nothing.
func findPromised(ctx context.Context, files blocks.Stream, promises []promise, seed maphash.Seed) (found []finding, first, reach Position, err error) {
	found = make([]finding, len(promises))
	numbers, err := files.Numbers()
	if err != nil {
		return nil, 0, 0, err
	}
	for _, n := range slices.Backward(numbers) {
		if ctx.Err() != nil {
			return nil, 0, 0, ctx.Err()
		}
		b, err := files.Visit(n, func(m blocks.Message) error {
			i, ok := slices.BinarySearchFunc(promises, Position(m.Seq), func(p promise, at Position) int { return cmp.Compare(p.at, at) })
			if !ok {
				return nil
			}
			found[i] = another
			_, id, _ := bytes.Cut(m.Header, []byte("\r\n"+HeaderID+": "))
			id, _, _ = bytes.Cut(id, []byte("\r"))
			if maphash.Bytes(seed, id) == promises[i].id {
				found[i] = itself
			}
			return nil
		})
		if err != nil {
			return nil, 0, 0, err
		}
		reach = max(reach, Position(b.Last))
		if first = cmp.Or(Position(b.First), first); b.First > 0 && first <= promises[0].at {
			break
		}
	}
	index, err := files.Index()
	reach = max(reach, Position(index.Last)) // the server goes on behind it, whatever the blocks hold
	return found, first, reach, err
}

// covered reports whether the journal has everything from its first promise to where the stream ends, and the stream has nothing else there.
func covered(promises []promise, found []finding, reach Position) bool {
	for i, p := range promises {
		if p.at != promises[0].at+Position(i) || found[i] == another {
			return false
		}
		if p.at == reach {
			return true
		}
	}
	return false
}

// setPromisesAside keeps records of the journal whose place is not theirs.
func (s *Store) setPromisesAside(st *stream, wrong map[Position]string) error {
	s.publisher.turn <- struct{}{}
	defer func() { <-s.publisher.turn }()
	return s.ring.Replay(0, func(_ journal.Position, group []journal.Entry) error {
		for i := range group {
			r, m, err := s.locate(&group[i])
			if err != nil || r.st != st || wrong[r.at] == "" {
				continue
			}
			if err := s.quarantined(&group[i], m, wrong[r.at]); err != nil {
				return err
			}
		}
		return nil
	})
}
