package storage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/holdfast-edge/holdfast/storage/blocks"
)

// verifiedLasts is how long a block that was read without a fault needs no reading again before it is sent. The medium may spoil what waits.
const verifiedLasts = time.Hour

// maxAside is how much of the disk the blocks that were set aside may take, in bytes; beyond, they are not kept.
const maxAside = 64 << 20

// verified says that a block was read without a fault.
type verified struct {
	size int64
	last Position // of its messages
	at   time.Time
}

// Mend puts damaged blocks of the captured streams right before the server opens them, since at the first damaged record the server cuts a block off, and
// drops what follows. It is called between Open and the start of the server. It reads what waits for the hub, that is what lies above forwarded; of a
// stream whose index is missing, damaged or older than its blocks it reads all, since the server is going to. Records that are gone get a gap record in
// Attach. What the journal has is compared with what the streams hold, see compare. It ends early with ctx; what was not read then is read by Verify. The
// streams of local applications are put right likewise, and raised after a power cut, see reserves.
func (s *Store) Mend(ctx context.Context, forwarded func(stream string) (Position, bool)) error {
	s.proofs = forwarded
	var faults []error
	for _, st := range s.streams {
		files := s.files(st)
		short, err := files.DropShort()
		if err != nil {
			faults = append(faults, err)
			continue
		}
		if short > 0 { // what is missing is found when the stream is counted
			s.log.Warn("the index of a stream tells of more than a block has: it is made anew", "stream", st.name(), "block", short)
		}
		index, err := files.Index()
		if err != nil {
			faults = append(faults, err)
			continue
		}
		var from Position
		if at, known := forwarded(st.name()); known && !index.Reads() {
			from = at + 1
		}
		bad, err := s.badBlocks(ctx, st, from)
		if err == nil && len(bad) > 0 {
			err = s.mendBlocks(files, bad)
		}
		if ctx.Err() != nil {
			break
		}
		faults = append(faults, err)
	}
	if ctx.Err() == nil {
		faults = append(faults, s.compare(ctx))
	}
	faults = append(faults, s.mendApplications(ctx))
	return errors.Join(faults...)
}

func (s *Store) files(st *stream) blocks.Stream {
	f := StreamFiles(s.options.Dir, st.name())
	f.Key.Secret, f.Key.Cipher = s.ServerKey()
	return f
}

// mendBlocks puts the blocks of some numbers right. The server must not have them open.
func (s *Store) mendBlocks(files blocks.Stream, numbers []int) error {
	began := s.now()
	_, done, err := files.Mend(mendingHands(s.aside(), files.Name), numbers...)
	for _, m := range done {
		lost := s.ofApplications(files.Dir) && (m.Problem != "" || len(m.Damage) > 0)
		s.alarmOf(files.BlockPath(m.Number), mendedText(m.Block), m.Aside, lost)
	}
	if len(done) > 0 {
		s.log.Warn("damaged blocks were put right", "stream", files.Name, "blocks", len(done), "dur", s.now().Sub(began))
	}
	if errors.Is(err, blocks.ErrEncrypted) {
		return nil // only the server can read them
	}
	return err
}

// mendedText says what was found in a block.
func mendedText(b blocks.Block) string {
	if b.Problem != "" {
		return "block cannot be read: " + b.Problem
	}
	var n int
	for _, d := range b.Damage {
		n += d.Bytes
	}
	return fmt.Sprintf("block damaged: %d bytes in %d places could not be read and were left out, %d records were restored by their checksum", n, len(b.Damage), b.Mended)
}

// mendingHands set blocks aside in a folder.
func mendingHands(aside, stream string) blocks.Hands {
	return blocks.Hands{
		Copy: func(path string) (string, error) {
			if folderSize(aside) > maxAside {
				return "", nil
			}
			return linkAside(path, aside, stream+"-"+filepath.Base(path))
		},
		Away:  func(path string) (string, error) { return setAside(path, aside, stream+"-"+filepath.Base(path)) },
		Write: func(path string, data []byte) error { return writeFile(path, data, true) },
	}
}

