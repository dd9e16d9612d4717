package storage

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

// tempSuffix marks files that were being written when the process or the machine stopped; they carry nothing anyone relies on.
const tempSuffix = ".hf-tmp"

// DamagedError says that a file of ours cannot be used: its checksum does not fit its content, and neither does its copy's.
type DamagedError struct {
	Path  string // the file, without the suffix of its copy
	Cause error  // what is wrong with each of the two
}

// Error names the file and what is wrong with it.
func (e *DamagedError) Error() string {
	return fmt.Sprintf("%s and its copy are damaged: %v", e.Path, e.Cause)
}

// Unwrap returns the cause.
func (e *DamagedError) Unwrap() error { return e.Cause }

// WriteFile replaces the file at path by data in one step: whoever reads path, also after a power cut at any moment, finds the old content or the new.
// With sync the new content is on flash when it returns; without, it costs no flush of its own and is on flash with the next commit. The directory
// must exist. It is the one way in which files of our own are replaced, here and in other packages.
func WriteFile(path string, data []byte, sync bool) error { return writeFile(path, data, sync) }

// writeFile replaces the file at path by data, in one step: whoever reads path, also after a power cut at any moment, finds the old content or the new.
//
// With sync the new content is on flash when writeFile returns. Without, it costs no flush and is on flash after the next syncfs of its file
// system; until then a power cut may leave an empty file on file systems other than ext4, so what is written this way needs a second copy (see stateFile).
func writeFile(path string, data []byte, sync bool) (err error) {
	dir, name := filepath.Split(path)
	f, err := os.CreateTemp(dir, "."+name+".*"+tempSuffix)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	open := true
	defer func() {
		if err == nil {
			return
		}
		if open {
			_ = f.Close() // the first error is the one to report
		}
		_ = os.Remove(f.Name()) // removeTemps finds it if this fails
	}()
	if _, err = f.Write(data); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	st, err := f.Stat()
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if st.Size() != int64(len(data)) {
		return fmt.Errorf("write %s: %d of %d bytes arrived in the file", path, st.Size(), len(data))
	}
	if sync {
		if err = f.Sync(); err != nil {
			return fmt.Errorf("write %s: %w", path, err)
		}
	}
	open = false
	if err = f.Close(); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if sync {
		return place(f.Name(), path)
	}
	if err = os.Rename(f.Name(), path); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// writeOrOverwrite is writeFile where a reader can make do without the file, since it has a copy or knows what its damage means: on a full disk, where there
// is no room for another file, it is written over in place, which takes no room.
func writeOrOverwrite(path string, data []byte, sync bool) error {
	err := writeFile(path, data, sync)
	if !noRoom(err) {
		return err
	}
	f, oerr := os.OpenFile(path, os.O_WRONLY, 0)
	if oerr != nil {
		return err // there is none yet
	}
	defer func() { _ = f.Close() }() // what counts was synced, or need not be
	if _, oerr = f.WriteAt(data, 0); oerr == nil {
		oerr = f.Truncate(int64(len(data)))
	}
	if oerr == nil && sync {
		oerr = f.Sync()
	}
	if oerr != nil {
		return errors.Join(err, oerr)
	}
	return nil
}

// place gives a file its name, on flash on return.
func place(temp, path string) error {
	if err := os.Rename(temp, path); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	// The rename happened: an error from here on means that it may not survive a power cut.
	return syncDir(filepath.Dir(path))
}

// syncPlaced makes a file durable that has its name already, and the name.
func syncPlaced(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("sync %s: %w", path, err)
	}
	err = f.Sync()
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("sync %s: %w", path, err)
	}
	return syncDir(filepath.Dir(path))
}

// syncDir makes the names in a directory durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync directory %s: %w", dir, err)
	}
	err = d.Sync()
	if cerr := d.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("sync directory %s: %w", dir, err)
	}
	return nil
}

