package disk

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// childArg is the first argument of a process that serves a disk.
const childArg = "rig-disk"

// The operations that a parent asks of the process that serves its disk.
const (
	opTune  = "tune"
	opCut   = "cut"
	opStats = "stats"
	opQuit  = "quit"
)

type request struct {
	Op     string
	Tuning Tuning `json:",omitzero"`
	Path   string `json:",omitempty"`
	Mode   Mode   `json:",omitempty"`
	Seed   uint64 `json:",omitempty"`
}

type reply struct {
	Err       string
	Stats     Stats
	Survivors Survivors
}

// Main serves a disk when os.Args say so, until its parent asks it to quit or is gone. Call it first in main or TestMain, and exit with code
// when ran is true: New starts the running program anew with such arguments.
func Main(args []string) (code int, ran bool) {
	if len(args) != 3 || args[1] != childArg {
		return 0, false
	}
	// An interrupt of the terminal goes to the parent, which unmounts in the right order.
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM)
	// This process must not wait for writeback into the file system that it serves: see PR_SET_IO_FLUSHER in prctl(2). Helps where allowed.
	_ = unix.Prctl(unix.PR_SET_IO_FLUSHER, 1, 0, 0, 0)
	if err := serve(args[2], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "rig disk:", err)
		return 1, true
	}
	return 0, true
}

// serve answers requests from in until opQuit or the end of in.
func serve(options string, in io.Reader, out io.Writer) error {
	var o Options
	if err := json.Unmarshal([]byte(options), &o); err != nil {
		return err
	}
	dec, enc := json.NewDecoder(in), json.NewEncoder(out)
	dev, srv, err := start(o)
	if err != nil {
		return errors.Join(err, enc.Encode(reply{Err: err.Error()}))
	}
	if err := enc.Encode(reply{}); err != nil {
		return errors.Join(err, abandon(o.Dir, srv))
	}
	for {
		var req request
		if err := dec.Decode(&req); err != nil { // the parent is gone
			return abandon(o.Dir, srv)
		}
		if req.Op == opQuit {
			err := srv.Unmount()
			return errors.Join(err, enc.Encode(reply{Err: text(err)}))
		}
		if err := enc.Encode(answer(dev, req)); err != nil {
			return errors.Join(err, abandon(o.Dir, srv))
		}
	}
}

func start(o Options) (*device, *fuse.Server, error) {
	dev := newDevice(o.Size)
	if o.Image != "" {
		if err := dev.load(o.Image); err != nil {
			return nil, nil, err
		}
	}
	srv, err := mountFUSE(fuseDir(o.Dir), dev)
	return dev, srv, err
}

func answer(dev *device, req request) (r reply) {
	var err error
	switch req.Op {
	case opTune:
		dev.tune(req.Tuning)
	case opStats:
		r.Stats = dev.count()
	case opCut:
		var left []byte
		if left, r.Survivors, err = dev.survivors(req.Mode, req.Seed); err == nil {
			err = saveImage(req.Path, left)
		}
	default:
		err = fmt.Errorf("unknown operation %q", req.Op)
	}
	r.Err = text(err)
	return r
}

// abandon takes down what a parent that died has left mounted. Whoever still uses the file system gets I/O errors in the end.
func abandon(dir string, srv *fuse.Server) error {
	if err := unix.Unmount(mountDir(dir), unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmount %s: %w", mountDir(dir), err)
	}
	deadline := time.Now().Add(releaseTimeout)
	for {
		err := unix.Unmount(fuseDir(dir), 0) // busy until the loop device is free
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return errors.Join(fmt.Errorf("unmount %s: %w", fuseDir(dir), err), unix.Unmount(fuseDir(dir), unix.MNT_DETACH))
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// detachAll takes both mounts out of sight without waiting for anybody.
func detachAll(dir string) error {
	var errs []error
	for _, at := range []string{mountDir(dir), fuseDir(dir)} {
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			errs = append(errs, fmt.Errorf("unmount %s: %w", at, err))
		}
	}
	return errors.Join(errs...)
}

func fuseDir(dir string) string  { return filepath.Join(dir, "fuse") }
func mountDir(dir string) string { return filepath.Join(dir, "mnt") }

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
