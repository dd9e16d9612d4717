package storage

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
)

// writeIfDue writes the counters without a flush if there is something new and the last time is long enough ago. It is called before the syncfs of a
// group and, so that a quiet store's rejects are written too, now and then.
func (c *counters) writeIfDue() error {
	c.mu.Lock()
	interval := counterInterval
	if c.rejects {
		interval = rejectInterval
	}
	due := c.dirty && c.now().Sub(c.written) >= interval
	c.mu.Unlock()
	if !due {
		return nil
	}
	return c.write(c.file.saveLazy, false)
}

// writeNew writes the counters without a flush if there is something new.
func (c *counters) writeNew() error {
	c.mu.Lock()
	dirty := c.dirty
	c.mu.Unlock()
	if !dirty {
		return nil
	}
	return c.write(c.file.saveLazy, false)
}

// save writes the counters, on flash on return: after recover, at a stop, and before something is removed that the file does not cover.
func (c *counters) save() error {
	return c.write(c.file.save, true)
}

// write puts the counters into the file.
func (c *counters) write(into func(v any) error, durable bool) error {
	c.saveMu.Lock()
	defer c.saveMu.Unlock()
	newest, wear := c.kept()
	if c.extra != nil {
		newest, wear = c.extra()
	}
	c.mu.Lock()
	c.state.Newest, c.state.Wear = newest, wear
	body, err := json.Marshal(c.state)
	lines := make(map[string]waterline, len(c.state.Streams))
	for name, s := range c.state.Streams {
		lines[name] = waterline{s.Position, s.Floor}
	}
	c.dirty, c.rejects, c.written = false, false, c.now()
	c.writes++
	c.mu.Unlock()
	if err == nil {
		err = into(json.RawMessage(body))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.dirty = true
		return fmt.Errorf("write counters: %w", err)
	}
	c.latest = lines
	if durable {
		c.covered = lines
	}
	return nil
}

// mark is taken before a sync and given to synced after it.
func (c *counters) mark() uint64 {
	c.saveMu.Lock() // waits for a write that has begun
	defer c.saveMu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.writes
}

// synced tells that a sync that began after mark succeeded. If the file was written again meanwhile, the next sync vouches for it.
func (c *counters) synced(mark uint64) error {
	c.saveMu.Lock()
	defer c.saveMu.Unlock()
	c.mu.Lock()
	current := c.writes == mark
	if current {
		c.covered = c.latest
	}
	c.mu.Unlock()
	if !current {
		return nil
	}
	if _, err := c.file.covered(); err != nil {
		return fmt.Errorf("write counters: %w", err)
	}
	return nil
}

// giveUp notes that everything below a position was forwarded, or that a gap record on flash tells of it, and returns when that is on flash and all
// records below are counted there: from then on they may be removed. What is missing above this floor at a start is damage.
func (c *counters) giveUp(stream string, below Position) error {
	c.note(stream, below)
	if c.removable(stream) >= below {
		return nil
	}
	err := c.write(c.file.saveOne, true)
	c.touch() // the other copy is to follow
	return err
}

// note is giveUp without waiting: the next checkpoint takes it to flash, see removable.
func (c *counters) note(stream string, below Position) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.stream(stream); below > s.Floor {
		s.sent(below)
		c.dirty = true
	}
}

// removable returns the position below which everything is given up and counted on flash.
func (c *counters) removable(stream string) Position {
	c.mu.Lock()
	defer c.mu.Unlock()
	line := c.covered[stream]
	return min(line.floor, line.position+1)
}

// recovered says what counting a stream anew at a start has found.
type recovered struct {
	Counted uint64      // records behind the position that the file named
	Newest  time.Time   // the latest wall time among them
	Lost    []GapRecord // records that were on flash and are not there: the caller stores these gap records, which counts them
}

