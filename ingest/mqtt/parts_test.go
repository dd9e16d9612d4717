package mqtt

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-edge/holdfast/ingest"
)

func TestQueue(t *testing.T) {
	q := newQueue(10 * (overhead + 1))
	m := func(payload string) message { return message{payload: []byte(payload)} }
	for i := range 10 {
		if !q.push(m(string(rune('a' + i)))) {
			t.Fatalf("message %d does not fit", i)
		}
	}
	if q.push(m("x")) {
		t.Error("an eleventh message fits")
	}
	if got := q.take(3, 1<<20); len(got) != 3 || string(got[2].payload) != "c" || q.roomy() {
		t.Errorf("take = %d messages, roomy %v", len(got), q.roomy())
	}
	if got := q.take(100, 2*(overhead+1)); len(got) != 2 || string(got[0].payload) != "d" || !q.roomy() {
		t.Errorf("take by bytes = %d messages, roomy %v", len(got), q.roomy())
	}
	if got := q.take(100, 1); len(got) != 1 {
		t.Errorf("take with little room = %d messages, want one", len(got))
	}
	q.take(100, 1<<20)
	if n, bytes := q.load(); n != 0 || bytes != 0 {
		t.Errorf("load of an empty queue = %d, %d", n, bytes)
	}
	if big := m(strings.Repeat("x", 1<<20)); !q.push(big) {
		t.Error("a large message does not fit into an empty queue")
	}
	q.take(1, 1)
	want := 0
	for i := range 40_000 { // push more than is taken, so that the head moves
		q.max = 1 << 30
		if !q.push(message{index: uint64(i)}) {
			t.Fatal("no room")
		}
		if i%2 == 1 {
			for _, got := range q.take(1, 1) {
				if got.index != uint64(want) {
					t.Fatalf("took %d, want %d", got.index, want)
				}
				want++
			}
		}
	}
	if n, _ := q.load(); n != 20_000 {
		t.Errorf("%d wait, want 20000", n)
	}
	for want = n(q); q.push(message{}); want++ {
	}
	if want != maxQueued {
		t.Errorf("%d messages fit, want %d", want, maxQueued)
	}
}

func n(q *queue) int {
	n, _ := q.load()
	return n
}

func TestSessionFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "session")
	f, err := openSession(path)
	if err != nil || f.last.Client != "" {
		t.Fatalf("openSession of nothing = %+v, %v", f, err)
	}
	s := session{Broker: "b", Client: "c", Filters: []string{"x", "line\nbreak"}}
	if err := errors.Join(f.save(session{Broker: "b", Client: "c"}), f.save(s), f.save(s)); err != nil {
		t.Fatal(err)
	}
	check := func() {
		t.Helper()
		f, err := openSession(path)
		if err != nil || !f.last.equal(s) {
			t.Errorf("openSession = %+v, %v, want %+v", f.last, err, s)
		}
	}
	check()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(text, []byte("{")); n != 2 {
		t.Errorf("%d lines, want 2: what did not change is not written", n)
	}
	// A line that a power cut tore does no harm, nor does one that is written behind it.
	if err := os.WriteFile(path, append(text, `{"broker":"b","cli`...), 0o600); err != nil {
		t.Fatal(err)
	}
	check()
	f, err = openSession(path)
	if err != nil {
		t.Fatal(err)
	}
	s.Filters = []string{"y"}
	if err := f.save(s); err != nil {
		t.Fatal(err)
	}
	check()
	if err := os.WriteFile(path, append(bytes.Repeat([]byte("x\n"), maxSessionFile), mustRead(t, path)...), 0o600); err != nil {
		t.Fatal(err)
	}
	check()
	if text := mustRead(t, path); len(text) > 1000 {
		t.Errorf("the file still has %d bytes", len(text))
	}
	check()
}

func mustRead(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestNoBroker is told by the library that what answers is no broker, such as a NATS server.
func TestNoBroker(t *testing.T) {
	st := new(Source).explain(&linkError{stageLogin, errors.New("network Error : non-CONNACK first packet received")})
	if st.Kind != ingest.Waiting || !strings.Contains(st.Remedy, "port of an MQTT broker") {
		t.Errorf("state = %+v, want that the port is looked at", st)
	}
}