// removeTemps removes what interrupted calls of writeFile left in dir. A directory that does not exist has nothing to remove.
func removeTemps(dir string) error {
	names, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove unfinished files: %w", err)
	}
	for _, n := range names {
		if !strings.HasPrefix(n.Name(), ".") || !strings.HasSuffix(n.Name(), tempSuffix) {
			continue
		}
		if err := os.Remove(filepath.Join(dir, n.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove unfinished file: %w", err)
		}
	}
	return nil
}

// setAside moves a damaged file or directory to dir/<name>, <name>.2, .3 and so on, so that nothing of it is lost and nothing trips over it
// again, and returns where it went. The move is on flash on return. Both must be on one file system.
func setAside(path, dir, name string) (string, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("set %s aside: %w", path, err)
	}
	to := filepath.Join(dir, name)
	for n := 2; ; n++ {
		if _, err := os.Lstat(to); errors.Is(err, fs.ErrNotExist) {
			break
		} else if err != nil {
			return "", fmt.Errorf("set %s aside: %w", path, err)
		}
		to = filepath.Join(dir, name+"."+strconv.Itoa(n))
	}
	if err := os.Rename(path, to); err != nil {
		return "", fmt.Errorf("set %s aside: %w", path, err)
	}
	if err := syncDir(dir); err != nil {
		return "", err
	}
	if err := syncDir(filepath.Dir(path)); err != nil {
		return "", err
	}
	return to, nil
}

// linkAside keeps the bytes of a file in dir/<name>, <name>.2 and so on without taking room, for when the file itself is about to be replaced, and returns
// where. Both must be on one file system.
func linkAside(path, dir, name string) (string, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("keep %s: %w", path, err)
	}
	to := filepath.Join(dir, name)
	for n := 2; ; n++ {
		err := os.Link(path, to)
		if err == nil {
			return to, syncDir(dir)
		}
		if !errors.Is(err, fs.ErrExist) {
			return "", fmt.Errorf("keep %s: %w", path, err)
		}
		to = filepath.Join(dir, name+"."+strconv.Itoa(n))
	}
}

// stateFile keeps one small JSON value in two files, <path> and <path>.bak, each with a checksum and a generation. A damaged one is made up for
// by the other, and no power cut harms both. Safe for concurrent use.
//
// Each file is the JSON body, a newline, and a trailer "#<generation> <crc32c in hex>" whose checksum covers all before it.
type stateFile struct {
	path string

	mu         sync.Mutex // guards the fields below
	generation uint64     // of the newest copy
	have       [2]uint64  // generation that each copy holds; 0: missing, damaged or unknown
	safe       int        // the copy known to be on flash; the only one that lazy writes spare
	pending    bool       // the other copy was written lazily and not covered yet
	body       []byte     // of the newest copy
}

func newStateFile(path string) *stateFile { return &stateFile{path: path} }

func (f *stateFile) copyPath(i int) string {
	if i == 0 {
		return f.path
	}
	return f.path + ".bak"
}

// load decodes the newest undamaged copy into v and names copies that were there but damaged, which the next save replaces. The error wraps
// fs.ErrNotExist when there is no copy at all and is a *DamagedError when none can be used.
func (f *stateFile) load(v any) (damaged []string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.generation, f.have, f.safe, f.pending, f.body = 0, [2]uint64{}, 0, false, nil
	var faults []error
	for i := range f.have {
		raw, err := os.ReadFile(f.copyPath(i))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return damaged, fmt.Errorf("read state: %w", err)
		}
		body, gen, err := openState(raw)
		if err != nil {
			damaged = append(damaged, f.copyPath(i))
			faults = append(faults, fmt.Errorf("%s: %w", f.copyPath(i), err))
			continue
		}
		f.have[i] = gen
		if gen > f.generation {
			f.generation, f.safe, f.body = gen, i, body
		}
	}
	if f.generation == 0 {
		if len(faults) > 0 {
			return damaged, &DamagedError{Path: f.path, Cause: errors.Join(faults...)}
		}
		return nil, fmt.Errorf("read state: %s: %w", f.path, fs.ErrNotExist)
	}
	if err := json.Unmarshal(f.body, v); err != nil {
		return damaged, &DamagedError{Path: f.path, Cause: err}
	}
	return damaged, nil
}