// recover brings a stream's counters up to what the stream holds. To be called at a start, after a leap above position, and before the first record. Records that
// had been given up and came back, because their removal was not on flash, are removed again. Next the caller stores the gap records of what is
// lost, then calls save: in this order a crash in between loses no account and counts nothing twice.
func (c *counters) recover(ctx context.Context, name string, stream held) (recovered, error) {
	var r recovered
	view, err := stream.view(ctx)
	if err != nil {
		return r, err
	}
	c.mu.Lock()
	from := c.stream(name).Position + 1
	anew := c.stream(name).Stored == 0 // otherwise what was put back is counted, and may only have been moved
	c.mu.Unlock()
	if view.Last >= from {
		err = stream.scan(ctx, from, func(h heldRecord) error {
			e := entry{Stream: name, Position: h.Position, Source: h.ID.Source, Epoch: h.ID.Epoch, Seq: h.ID.Seq, Again: h.Again && anew}
			if e.Source == GapSource {
				full, err := stream.next(ctx, h.Position)
				if err != nil {
					return err
				}
				e.Body = full.Data
			}
			r.Counted++
			r.Newest = later(r.Newest, h.Stamp.Wall)
			// A gap record that does not read as one counts for nothing, here as at its commit.
			_ = c.committed(e)
			return nil
		})
		if err != nil {
			return r, fmt.Errorf("count stream %s: %w", name, err)
		}
	}
	c.mu.Lock()
	floor := c.stream(name).Floor
	c.mu.Unlock()
	if floor > view.First {
		if err := stream.purge(ctx, floor); err != nil {
			return r, err
		}
		if view, err = stream.view(ctx); err != nil {
			return r, err
		}
	}
	r.Lost, err = c.missing(ctx, name, stream, view)
	return r, err
}

// missing compares the census with the stream and returns, as gap records, what was on flash and is not in the stream any more. These are out of
// the census from then on.
func (c *counters) missing(ctx context.Context, name string, stream held, view streamView) ([]GapRecord, error) {
	c.mu.Lock()
	s := c.stream(name)
	s.Held.trim(s.Floor)
	captured, own := s.Held.count(0, view.Last)
	outside := len(s.Held.within(0, view.First-1))
	c.mu.Unlock()
	if outside == 0 && captured+own <= view.Messages {
		return nil, nil
	}
	var there census
	if view.Messages > 0 {
		read := uint64(0)
		err := stream.scan(ctx, view.First, func(h heldRecord) error {
			read++
			if h.ID.Source != "" && h.Position <= view.Last {
				there.add(h.Position, h.own())
			}
			return nil
		})
		if err == nil && read < view.Messages {
			err = fmt.Errorf("%w: it gives back %d of %d messages", ErrUnavailable, read, view.Messages)
		}
		if err != nil {
			return nil, fmt.Errorf("count stream %s: %w", name, err)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	there.runs = append(there.runs, s.Held.within(view.Last+1, ^Position(0))...) // in the journal
	var lost []GapRecord
	for _, hole := range holesOf(s.Held, there) {
		if captured, _ := s.Held.count(hole.first, hole.last); captured > 0 {
			lost = append(lost, GapRecord{Stream: name, First: hole.first, Last: hole.last, Count: captured, Reason: GapDamage})
		}
	}
	s.Held = there
	c.dirty = true
	return lost, nil
}

// holesOf returns the ranges between whose ends nothing of want is in have, each as long as can be.
func holesOf(want, have census) []span {
	var holes []span
	add := func(first, last Position) {
		in := want.within(first, last)
		if len(in) > 0 {
			holes = append(holes, span{first: in[0].first, last: in[len(in)-1].last})
		}
	}
	from := Position(1)
	for _, r := range have.runs {
		if r.first > from {
			add(from, r.first-1)
		}
		from = r.last + 1
	}
	add(from, ^Position(0))
	return holes
}

// found counts the captured records of a range that are in the stream and were not counted at their commit, because the journal lost what told of them.
func (c *counters) found(ctx context.Context, name string, stream held, within span) error {
	view, err := stream.view(ctx)
	if err != nil || view.Last < within.first {
		return err
	}
	var extra census
	end := errors.New("beyond")
	err = stream.scan(ctx, within.first, func(h heldRecord) error {
		if h.Position > within.last {
			return end
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		s := c.stream(name)
		if h.ID.Source == "" || h.Position > s.Position || len(s.Held.within(h.Position, h.Position)) > 0 {
			return nil
		}
		extra.add(h.Position, h.own())
		c.dirty = true
		if no := (recordNo{h.ID.Epoch, h.ID.Seq}); !h.own() {
			if no.after(s.Last[h.ID.Source]) {
				s.Last[h.ID.Source] = no
			}
			s.Stored++
			c.source(h.ID.Source).Stored++
		}
		return nil
	})
	if err != nil && !errors.Is(err, end) {
		return fmt.Errorf("count stream %s: %w", name, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stream(name)
	s.Held.runs = append(s.Held.runs, extra.runs...)
	slices.SortFunc(s.Held.runs, func(a, b span) int { return cmp.Compare(a.first, b.first) })
	return nil
}
