package storage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/holdfast-edge/holdfast/storage/blocks"
)

// appAccount is the server's account of local applications.
const appAccount = "APP"

// metadataFolder returns the folder below store with the copies of an account's streams.
func metadataFolder(of string) string {
	if of == appAccount {
		return "metadata-app"
	}
	return "metadata"
}

// appMetadata is where copies are kept for the streams of local applications.
func (s *Store) appMetadata() metaCopies {
	return metaCopies{streams: filepath.Join(s.jetstream(), appAccount, "streams"), copies: filepath.Join(s.home, metadataFolder(appAccount)), aside: s.aside()}
}

// ofApplications tells whether a path is below the streams of local applications.
func (s *Store) ofApplications(path string) bool {
	return strings.HasPrefix(path, s.appMetadata().streams+string(filepath.Separator))
}

// KeepAppMetadata copies the metadata of the streams of local applications aside, as that of the captured streams is, and forgets the copies of streams
// that are not there any more. A failure is no reason not to go on.
func (s *Store) KeepAppMetadata() {
	m := s.appMetadata()
	dirs, err := os.ReadDir(m.streams)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	there := map[string]bool{}
	for _, d := range dirs {
		if !d.IsDir() || strings.HasPrefix(d.Name(), ".") {
			continue
		}
		there[d.Name()] = true
		err = errors.Join(err, m.keep(d.Name()))
	}
	if copies, rerr := os.ReadDir(m.copies); rerr == nil && err == nil {
		for _, c := range copies {
			if !there[c.Name()] {
				err = errors.Join(err, os.Remove(filepath.Join(m.copies, c.Name())))
			}
		}
	}
	if err != nil {
		s.log.Warn("no copy of the metadata of local applications' streams", "err", err)
	}
}

// leastAhead is how far a reserve is above the last sequence of a stream of local applications at least. It is made anew when half is used up, and looked at
// every second: the server stores fewer in one.
const leastAhead = 1 << 19

// RestoredAhead is how far a stream of local applications that is restored from a backup goes on above it: what was given out after the backup is not known.
const RestoredAhead = leastAhead

// reserves is the file applications: what the sequences of the streams of local applications have surely not passed. These streams have no journal, so a power
// cut takes what was not flushed yet, and without the reserve the server would give its sequences out again: a revision of a key that an application has
// read could then stand for another value.
type reserves struct {
	file *stateFile
	boot string // of the kernel that runs

	mu    sync.Mutex // guards the fields below
	state reserveState
	seen  map[string]uint64 // last sequences at the newest look
}

type reserveState struct {
	Boot    string            `json:"boot"` // kernel boot in which this was written
	Rest    bool              `json:"rest"` // all was on flash at an orderly stop, and nothing was stored since
	Reserve map[string]uint64 `json:"reserve"`
}

// openReserves reads the file. One that is damaged or not there says nothing, and each stream is raised by leastAhead.
func (s *Store) openReserves() error {
	boot, err := kernelBootID()
	if err != nil {
		return fmt.Errorf("open store: %w", err)
	}
	r := &reserves{file: newStateFile(filepath.Join(s.home, "applications")), boot: boot, seen: map[string]uint64{}}
	if err := loadState(r.file, &r.state, s.log); err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.log.Error("how far the streams of local applications were cannot be read: they are raised", "err", err)
		r.state = reserveState{Boot: "unknown"}
	}
	if r.state.Reserve == nil {
		r.state.Reserve = map[string]uint64{}
	}
	s.reserves = r
	return nil
}

// applicationFiles returns the streams of local applications as they are on disk.
func (s *Store) applicationFiles() ([]blocks.Stream, error) {
	dir := s.appMetadata().streams
	names, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look at the streams of local applications: %w", err)
	}
	var all []blocks.Stream
	for _, n := range names {
		if n.IsDir() && !strings.HasPrefix(n.Name(), ".") {
			f := blocks.Stream{Dir: filepath.Join(dir, n.Name()), Name: n.Name()}
			f.Key.Secret, f.Key.Cipher = s.ServerKey()
			all = append(all, f)
		}
	}
	return all, nil
}

// mendApplications puts the streams of local applications right before the server opens them: damaged blocks of those that the server is going to read, and
// after anything but an orderly stop or the end of the process alone, their sequences.
func (s *Store) mendApplications(ctx context.Context) error {
	files, err := s.applicationFiles()
	faults := []error{err}
	r := s.reserves
	r.mu.Lock()
	defer r.mu.Unlock()
	cut := !r.state.Rest && r.state.Boot != "" && r.state.Boot != r.boot
	for _, f := range files {
		if ctx.Err() != nil {
			return errors.Join(append(faults, ctx.Err())...)
		}
		if err := s.mendApplication(f, cut); errors.Is(err, blocks.ErrEncrypted) {
			continue
		} else if err != nil {
			faults = append(faults, err)
		}
		if !cut {
			continue
		}
		to := r.state.Reserve[f.Name]
		if to == 0 {
			last, err := f.Last()
			faults = append(faults, err)
			to = last + leastAhead
		}
		raised, err := f.Raise(to, func(path string, data []byte) error { return writeFile(path, data, true) })
		if err != nil {
			faults = append(faults, err)
			continue
		}
		if raised {
			s.log.Warn("the power failed: a stream of local applications is raised, since it may have had more messages", "stream", f.Name, "to", to)
		}
		r.state.Reserve[f.Name] = max(r.state.Reserve[f.Name], to) + leastAhead
	}
	if len(files) > 0 {
		faults = append(faults, r.save(false))
	}
	return errors.Join(faults...)
}