func folderSize(dir string) int64 {
	var sum int64
	names, _ := os.ReadDir(dir) // a folder that is not there has nothing in it
	for _, n := range names {
		if info, err := n.Info(); err == nil {
			sum += info.Size()
		}
	}
	return sum
}

// Verify reads what a stream holds from a position on and puts right what is damaged, so that nothing leaves the gateway, or is passed over, unverified. It is
// called before a consumer for the hub is made. What was read within verifiedLasts is not read again; the rest takes as long as the disk needs for it.
// An error means that ctx ended, or that the stream could not be put right for the moment.
func (s *Store) Verify(ctx context.Context, stream string, from Position) error {
	st := s.byName[stream]
	if st == nil {
		return fmt.Errorf("verify: stream %q is not there", stream)
	}
	select {
	case <-s.attached:
	case <-s.closing:
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
	bad, err := s.badBlocks(ctx, st, from)
	if err != nil || len(bad) == 0 {
		return err
	}
	if err := s.mendOnline(ctx, st, bad); err != nil {
		return fmt.Errorf("put right stream %s: %w", stream, err)
	}
	return nil
}

// badBlocks returns the numbers of damaged blocks among those that hold something from a position on.
func (s *Store) badBlocks(ctx context.Context, st *stream, from Position) ([]int, error) {
	files := s.files(st)
	numbers, err := files.Numbers()
	if err != nil {
		return nil, err
	}
	var bad []int
	for i, n := range slices.Backward(numbers) {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		last := i == len(numbers)-1
		info, err := os.Lstat(files.BlockPath(n))
		if errors.Is(err, fs.ErrNotExist) {
			continue // purged
		}
		if err != nil {
			return nil, err
		}
		st.verifyMu.Lock()
		v, known := st.verified[n]
		st.verifyMu.Unlock()
		if known && v.last < from && !last {
			break // and so do those in front
		}
		if known && v.size == info.Size() && s.now().Sub(v.at) < verifiedLasts {
			continue
		}
		b, err := files.Block(n)
		if errors.Is(err, blocks.ErrEncrypted) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		if last { // it is being written to, or the write that a stop interrupted; if more is gone, the counters know
			b.Damage = slices.DeleteFunc(b.Damage, func(d blocks.Damage) bool { return d.Before == 0 })
		}
		if b.Damaged() {
			if _, err := os.Lstat(files.BlockPath(n)); err == nil || !errors.Is(err, fs.ErrNotExist) {
				bad = append(bad, n)
			}
			continue
		}
		st.verifyMu.Lock()
		st.verified[n] = verified{size: info.Size(), last: Position(b.Last), at: s.now()}
		st.verifyMu.Unlock()
		if b.First > 0 && Position(b.First) <= from {
			break
		}
	}
	return bad, nil
}

// mendOnline puts blocks of a stream right while the server is there: JetStream is stopped for it, and nothing is published meanwhile.
func (s *Store) mendOnline(ctx context.Context, st *stream, numbers []int) error {
	if s.server().Pause == nil {
		return fmt.Errorf("%w: blocks %v are damaged", ErrUnavailable, numbers)
	}
	release, err := s.keeper.hold(ctx) // as in Leap
	if err != nil {
		return err
	}
	defer release()
	if err := s.mendStill(ctx, st, numbers); err != nil {
		return err
	}
	if err := s.storeLost(ctx); err != nil {
		return err
	}
	return s.keeper.refresh(ctx)
}

// mendStill keeps everybody else from publishing, and mends. Capture goes on in the journal.
func (s *Store) mendStill(ctx context.Context, st *stream, numbers []int) error {
	p := s.publisher
	select {
	case p.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-p.turn }()
	files := s.files(st)
	var mended error
	if err := s.server().Pause(func() { mended = s.mendBlocks(files, numbers) }); err != nil {
		return err
	}
	if mended != nil {
		return mended
	}
	last, err := s.position(ctx, st)
	if err != nil {
		return err
	}
	if last < st.last {
		p.rewind(st, last)
	}
	return s.recount(ctx, st)
}
