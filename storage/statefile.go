package storage

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"sync"
)

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
	read       bool       // safe was read, perhaps out of the page cache only: lazy writes sync it first
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
	f.generation, f.have, f.safe, f.read, f.pending, f.body = 0, [2]uint64{}, 0, true, false, nil
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
		f.safe, f.read = i, false
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
	f.safe, f.read, f.pending = i, false, false
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
	if err := f.overwrite(1 - f.safe); err != nil {
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
	f.safe, f.read, f.pending = 1-f.safe, false, false
	other := 1 - f.safe
	if f.have[other] == f.generation {
		return false, nil
	}
	if err := f.overwrite(other); err != nil {
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

// overwrite puts the current body into copy i, which is not the safe one, in place: another file under the name would cost a dozen blocks of the file system's,
// and of this copy a cut may leave what it likes. Needs mu.
func (f *stateFile) overwrite(i int) error {
	f.have[i] = 0
	if f.have[f.safe] == 0 {
		return f.write(i, false) // it is the only one
	}
	if f.read {
		if err := syncPlaced(f.copyPath(f.safe)); err != nil {
			return err
		}
		f.read = false
	}
	if err := overwrite(f.copyPath(i), sealState(f.body, f.generation), false); err != nil {
		return f.write(i, false) // there is none yet, or it is no file
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
