package forward

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/leaf"
	"github.com/holdfast-edge/holdfast/storage"
)

const (
	// maxBridge is the widest hole in the sequences that a mirror is made to step over. Each step becomes a range of deleted messages;
	// a hub that was asked to list one of 2e12 ran out of memory.
	maxBridge = 1_000_000

	// A hub that is behind what it once acknowledged may have been read through a replica that lags: it is asked again. Before a gap
	// record is written it is asked for longer.
	lagReads     = 4
	lagPause     = 700 * time.Millisecond
	lagReadsLoss = 15

	// A foreign record is watched for so long before its store is taken for one that is gone: longer than a leaf of the same name
	// takes to come back after the hub gave its connection to us.
	quietReads = 5
	quietPause = time.Second
)

// shake finds out where the hub and the stream stand and brings them together. It returns where the consumer is to begin.
func (f *feed) shake(ctx context.Context) (storage.Position, error) {
	if !f.up.verified.Load() {
		if err := f.up.verify(ctx); err != nil {
			return 0, err
		}
		f.up.verified.Store(true)
	}
	n, err := f.read(ctx)
	if errors.Is(err, errHubStream) {
		return 0, f.missing(ctx)
	}
	if err != nil {
		return 0, err
	}
	if n.found && !f.up.store.Knows(n.id.Store) {
		f.owner.CompareAndSwap(ownerUnknown, ownerOther)
		if err := f.foreign(ctx, n); err != nil {
			return 0, err
		}
	}
	if n, err = f.believe(ctx, n); err != nil {
		return 0, err
	}
	if need := f.up.opts.Needs[f.name]; n.pos < need {
		return 0, &refusal{
			state: Refused, cause: fmt.Sprintf("hub stream %s has our records up to %d only, and ours begin behind %d: what is between would be missing for ever", f.hubStream, n.pos, need),
			remedy: "bring the part before to the hub first", retry: refusedRetry,
		}
	}
	if n.found {
		if err := f.meet(ctx, n); err != nil {
			if f.up.store.OutrunBy() > 0 {
				f.owner.CompareAndSwap(ownerUnknown, ownerOther)
			}
			return 0, err
		}
	}
	if n.found && n.id.Store != f.up.store.ID() {
		f.owner.CompareAndSwap(ownerUnknown, ownerOther)
	}
	f.owner.CompareAndSwap(ownerUnknown, ownerUs)
	if err := f.bridgeable(ctx, n); err != nil {
		return 0, err
	}
	f.prove(n.pos, f.own || n.found && n.id.Store == f.up.store.ID())
	if err := f.up.store.Verify(ctx, f.name, n.pos+1); err != nil {
		return 0, err // what the server would pass over without a word is put right, or told of, first
	}
	return n.pos + 1, nil
}

// Whose records the hub has under our name.
const (
	ownerUnknown int32 = iota
	ownerUs            // this store's, or nobody's
	ownerOther         // another store's, or those of another copy of this one
)

// owner returns whose records the hub had when it was first asked.
func (u *Uplink) owner() int32 {
	all := ownerUnknown
	for _, f := range u.feeds {
		all = max(all, f.owner.Load())
	}
	return all
}

// missing says why the hub stream does not answer, if the hub does.
func (f *feed) missing(ctx context.Context) error {
	if err := f.up.verify(ctx); err != nil {
		return err
	}
	return &refusal{
		state: Missing, cause: fmt.Sprintf("the hub answers, and hub stream %s does not: it was deleted or renamed, has direct reads off, or our user may not read it", f.hubStream),
		remedy: "make it, and switch allow_direct on, with: holdfast hub apply; if it has a new name, set forward.hub_stream here and in the fleet file; until then everything waits here", retry: missingRetry,
	}
}

// believe reads the hub again when it is behind what it once acknowledged: a lagging replica may have answered. When it stays so the
// hub was restored or its stream made anew; what is still kept is sent again, and a gap record tells of the rest.
func (f *feed) believe(ctx context.Context, n newest) (newest, error) {
	proven, known := f.forwarded()
	if !known || !f.own || n.pos >= proven {
		return n, nil
	}
	js, err := f.stream(ctx)
	if err != nil {
		return n, err
	}
	first := storage.Position(js.CachedInfo().State.FirstSeq)
	reads := lagReads
	if f.lost(n.pos, min(first-1, proven)).Count > 0 {
		reads = lagReadsLoss
	}
	for range reads {
		select {
		case <-ctx.Done():
			return n, ctx.Err()
		case <-time.After(lagPause):
		}
		again, err := f.read(ctx)
		if err != nil {
			return n, err
		}
		if again.pos >= n.pos && (!again.found || f.up.store.Knows(again.id.Store)) {
			n = again
		}
		if n.pos >= proven {
			return n, nil
		}
	}
	f.up.log.Warn("the hub lost records that it had, sending again what is kept", "stream", f.name, "hub", n.pos, "proven", proven, "first", first)
	lost := f.lost(n.pos, min(first-1, proven))
	if lost.Count == 0 {
		return n, nil
	}
	if err := f.up.store.Gap(ctx, lost); err != nil {
		return n, fmt.Errorf("gap record of what the hub lost: %w", err)
	}
	return n, nil
}