// save puts v into both copies, on flash on return, whatever of the two was on flash before: at every moment one whole copy is.
func (f *stateFile) save(v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("save %s: %w", f.path, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.generation++
	f.body = body
	first := 1 - f.safe
	for _, i := range [2]int{first, 1 - first} {
		if err := f.write(i, true); err != nil {
			return err
		}
		f.safe = i
	}
	f.pending = false
	return nil
}

// saveOne is save for one flush: v is on flash in one copy on return, and in the other after the next saveLazy and syncfs, which the caller sees to soon:
// until then damage of the first brings back what was before.
func (f *stateFile) saveOne(v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("save %s: %w", f.path, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.generation++
	f.body = body
	i := 1 - f.safe
	whole := f.have[f.safe] != 0
	if err := f.write(i, !whole); err != nil {
		return err
	}
	if whole {
		// As there is another copy, the file may get its name before its content is on flash. So one transaction of the file system has both.
		if err := syncPlaced(f.copyPath(i)); err != nil {
			return err
		}
	}
	f.safe, f.pending = i, false
	return nil
}

// saveLazy puts v into the copy that is not known to be on flash, without a flush. The caller calls covered after the next syncfs.
func (f *stateFile) saveLazy(v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("save %s: %w", f.path, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.generation++
	f.body = body
	if err := f.write(1-f.safe, false); err != nil {
		return err
	}
	f.pending = true
	return nil
}

// covered tells that a syncfs which began after the last saveLazy succeeded. If the other copy is older, it is written anew, lazily: from the
// next syncfs on both copies say the same. It reports whether anything was written.
func (f *stateFile) covered() (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.pending {
		return false, nil
	}
	f.safe, f.pending = 1-f.safe, false
	other := 1 - f.safe
	if f.have[other] == f.generation {
		return false, nil
	}
	if err := f.write(other, false); err != nil {
		return false, err
	}
	f.pending = true
	return true, nil
}

// write puts the current body into copy i. Needs mu.
func (f *stateFile) write(i int, sync bool) error {
	f.have[i] = 0
	if err := writeOrOverwrite(f.copyPath(i), sealState(f.body, f.generation), sync); err != nil {
		return err
	}
	f.have[i] = f.generation
	return nil
}

// sealState adds the trailer to a body.
func sealState(body []byte, generation uint64) []byte {
	out := append([]byte{}, body...)
	out = fmt.Appendf(out, "\n#%d ", generation)
	return fmt.Appendf(out, "%08x\n", crc32.Checksum(out, crc32.MakeTable(crc32.Castagnoli)))
}

// openState checks and removes the trailer.
func openState(raw []byte) (body []byte, generation uint64, err error) {
	if len(raw) == 0 {
		return nil, 0, errors.New("empty file")
	}
	at := bytes.LastIndex(raw, []byte("\n#"))
	if at < 0 {
		return nil, 0, errors.New("no checksum line")
	}
	g, sum, found := strings.Cut(string(raw[at+2:]), " ")
	if !found {
		return nil, 0, errors.New("checksum line is cut short")
	}
	covered := raw[:len(raw)-len(sum)]
	if want := fmt.Sprintf("%08x\n", crc32.Checksum(covered, crc32.MakeTable(crc32.Castagnoli))); want != sum {
		return nil, 0, errors.New("checksum does not fit the content")
	}
	generation, err = strconv.ParseUint(g, 10, 64)
	if err != nil || generation == 0 {
		return nil, 0, errors.New("checksum line has no generation")
	}
	return raw[:at], generation, nil
}
