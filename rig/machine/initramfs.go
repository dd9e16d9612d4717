package machine

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"sort"
)

// Initramfs is a root file system in memory for a kernel: files by their path inside.
type Initramfs map[string][]byte

// Add puts a file of this machine at a path inside.
func (i Initramfs) Add(inside, from string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	i[inside] = b
	return nil
}

// Write writes the archive that the kernel unpacks: cpio in the "newc" form, see the kernel's buffer-format document. All files can be executed.
func (i Initramfs) Write(w io.Writer) error {
	dirs := map[string]bool{}
	var names []string
	for name := range i {
		names = append(names, name)
		for d := path.Dir(name); d != "/" && d != "."; d = path.Dir(d) {
			dirs[d] = true
		}
	}
	for _, d := range []string{"/dev", "/proc", "/sys", "/tmp", "/data"} {
		dirs[d] = true
	}
	for d := range dirs {
		names = append(names, d)
	}
	sort.Strings(names) // a folder stands before what is in it
	var all bytes.Buffer
	node := 1
	put := func(name string, mode uint32, major, minor int, data []byte) {
		fmt.Fprintf(&all, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x", node, mode, 0, 0, 1, 0, len(data), 0, 0, major, minor, len(name)+1, 0)
		all.WriteString(name + "\x00")
		all.Write(make([]byte, -all.Len()&3))
		all.Write(data)
		all.Write(make([]byte, -all.Len()&3))
		node++
	}
	for _, name := range names {
		if dirs[name] {
			put(name[1:], 0o40755, 0, 0, nil)
			continue
		}
		put(name[1:], 0o100755, 0, 0, i[name])
	}
	put("dev/console", 0o20600, 5, 1, nil)
	put("TRAILER!!!", 0, 0, 0, nil)
	_, err := w.Write(all.Bytes())
	return err
}

// WriteFile writes the archive to a file.
func (i Initramfs) WriteFile(name string) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(i.Write(f), f.Close())
}