// lost returns the gap record of what the hub, at a position, does not have and the leaf, up to last, has not either. Sequences have
// holes, so what the store has counted bounds it; a count of 0 is no gap.
func (f *feed) lost(hub, last storage.Position) storage.GapRecord {
	if last <= hub {
		return storage.GapRecord{}
	}
	g := storage.GapRecord{Stream: f.name, First: hub + 1, Last: last, Count: uint64(last - hub), Reason: storage.GapNotKept}
	for _, s := range f.up.store.Streams() {
		if s.Name != f.name {
			continue
		}
		gone := s.Captured // epoch and gap records were never counted as stored
		for _, n := range s.Dropped {
			gone += n
		}
		g.Count = min(g.Count, s.Stored-min(s.Stored, gone))
	}
	return g
}

// foreign judges a hub whose newest record under our name is from a store that this one has never been. Either our card was wiped or
// swapped, and that store is no more: it is taken over. Or two gateways have one name: nothing is sent.
func (f *feed) foreign(ctx context.Context, n newest) error {
	if f.mirror {
		return f.otherIncarnation(fmt.Sprintf("it holds records of another store (%s) of this name", n.id.Store))
	}
	succeeded, err := f.succeeded(ctx, n.id.Store)
	if err != nil {
		return err
	}
	if f.own || succeeded {
		return f.sameName(n)
	}
	f.enter(Handshake, fmt.Sprintf("the hub has records of another store (%s) of our name; watching whether it is alive", n.id.Store), "")
	for range quietReads {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(quietPause):
		}
		if f.up.link.Link().Reason == leaf.ReasonDuplicate {
			return f.sameName(n)
		}
		again, err := f.read(ctx)
		if err != nil {
			return err
		}
		if again.pos != n.pos || again.id != n.id {
			return f.sameName(n)
		}
	}
	if err := f.up.store.Adopt(n.id.Store); err != nil {
		return fmt.Errorf("take over from store %s: %w", n.id.Store, err)
	}
	f.up.log.Warn("took over the name from a store that is gone", "stream", f.name, "store", n.id.Store)
	return nil
}

// succeeded reports whether that store, whose records the hub has, says of itself that it is the successor of ours: it was restored from a backup of ours, or took
// the name over when we were thought to be gone.
func (f *feed) succeeded(ctx context.Context, store storage.StoreID) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, hubTimeout)
	defer cancel()
	subject := storage.DataSubject(f.up.opts.Leaf, f.name, storage.EpochSource)
	m, err := f.up.nc.RequestWithContext(ctx, "$JS."+f.up.opts.Domain+".API.DIRECT.GET."+f.hubStream+"."+subject, nil)
	if err != nil {
		return false, fmt.Errorf("read the hub's newest epoch record: %w", err)
	}
	if m.Header.Get(headerStatus) != "" {
		return false, nil // there is none
	}
	var r struct {
		Known []storage.StoreID `json:"known"`
	}
	id, err := storage.ParseID(m.Header.Get(storage.HeaderID))
	if err != nil || id.Store != store || json.Unmarshal(m.Data, &r) != nil {
		return false, nil
	}
	return slices.Contains(r.Known, f.up.store.ID()), nil
}

func (f *feed) sameName(n newest) error {
	return &refusal{
		state:  SameName,
		cause:  fmt.Sprintf("hub stream %s has newer records from another store (%s) of the name %s", f.hubStream, n.id.Store, f.up.opts.Leaf),
		remedy: fmt.Sprintf("give one of the two gateways another leaf.name; if the other is gone for good, as after a swapped card: holdfast adopt %s", n.id.Store), retry: conflictRetry,
	}
}

// outrun refuses for good to forward from an older copy of a store: which of its records the hub has cannot be told by their numbers.
func (f *feed) outrun() error {
	return &refusal{
		state:  Refused,
		cause:  fmt.Sprintf("this data directory is an older copy: the hub has records of this very store from epoch %d, which was run from another copy", f.up.store.OutrunBy()),
		remedy: "move the directory away and start with an empty one: what is captured from then on is forwarded; what was captured into the copy stays in it", retry: refusedRetry,
	}
}