// readAtStart is how large a stream of local applications may be for its blocks to be read at every start. Larger ones are read if the server is going to,
// and by VerifyApplications.
const readAtStart = 16 << 20

// mendApplication puts damaged blocks of a stream right. After a power cut its end may be missing without that being damage.
func (s *Store) mendApplication(f blocks.Stream, cut bool) error {
	index, err := f.Index()
	if err != nil || !index.Reads() && folderSize(filepath.Dir(f.BlockPath(1))) > readAtStart {
		return err
	}
	bad, end, err := badOf(f)
	if err != nil {
		return err
	}
	if index.Last > end && !cut {
		s.alarmOf(filepath.Dir(f.BlockPath(1)), fmt.Sprintf("the end of the stream is gone: it had sequences up to %d, and has them up to %d", index.Last, end), "", true)
	}
	if len(bad) == 0 {
		return nil
	}
	return s.mendBlocks(f, bad)
}

// badOf returns the numbers of the damaged blocks of a stream, and the highest sequence in them. What is no record at the end is no damage: the write that a
// stop interrupted, or that is under way.
func badOf(f blocks.Stream) (bad []int, end uint64, err error) {
	r, err := f.Walk(nil)
	for i, b := range r.Blocks {
		if i == len(r.Blocks)-1 {
			b.Damage = slices.DeleteFunc(b.Damage, func(d blocks.Damage) bool { return d.Before == 0 })
		}
		if b.Damaged() {
			bad = append(bad, b.Number)
		}
	}
	return bad, r.End, err
}

// VerifyApplications reads what local applications have stored, while the server runs, and raises an alarm for each block that is damaged. It leaves it as it
// is: the next start after anything but an orderly stop puts it right, or Repair.
func (s *Store) VerifyApplications(ctx context.Context) error {
	files, err := s.applicationFiles()
	faults := []error{err}
	for _, f := range files {
		first, _, err := badOf(f)
		if errors.Is(err, blocks.ErrEncrypted) || len(first) == 0 {
			continue
		}
		again, _, err := badOf(f) // the server may have rewritten a block meanwhile
		faults = append(faults, err)
		for _, n := range again {
			path := f.BlockPath(n)
			_, err := os.Lstat(path)
			if err != nil || !slices.Contains(first, n) || slices.ContainsFunc(s.Alarms(), func(a Alarm) bool { return a.Where == s.relative(path) }) {
				continue
			}
			s.alarmOf(path, "block damaged: stop the daemon, and `holdfast repair` keeps what can be read", "", true)
		}
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(faults...)
}

// save puts the reserves on flash. Needs mu.
func (r *reserves) save(rest bool) error {
	r.state.Boot, r.state.Rest = r.boot, rest
	return r.file.saveOne(r.state)
}

// ReserveApplications is told how far the streams of local applications are, about every second. What it returns nil for will not be given out again after a
// power cut, nor what follows within half of leastAhead. It writes only when a reserve is used up by half, or a stream is new.
func (s *Store) ReserveApplications(last map[string]uint64) error {
	r := s.reserves
	r.mu.Lock()
	defer r.mu.Unlock()
	grow := r.state.Rest
	for name, at := range last {
		grown := at - min(at, r.seen[name])
		if r.seen[name] == 0 {
			grown = 0
		}
		r.seen[name] = at
		if ahead := max(leastAhead, 16*grown); r.state.Reserve[name] < at+ahead/2 {
			r.state.Reserve[name] = at + ahead
			grow = true
		}
	}
	if !grow {
		return nil
	}
	for name := range r.state.Reserve { // of streams that were removed
		if _, there := last[name]; !there {
			delete(r.state.Reserve, name)
			delete(r.seen, name)
		}
	}
	return r.save(false)
}

// RestApplications is called after the server has stopped: it flushes what local applications have stored, so that the next start need not suspect anything.
func (s *Store) RestApplications() error {
	dir, err := os.Open(s.jetstream())
	if err != nil {
		return fmt.Errorf("put local applications' streams to rest: %w", err)
	}
	err = unix.Syncfs(int(dir.Fd()))
	if err = errors.Join(err, dir.Close()); err != nil {
		return fmt.Errorf("put local applications' streams to rest: %w", err)
	}
	r := s.reserves
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.state.Reserve) == 0 {
		return nil
	}
	return r.save(true)
}
