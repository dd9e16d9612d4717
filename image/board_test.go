package image

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-edge/holdfast/rig/machine"
	"github.com/holdfast-edge/holdfast/rig/poll"
)

// boardPatience is for one step of an emulated board beside other work: a start takes a minute on a machine that has nothing else to do.
const boardPatience = 20 * time.Minute

// cardSize is what the tests' cards hold: a power of two, as the emulated SD controller wants it, and more than the image.
const cardSize = 2 << 30

// card is a card that the image was written to.
type card struct {
	t      *testing.T
	folder string // of the image's kernel
	kind   machine.Kind
	file   string
	extra  string // on the kernel's command line
	nbd    string // socket of the disk that takes the place of file; empty: none
}

// newCard writes the image for a kind of machine, which make image built, to a card of size bytes.
func newCard(t *testing.T, kind machine.Kind, size int64) *card {
	t.Helper()
	if testing.Short() {
		t.Skip("emulates a board")
	}
	if *boardKind == "" {
		t.Skip("starts the image, which takes minutes: make image-test")
	}
	if err := machine.BoardAvailable(kind); err != nil {
		t.Skipf("SKIPPED, NOT TESTED: %v", err)
	}
	arch := "arm64"
	if kind == machine.PC {
		arch = "amd64"
	}
	folder, err := filepath.Abs("../dist/image/" + arch)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(folder, "image")); err != nil {
		t.Skipf("SKIPPED, NOT TESTED: no image for %s (make image builds it, with ARCH=%s): %v", arch, arch, err)
	}
	c := &card{t: t, folder: folder, kind: kind, file: filepath.Join(t.TempDir(), "card")}
	c.host("cp", "--sparse=always", filepath.Join(folder, "image"), c.file)
	if err := os.Truncate(c.file, size); err != nil {
		t.Fatal(err)
	}
	return c
}

// host runs a program beside the card, while it is out of the board.
func (c *card) host(args ...string) string {
	c.t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "MTOOLS_SKIP_CHECK=1", "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		c.t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return string(out)
}

// bootPartition is where the card's first partition begins, as mtools wants it.
func (c *card) bootPartition() string { return c.file + "@@4M" }

// put lays a file on the boot partition.
func (c *card) put(name, content string) {
	c.t.Helper()
	from := filepath.Join(c.t.TempDir(), name)
	if err := os.WriteFile(from, []byte(content), 0o600); err != nil {
		c.t.Fatal(err)
	}
	c.host("mcopy", "-o", "-i", c.bootPartition(), from, "::"+name)
}

// boot returns the text of a file on the boot partition, and whether it is there.
func (c *card) boot(name string) (string, bool) {
	c.t.Helper()
	list := c.host("mdir", "-b", "-i", c.bootPartition(), "::")
	if !strings.Contains(list, "::/"+name+"\n") {
		return "", false
	}
	return c.host("mtype", "-i", c.bootPartition(), "::"+name), true
}

// on starts the board with the card, and waits until it has settled: running, or degraded.
func (c *card) on() *board {
	c.t.Helper()
	began := time.Now()
	b := c.start()
	var state string
	if !b.wait(func() bool {
		state, _ = b.Run(c.t.Context(), boardPatience, "systemctl is-system-running --wait")
		return state == "running" || state == "degraded"
	}) {
		c.t.Fatalf("the board has not settled (%s):\n%s", state, b.Tail())
	}
	b.state = state
	c.t.Logf("the board is %s %v after it was switched on", state, time.Since(began).Round(time.Second))
	return b
}

// start starts the board and waits for its shell.
func (c *card) start() *board {
	c.t.Helper()
	dir, err := os.MkdirTemp("", "board") // sockets have short names
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = os.RemoveAll(dir) }) // sockets
	o := machine.BoardOptions{Kind: c.kind, Folder: c.folder, Image: c.file, Dir: dir, Append: c.extra}
	if c.nbd != "" {
		o.Image, o.NBD = c.nbd, true
	}
	m, err := machine.StartBoard(c.t.Context(), o, boardPatience)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(m.Kill)
	return &board{Board: m, t: c.t}
}

// board is a machine that runs the image.
type board struct {
	*machine.Board
	t     *testing.T
	state string // of the system when it had settled
}

// run runs a script on the board and wants it to succeed.
func (b *board) run(script string) string {
	b.t.Helper()
	out, err := b.Run(b.t.Context(), 5*time.Minute, script)
	if err != nil {
		b.t.Fatalf("%v\n%s\nconsole:\n%s", err, out, b.Tail())
	}
	return out
}

// wait waits until cond holds, with a second between two looks: each is work for the board. It returns false when that takes too long, or the board is off.
func (b *board) wait(cond func() bool) bool {
	for end := time.Now().Add(boardPatience); time.Now().Before(end) && !b.Ended() && b.t.Context().Err() == nil; {
		if cond() {
			return true
		}
		poll.Wait(b.t.Context(), time.Second, b.Ended)
	}
	return false
}

// until waits for a script to print want.
func (b *board) until(script, want string) {
	b.t.Helper()
	var got string
	if !b.wait(func() bool {
		got, _ = b.Run(b.t.Context(), time.Minute, script)
		return strings.Contains(got, want)
	}) {
		b.t.Fatalf("%s says %q, want %q in it\nconsole:\n%s", script, got, want, b.Tail())
	}
}

// off shuts the board down in order.
func (b *board) off() {
	b.t.Helper()
	_, _ = b.Run(b.t.Context(), time.Second, "systemctl --no-block poweroff") // the answer may not come any more
	poll.Until(b.t, boardPatience, b.Ended, "the board switches itself off")
	b.Kill()
}

// talk sends numbered lines into an adapter until stop is closed, and returns the last number.
func talk(line io.Writer, from int, stop <-chan struct{}) (last int, err error) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for n := from; ; n++ {
		if _, err := fmt.Fprintf(line, "%08d meter\n", n); err != nil {
			return n - 1, err
		}
		select {
		case <-tick.C:
		case <-stop:
			return n, nil
		}
	}
}

// talkUntil sends numbered lines until the condition holds.
func (b *board) talkUntil(from int, cond func() bool, what string) (last int) {
	b.t.Helper()
	line, err := b.Plug(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		var err error
		last, err = talk(line, from, stop)
		done <- err
	}()
	ok := b.wait(cond)
	close(stop)
	if err := <-done; err != nil && !errors.Is(err, os.ErrClosed) {
		b.t.Errorf("talk to the adapter: %v", err)
	}
	if !ok {
		state, _ := b.Run(b.t.Context(), time.Minute, "holdfast status; journalctl -b -u holdfast --no-pager -o short-monotonic | tail -20; ls -l /dev/holdfast; ip -br address")
		b.t.Fatalf("%s: not within %v\n%s\nconsole:\n%s", what, boardPatience, state, b.Tail())
	}
	return last
}
