package disk

import (
	"context"
	"fmt"
	"io"
	"log"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// imageName is the one file of the FUSE file system: the medium.
const imageName = "disk.img"

// file is the medium as a file. Its fsync is the flush that the loop device passes on.
type file struct {
	fs.Inode
	dev *device
}

var (
	_ fs.NodeGetattrer = (*file)(nil)
	_ fs.NodeSetattrer = (*file)(nil)
	_ fs.NodeOpener    = (*file)(nil)
	_ fs.NodeReader    = (*file)(nil)
	_ fs.NodeWriter    = (*file)(nil)
	_ fs.NodeFsyncer   = (*file)(nil)
	_ fs.NodeFlusher   = (*file)(nil)
)

// Getattr reports a regular file of the medium's size.
func (f *file) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	out.Mode = syscall.S_IFREG | 0o600
	out.Size = uint64(f.dev.size())
	out.Blocks = out.Size / sectorSize
	return 0
}

// Setattr changes nothing: a medium has its size for life.
func (f *file) Setattr(ctx context.Context, h fs.FileHandle, _ *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	return f.Getattr(ctx, h, out)
}

// Open lets every request through to the medium, past the kernel's page cache.
func (f *file) Open(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	return nil, fuse.FOPEN_DIRECT_IO, 0
}

// Read returns what the medium holds, flushed or not.
func (f *file) Read(_ context.Context, _ fs.FileHandle, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	return fuse.ReadResultData(dest[:f.dev.readAt(dest, off)]), 0
}

// Write takes data into the volatile cache.
func (f *file) Write(_ context.Context, _ fs.FileHandle, data []byte, off int64) (uint32, syscall.Errno) {
	if off < 0 || off+int64(len(data)) > f.dev.size() {
		return 0, syscall.ENOSPC
	}
	f.dev.writeAt(data, off)
	return uint32(len(data)), 0
}

// Fsync makes the cache durable.
func (f *file) Fsync(context.Context, fs.FileHandle, uint32) syscall.Errno {
	f.dev.flush()
	return 0
}

// Flush is a close of the file, not a flush of the medium.
func (f *file) Flush(context.Context, fs.FileHandle) syscall.Errno { return 0 }

// root is the directory that holds the medium.
type root struct {
	fs.Inode
	dev *device
}

// OnAdd puts the medium into the directory.
func (r *root) OnAdd(ctx context.Context) {
	child := r.NewPersistentInode(ctx, &file{dev: r.dev}, fs.StableAttr{Mode: syscall.S_IFREG, Ino: 2})
	r.AddChild(imageName, child, true)
}

// mountFUSE serves the medium as dir/disk.img until the server is unmounted.
func mountFUSE(dir string, dev *device) (*fuse.Server, error) {
	srv, err := fs.Mount(dir, &root{dev: dev}, &fs.Options{MountOptions: fuse.MountOptions{
		DirectMountStrict: true, // no helper program
		FsName:            "holdfast-rig-disk",
		Name:              "rigdisk",
		MaxWrite:          128 << 10,
		DisableXAttrs:     true,
		Logger:            log.New(io.Discard, "", 0),
	}})
	if err != nil {
		return nil, fmt.Errorf("mount FUSE on %s: %w", dir, err)
	}
	return srv, nil
}
