package mqtt

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-edge/holdfast/ingest"
	"github.com/holdfast-edge/holdfast/storage"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == "child" {
		if err := childMain(os.Args[2], os.Args[3]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

func nopLog() *slog.Logger { return slog.New(slog.DiscardHandler) }

// childMain is a small daemon with a source whose store is a text file: a line per record, written before Deliver returns.
// Killing the process loses nothing that is written, like a power cut loses nothing that is committed.
func childMain(dir, url string) error {
	records, err := readRecords(dir)
	if err != nil {
		return err
	}
	var epoch, seq uint64
	if n := len(records); n > 0 {
		epoch, seq = records[n-1].epoch, records[n-1].seq
	}
	mine, next := epoch+1, uint64(0)
	log, err := os.OpenFile(filepath.Join(dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	store, err := os.OpenFile(filepath.Join(dir, "records"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if err := dropTornLine(store.Name()); err != nil {
		return err
	}
	s, err := New(Options{Name: "m", Leaf: "leaf", Config: config(url), StateDir: filepath.Join(dir, "state"),
		Last: func() (uint64, uint64) { return epoch, seq }, Log: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		return err
	}
	s.timing = quick
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { // until the process is killed
		for ctx.Err() == nil {
			if s.State().Kind == ingest.Running {
				_ = os.WriteFile(filepath.Join(dir, "running"), nil, 0o600)
			}
			_, _ = fmt.Fprintf(log, "redelivered=%d\n", s.Stats().Redelivered) // only for the test to show
			pause(ctx, 5*time.Millisecond)
		}
	}()
	return s.Run(ctx, func(ctx context.Context, batch ...ingest.Reading) error {
		var text bytes.Buffer
		for _, r := range batch {
			next++
			if r.Note != nil {
				if err := r.Note(storage.ID{Leaf: "leaf", Store: "s", Source: "m", Epoch: mine, Seq: next}); err != nil {
					return err
				}
			}
			fmt.Fprintf(&text, "%d %d %s\n", mine, next, r.Data)
		}
		slow := time.Duration(len(batch)) * 200 * time.Microsecond
		pause(ctx, slow) // a kill may fall between note and record
		_, err := store.Write(text.Bytes())
		pause(ctx, slow) // or between record and acknowledgement
		return err
	})
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

type record struct {
	epoch, seq uint64
	payload    string
}

func readRecords(dir string) ([]record, error) {
	text, err := os.ReadFile(filepath.Join(dir, "records"))
	if err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	var records []record
	text = text[:bytes.LastIndexByte(text, '\n')+1] // a write may be under way, or have been cut off by a kill
	for line := range bytes.Lines(text) {
		var r record
		if n, err := fmt.Sscanf(string(line), "%d %d %s\n", &r.epoch, &r.seq, &r.payload); n != 3 || err != nil {
			return nil, fmt.Errorf("record %q: %v", line, err)
		}
		records = append(records, r)
	}
	return records, nil
}

// dropTornLine ends a file behind its last whole line.
func dropTornLine(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return os.Truncate(path, int64(bytes.LastIndexByte(text, '\n')+1))
}

// child is a process that can be killed.
type child struct {
	t   *testing.T
	dir string
	cmd *exec.Cmd
}

func startChild(t *testing.T, dir, url string) *child {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "child", dir, url)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &child{t: t, dir: dir, cmd: cmd}
	t.Cleanup(c.kill)
	return c
}

func (c *child) kill() {
	if c.cmd.ProcessState == nil {
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait() // it says that it was killed
	}
}

func (c *child) payloads() []string {
	c.t.Helper()
	records, err := readRecords(c.dir)
	if err != nil {
		c.t.Fatal(err)
	}
	var out []string
	for _, r := range records {
		out = append(out, r.payload)
	}
	return out
}

// redelivered reads the last count of each process from the log.
func redelivered(text []byte) (counts []int) {
	last := 0
	for line := range strings.Lines(string(text)) {
		var n int
		if _, err := fmt.Sscanf(line, "redelivered=%d", &n); err != nil {
			continue
		}
		if n < last {
			counts = append(counts, last)
		}
		last = n
	}
	return append(counts, last)
}

// authority signs certificates for tests.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	dir  string
	file string // its certificate
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{dir: t.TempDir()}
	a.key = newKey(t)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"},
		NotBefore: time.Now().Add(-24 * time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, a.key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.file = writePEM(t, a.dir, "ca.pem", "CERTIFICATE", der)
	return a
}

// issue returns the files of a certificate that ends after so long.
func (a *authority) issue(t *testing.T, name string, valid time.Duration) (cert, key string) {
	t.Helper()
	k := newKey(t)
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(valid)}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, k.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	base := fmt.Sprint(template.SerialNumber)
	return writePEM(t, a.dir, base+".pem", "CERTIFICATE", der), writePEM(t, a.dir, base+".key", "EC PRIVATE KEY", keyDER)
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func writePEM(t *testing.T, dir, name, kind string, der []byte) string {
	t.Helper()
	file := filepath.Join(dir, name)
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}
