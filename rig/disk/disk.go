// Package disk is a disk whose power can be cut: a RAM disk with a volatile write cache, an ext4 on it, and the images that a power cut would leave.
//
// A child process serves the medium as one FUSE file; a loop device makes a block device of it, on which an ext4 is mounted. What the file system writes
// goes to the volatile cache, a flush makes the cache durable. Cut writes, at any instant and while everything runs on, the image of what would survive.
package disk

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"
)

// DefaultSize is the size of a disk in bytes when Options give none.
const DefaultSize = 128 << 20

// quitTimeout bounds the wait for the serving process to end.
const quitTimeout = 15 * time.Second

// Options say what a new disk is.
type Options struct {
	Dir    string // an existing directory for the mount points and the images; it must not hold another disk
	Size   int64  // bytes, a multiple of 4096; zero: DefaultSize, or the size of Image
	Image  string // what the disk holds at first, all of it durable; empty: a fresh ext4
	Tuning Tuning // how it behaves from the moment it is mounted
}

// Disk is a running disk. Its methods are safe for concurrent use.
type Disk struct {
	dir   string
	mount *Mount
	child *exec.Cmd
	in    io.WriteCloser
	log   *bytes.Buffer // the child's stderr, to be read after it ended

	mu   sync.Mutex // guards the fields below: one request at a time
	enc  *json.Encoder
	dec  *json.Decoder
	gone bool
}

// New starts a disk and mounts its file system. The caller ends it with Close. Main must have been called by the running program: see there.
// When the program dies before Close, the serving process takes everything down by itself.
func New(o Options) (*Disk, error) {
	if err := Available(); err != nil {
		return nil, err
	}
	if err := o.complete(); err != nil {
		return nil, err
	}
	for _, dir := range []string{fuseDir(o.Dir), mountDir(o.Dir)} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
	}
	d, err := launch(o)
	if err != nil {
		return nil, fmt.Errorf("serve the disk: %w", err)
	}
	medium := filepath.Join(fuseDir(o.Dir), imageName)
	if o.Image == "" {
		err = Format(medium)
	}
	if err == nil {
		d.mount, err = Open(medium, mountDir(o.Dir))
	}
	if err == nil {
		err = d.Tune(o.Tuning)
	}
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

func (o *Options) complete() error {
	if o.Dir == "" {
		return errors.New("disk: no directory given")
	}
	if o.Size == 0 {
		o.Size = DefaultSize
		if o.Image != "" {
			info, err := os.Stat(o.Image)
			if err != nil {
				return err
			}
			o.Size = info.Size()
		}
	}
	if o.Size < 0 || o.Size%blockSize != 0 {
		return fmt.Errorf("disk of %d bytes: want a multiple of %d", o.Size, blockSize)
	}
	return nil
}

// launch starts the serving process and waits until the medium is there.
func launch(o Options) (*Disk, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	options, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	d := &Disk{dir: o.Dir, child: exec.Command(self, childArg, string(options)), log: new(bytes.Buffer)}
	d.child.Stderr = d.log
	if d.in, err = d.child.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := d.child.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := d.child.Start(); err != nil {
		return nil, err
	}
	d.enc, d.dec = json.NewEncoder(d.in), json.NewDecoder(out)
	var ready reply
	if err := d.dec.Decode(&ready); err != nil {
		return nil, errors.Join(fmt.Errorf("no answer from the serving process (does TestMain call disk.Main?): %w", err), d.end())
	}
	if ready.Err != "" {
		return nil, errors.Join(errors.New(ready.Err), d.end())
	}
	return d, nil
}

// Dir returns the directory in which the disk's file system is mounted.
func (d *Disk) Dir() string { return d.mount.Dir }

// Mount returns the disk's file system as it is mounted. The disk closes it.
func (d *Disk) Mount() *Mount { return d.mount }

// Tune changes the disk's behaviour from now on.
func (d *Disk) Tune(t Tuning) error {
	_, err := d.ask(request{Op: opTune, Tuning: t})
	return err
}

// Stats returns what reached the medium so far.
func (d *Disk) Stats() (Stats, error) {
	r, err := d.ask(request{Op: opStats})
	return r.Stats, err
}

// Cut writes to path the image that a power cut at this instant would leave; the disk runs on. Give the image to Open, or as Options.Image to New.
func (d *Disk) Cut(path string, mode Mode, seed uint64) (Survivors, error) {
	r, err := d.ask(request{Op: opCut, Path: path, Mode: mode, Seed: seed})
	return r.Survivors, err
}

func (d *Disk) ask(req request) (reply, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.gone {
		return reply{}, fmt.Errorf("disk %s: %w", req.Op, os.ErrClosed)
	}
	return d.exchange(req)
}

// exchange does one request; d.mu is held.
func (d *Disk) exchange(req request) (reply, error) {
	var r reply
	if err := d.enc.Encode(req); err != nil {
		return reply{}, fmt.Errorf("disk %s: %w", req.Op, err)
	}
	if err := d.dec.Decode(&r); err != nil {
		return reply{}, fmt.Errorf("disk %s: %w", req.Op, err)
	}
	if r.Err != "" {
		return reply{}, fmt.Errorf("disk %s: %s", req.Op, r.Err)
	}
	return r, nil
}

// Close unmounts everything and ends the serving process. Files still open on the disk after 10 seconds are an error, and get I/O errors. Images stay.
func (d *Disk) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.gone {
		return nil
	}
	var errs []error
	if d.mount != nil {
		errs = append(errs, d.mount.Close())
	}
	_, err := d.exchange(request{Op: opQuit})
	d.gone = true
	return errors.Join(append(errs, err, d.end())...)
}

// end waits for the serving process, which quits when its input ends; one that hangs is killed and what it served is taken down.
func (d *Disk) end() error {
	_ = d.in.Close() // it may have quit already
	killer := time.AfterFunc(quitTimeout, func() { _ = d.child.Process.Kill() })
	err := d.child.Wait()
	if !killer.Stop() {
		err = errors.Join(err, fmt.Errorf("the process that serves %s did not quit and was killed", d.dir), detachAll(d.dir))
	}
	if err != nil && d.log.Len() > 0 {
		err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(d.log.Bytes()))
	}
	return err
}