func (f *feed) otherIncarnation(why string) error {
	return &refusal{
		state: OtherIncarnation, cause: fmt.Sprintf("hub stream %s cannot go on as a mirror of ours: %s", f.hubStream, why),
		remedy: "give forward.hub_stream a new name here and in the hub's list of leaves, then make it with: holdfast hub apply", retry: refusedRetry,
	}
}

// meet makes sure that what the hub does not have lies above the hub's position, since it ignores everything else for ever.
func (f *feed) meet(ctx context.Context, n newest) error {
	js, err := f.stream(ctx)
	if err != nil {
		return err
	}
	state := js.CachedInfo().State
	first, last := storage.Position(state.FirstSeq), storage.Position(state.LastSeq)
	own := n.id.Store == f.up.store.ID()
	if f.up.store.OutrunBy() > 0 {
		return f.outrun()
	}
	apart := n.pos > last
	if !apart && n.pos >= first {
		if apart, err = f.parted(ctx, js, n); err != nil {
			return err
		}
	}
	if !apart {
		return nil
	}
	if own && n.id.Epoch >= f.up.store.Epoch() {
		if err := f.up.store.MarkOutrun(n.id.Epoch); err != nil {
			return err
		}
		return f.outrun()
	}
	if f.mirror && n.pos > last+maxBridge {
		return f.otherIncarnation(fmt.Sprintf("it is at %d and we are at %d", n.pos, last))
	}
	// The hub has all of that store up to that epoch: a store that was restored from a backup may hold records of it.
	keep, err := f.firstBehind(ctx, n.id.Store, n.id.Epoch, first, last)
	if err != nil {
		return err
	}
	if proven, known := f.forwarded(); !own && known && f.own {
		keep = max(keep, proven+1)
	}
	f.up.log.Warn("the hub is ahead of us, leaping above it", "stream", f.name, "hub", n.pos, "seq", last, "keep", keep)
	f.enter(Handshake, "the hub is ahead of this stream, whose end was lost; raising it", "")
	f.moving.Store(true)
	defer f.moving.Store(false)
	if err := f.up.store.Leap(ctx, f.name, n.pos, keep); err != nil {
		return fmt.Errorf("leap above the hub: %w", err)
	}
	return nil
}

// parted is true when the record at the hub's position is another one here: the stream lost its end and has grown past the hub since.
func (f *feed) parted(ctx context.Context, js jetstream.Stream, n newest) (bool, error) {
	m, err := js.GetMsg(ctx, uint64(n.pos))
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read stream %s at %d: %w", f.name, n.pos, err)
	}
	return m.Header.Get(storage.HeaderID) != n.id.String(), nil
}

// firstBehind returns the first position from which on all records are of later epochs than that one of that store, by bisection: epochs only grow, and a store's
// records lie behind those of the stores that it was restored from, in the order in which it knows them.
func (f *feed) firstBehind(ctx context.Context, store storage.StoreID, epoch uint64, first, last storage.Position) (storage.Position, error) {
	known := f.up.store.Known()
	age := func(id storage.StoreID) int {
		if id == f.up.store.ID() {
			return len(known)
		}
		return slices.Index(known, id)
	}
	low, high := max(first, 1), last+1
	for low < high {
		mid := low + (high-low)/2
		m, err := f.next(ctx, mid)
		if err != nil {
			return 0, err
		}
		if m == nil {
			high = mid
			continue
		}
		id, err := storage.ParseID(m.Header.Get(storage.HeaderID))
		if err != nil {
			return 0, fmt.Errorf("record %d of stream %s: %w", m.Sequence, f.name, err)
		}
		if age(id.Store) > age(store) || id.Store == store && id.Epoch > epoch {
			high = mid
		} else {
			low = storage.Position(m.Sequence) + 1
		}
	}
	return low, nil
}

// bridgeable refuses to make a mirror step over a hole that is too wide.
func (f *feed) bridgeable(ctx context.Context, n newest) error {
	if !f.mirror || !n.found {
		return nil
	}
	js, err := f.stream(ctx)
	if err != nil {
		return err
	}
	next := storage.Position(js.CachedInfo().State.LastSeq) + 1
	if m, err := f.next(ctx, n.pos+1); err != nil {
		return err
	} else if m != nil {
		next = storage.Position(m.Sequence)
	}
	if next > n.pos+maxBridge {
		return f.otherIncarnation(fmt.Sprintf("it is at %d, and our next record is %d", n.pos, next))
	}
	return nil
}
