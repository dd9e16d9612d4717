package powercut

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/holdfast-edge/holdfast/rig/poll"
	"github.com/holdfast-edge/holdfast/storage"
)

// ack is an acknowledged record: its ID, and the number that its device gave it.
type ack struct {
	id     storage.ID
	number uint64
}

// life is a leaf process as its parent sees it.
type life struct {
	t     *testing.T
	leaf  string
	cmd   *exec.Cmd
	stdin io.WriteCloser
	ended chan struct{} // closed when everything that it said has been read and it has been waited for

	mu      sync.Mutex // guards the fields below
	epoch   string     // store id and epoch; empty until the store is open
	acks    []ack
	appends int             // calls of Append that were acknowledged
	has     map[string]bool // IDs of the dump that is under way, or was the last one
	holds   []string        // data of the MQTT devices' records in that dump, in order
	dumps   int
	stopped bool
	opened  account           // when the store was opened
	account account           // the newest
	told    int               // accounts
	rejects map[string]uint64 // by source, of this life
	bucket  bucketSeen
	faults  []string
	stderr  bytes.Buffer
}

// startLife starts a leaf process in a mount namespace of its own.
func startLife(t *testing.T, s spec) *life {
	t.Helper()
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	l := &life{t: t, leaf: s.Name, cmd: exec.Command(self, leafArg, string(text)), ended: make(chan struct{}), has: map[string]bool{}, rejects: map[string]uint64{}, bucket: newBucketSeen()}
	l.cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	l.cmd.Stderr = lockedWriter{l}
	if l.stdin, err = l.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := l.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := l.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(l.ended)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			l.hear(lines.Text())
		}
		_ = l.cmd.Wait() // killed more often than not
	}()
	t.Cleanup(l.kill)
	return l
}

// lockedWriter collects what a leaf logs.
type lockedWriter struct{ l *life }

func (w lockedWriter) Write(p []byte) (int, error) {
	w.l.mu.Lock()
	defer w.l.mu.Unlock()
	return w.l.stderr.Write(p)
}

// hear takes one line of a leaf.
func (l *life) hear(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	word, rest, _ := strings.Cut(line, " ")
	switch word {
	case "ack":
		var source, store string
		var epoch, seq, number uint64
		var n int
		if _, err := fmt.Sscan(rest, &source, &store, &epoch, &seq, &number, &n); err != nil {
			l.faults = append(l.faults, fmt.Sprintf("line %q: %v", line, err))
			return
		}
		l.appends++
		for i := range uint64(n) {
			id := storage.ID{Leaf: l.leaf, Store: storage.StoreID(store), Source: source, Epoch: epoch, Seq: seq + i}
			l.acks = append(l.acks, ack{id: id, number: number + i})
		}
	case "epoch":
		l.epoch = rest
	case "reject":
		l.rejects[rest]++
	case "account":
		var a account
		if err := json.Unmarshal([]byte(rest), &a); err != nil {
			l.faults = append(l.faults, fmt.Sprintf("line %q: %v", line, err))
		}
		if l.account = a; l.told == 0 {
			l.opened = a
		}
		l.told++
	case "has":
		l.has[rest] = true
	case "holds":
		l.holds = append(l.holds, rest)
	case "dumped":
		l.dumps++
	case "found", "given", "flushed":
		l.hearBucket(word, rest)
	case "stopped":
		l.stopped = true
	default:
		l.faults = append(l.faults, line)
	}
}

// stop halts the process where it is and returns when all its threads stand still; writes that the kernel has in hand go on. The signal alone takes as long
// as it takes the kernel to give one of the threads the processor, and the others go on until then.
func (l *life) stop() {
	l.t.Helper()
	if err := l.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		l.t.Fatal(err)
	}
	tasks := filepath.Join("/proc", strconv.Itoa(l.cmd.Process.Pid), "task", "*", "stat")
	still := func() bool {
		stats, err := filepath.Glob(tasks)
		if err != nil || len(stats) == 0 {
			return false
		}
		for _, stat := range stats {
			text, err := os.ReadFile(stat)
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
				continue // it has ended
			}
			_, state, _ := bytes.Cut(text, []byte(") "))
			// T: stopped, D: in the kernel, which lets it stop when its write is through; only that is in hand
			if err != nil || !bytes.HasPrefix(state, []byte("T")) && !bytes.HasPrefix(state, []byte("D")) {
				return false
			}
		}
		return true
	}
	if !poll.Wait(l.t.Context(), *patience, still) {
		l.t.Fatal("the leaf's process does not stop")
	}
}

// kill ends the process at once and waits until everything that it said is read.
func (l *life) kill() {
	_ = l.cmd.Process.Kill() // it may have ended by itself
	<-l.ended
}

// say gives the process an order.
func (l *life) say(word string) {
	l.t.Helper()
	if word == "dump" {
		l.mu.Lock()
		clear(l.has)
		l.holds = nil
		l.mu.Unlock()
	}
	if _, err := io.WriteString(l.stdin, word+"\n"); err != nil {
		l.t.Fatalf("order %q: %v\n%s", word, err, l.log())
	}
}

// until waits for a condition on what the process said; cond is called with the lock held.
func (l *life) until(what string, cond func() bool) {
	l.t.Helper()
	gone := false
	ok := poll.Wait(l.t.Context(), *patience, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		select {
		case <-l.ended:
			gone = true
		default:
		}
		return gone || len(l.faults) > 0 || cond()
	})
	l.mu.Lock()
	faults := slices.Clone(l.faults)
	l.mu.Unlock()
	if !ok || gone || len(faults) > 0 {
		l.t.Fatalf("waiting for %s: leaf process gone: %v, faults: %q\n%s", what, gone, faults, l.log())
	}
}

// acknowledged returns what has been acknowledged so far.
func (l *life) acknowledged() []ack {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.acks)
}

// accounts returns how many accounts the process has given.
func (l *life) accounts() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.told
}

// log returns the last lines that the process logged.
func (l *life) log() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := l.stderr.Bytes()
	return string(text[max(0, len(text)-8000):])
}

// logged says whether the process has logged a text.
func (l *life) logged(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Contains(l.stderr.Bytes(), []byte(text))
}
