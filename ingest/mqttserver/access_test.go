package mqttserver

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/holdfast-edge/holdfast/ingest"
	"github.com/holdfast-edge/holdfast/ingest/mqttserver/packet"
	"github.com/holdfast-edge/holdfast/ingest/topic"
	"github.com/holdfast-edge/holdfast/rig/poll"
)

func TestRights(t *testing.T) {
	c := Config{Access: []Access{
		{Publish: []string{"dev/{user}/#"}, Subscribe: []string{"cmd/{user}/+"}},
		{Users: []string{"panel"}, Publish: []string{"panel/{clientid}"}, Subscribe: []string{"#"}},
	}}
	for _, tt := range []struct {
		user, client, topic string
		publish, subscribe  bool
	}{
		{"p1", "x", "dev/p1/t", true, false}, {"p1", "x", "dev/p1", true, false}, {"p1", "x", "dev/p2/t", false, false},
		{"p1", "x", "cmd/p1/a", false, true}, {"p1", "x", "cmd/p1/+", false, true}, {"p1", "x", "cmd/p1/#", false, false},
		{"p1", "x", "cmd/+/a", false, false}, {"p1", "x", "#", false, false}, {"p1", "x", "+/+/+", false, false},
		{"panel", "one", "panel/one", true, true}, {"panel", "one", "panel/two", false, true}, {"panel", "one", "#", false, true},
		{"panel", "one", "$SYS/#", false, false}, {"panel", "one", "$JS/API/STREAM/DELETE/X", false, false},
		// Names that mean something in a filter get nothing.
		{"+", "x", "dev/+/t", false, false}, {"+", "x", "dev/p1/t", false, false}, {"#", "x", "dev/p1", false, false},
		{"p1/t", "x", "dev/p1/t/u", false, false}, {"", "x", "dev//t", false, false}, {"$SYS", "x", "dev/$SYS/t", false, false},
		{"panel", "a/#", "panel/a/b", false, true}, {"panel", "{user}", "panel/panel", false, true},
	} {
		r := c.rightsOf(tt.user, tt.client)
		if got := r.mayPublish(tt.topic); got != tt.publish && !strings.ContainsAny(tt.topic, "+#") {
			t.Errorf("%q as %q may publish to %q: %v", tt.user, tt.client, tt.topic, got)
		}
		if got := r.maySubscribe(tt.topic); got != tt.subscribe {
			t.Errorf("%q as %q may subscribe to %q: %v", tt.user, tt.client, tt.topic, got)
		}
	}
}

// usersFile writes a users file with cheap hashes.
func usersFile(t testing.TB, passwords map[string]string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "users")
	for user, password := range passwords {
		hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
		if err != nil {
			t.Fatal(err)
		}
		if err := SetUser(file, user, string(hash)); err != nil {
			t.Fatal(err)
		}
	}
	return file
}

func TestLogin(t *testing.T) {
	file := usersFile(t, map[string]string{"p1": "secret", "p2": "other"})
	r := run(t, config(t, func(c *Config) {
		c.Anonymous, c.Users = false, file
		c.Access = []Access{{Publish: []string{"dev/{user}/#"}, Subscribe: []string{"dev/{user}/#"}}}
	}), stateDir(t))
	code := func(l login) byte {
		t.Helper()
		d := dial(t, r.Source)
		d.send(l.bytes())
		_, body := d.next()
		if body[1] != 0 {
			d.closed()
		}
		return body[1]
	}
	for _, tt := range []struct {
		name string
		l    login
		want byte
	}{
		{"right", login{id: "a", user: "p1", password: "secret", keep: true}, 0},
		{"wrong", login{id: "a", user: "p1", password: "Secret"}, 4},
		{"wrong, MQTT 5", login{id: "a", user: "p1", password: "other", version: 5}, 0x86},
		{"unknown user", login{id: "a", user: "p3", password: "secret"}, 4},
		{"nobody", login{id: "a"}, 5},
		{"nobody, MQTT 5", login{id: "a", version: 5}, 0x87},
		{"client id of another", login{id: "a", user: "p2", password: "other", version: 5}, 0x85},
		{"session without an id", login{user: "p2", password: "other", keep: true}, 2},
		{"long id", login{id: strings.Repeat("x", 300), user: "p2", password: "other"}, 2},
		{"MQTT 3.1 and such", login{id: "a", version: 6}, 1},
	} {
		if got := code(tt.l); got != tt.want {
			t.Errorf("%s: CONNACK %#x, want %#x", tt.name, got, tt.want)
		}
	}
	d, _ := connect(t, r.Source, login{user: "p2", password: "other", version: 5})
	d.publish(qos1(1, "dev/p2/x", "mine"))
	d.acks(packet.PUBACK, 1)
	d.publish(qos1(2, "dev/p1/x", "not mine"))
	if first, body := d.next(); first != 0x40 || len(body) != 3 || body[2] != byte(packet.NotAuthorized) {
		t.Errorf("a denied message was answered by %#x % x", first, body)
	}
	d.subscribe(1, "dev/p1/#", packet.NotAuthorized)
	d.subscribe(1, "$share/g/dev/p2/#", packet.SharedNotSupported)
	d.subscribe(2, "dev/p2/#", 1)
	r.st.want(t, "mine")

	// The user goes, and so does the device.
	if err := SetUser(file, "p2", ""); err != nil {
		t.Fatal(err)
	}
	if got := d.closed(); len(got) != 1 || got[0][1] != byte(packet.NotAuthorized) {
		t.Errorf("a device without its user got % x", got)
	}
	if got := code(login{id: "b", user: "p2", password: "other"}); got != 4 {
		t.Errorf("CONNACK of a removed user %#x", got)
	}
}

func TestPasswordFlood(t *testing.T) {
	file := usersFile(t, map[string]string{"p1": "secret", "p2": "secret"})
	r := run(t, config(t, func(c *Config) { c.Anonymous, c.Users = false, file }), stateDir(t))
	connect(t, r.Source, login{id: "a", user: "p1", password: "secret"})
	for range 200 {
		if _, err := tryConnect(t, r.Addrs()[0], login{id: "x", user: "p1", password: "guess"}); err == nil {
			t.Fatal("a wrong password was let in")
		}
	}
	// From that address only what is known comes in for a while, without a hash.
	connect(t, r.Source, login{id: "a", user: "p1", password: "secret"})
	if _, err := tryConnect(t, r.Addrs()[0], login{id: "b", user: "p2", password: "secret"}); err == nil {
		t.Error("a password that was never right before was looked at in a flood")
	}
	if n := len(r.users.failures); n != 1 {
		t.Errorf("%d addresses are remembered, want 1", n)
	}
	for i := range 2 * maxSources {
		r.users.fail(string(rune('a' + i)))
	}
	if n := len(r.users.failures); n > maxSources {
		t.Errorf("%d addresses are remembered, want %d at most", n, maxSources)
	}
}

func TestUsersFile(t *testing.T) {
	for _, text := range []string{"p1", "p1:plain", ":x", "p1:$2a$31$" + strings.Repeat("a", 53)} {
		if _, err := parseUsers([]byte(text)); err == nil {
			t.Errorf("parseUsers(%q) has no error", text)
		}
	}
	file := usersFile(t, map[string]string{"a": "1", "b": "2"})
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, append([]byte("# devices\r\n\r\n"), text...), 0o640); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(file, 0o640); err != nil {
		t.Fatal(err)
	}
	if err := SetUser(file, "a", ""); err != nil {
		t.Fatal(err)
	}
	text, err = os.ReadFile(file)
	info, statErr := os.Stat(file)
	if err != nil || statErr != nil || info.Mode().Perm() != 0o640 || !strings.HasPrefix(string(text), "# devices\n\nb:$2a$") || strings.Contains(string(text), "\na:") {
		t.Errorf("the file holds %q, mode %v, %v, %v", text, info.Mode(), err, statErr)
	}
	if err := SetUser(file, "a", ""); err == nil {
		t.Error("a user who is not there was removed")
	}
	if err := SetUser(file, "x:y", "h"); err == nil {
		t.Error("a user with a colon was written")
	}
}

func TestCommand(t *testing.T) {
	r := run(t, config(t), stateDir(t))
	order := func(within time.Duration, c ingest.Command) ingest.Outcome {
		ctx, cancel := context.WithTimeout(context.Background(), within)
		defer cancel()
		return r.Command(ctx, c)
	}
	want := func(got ingest.Outcome, state string) {
		t.Helper()
		if got.State != state || (got.Cause == "") != (state == ingest.OutcomeDone) {
			t.Errorf("outcome %+v, want %s", got, state)
		}
	}
	want(order(time.Minute, ingest.Command{Tail: "c.x", Data: []byte("1")}), ingest.OutcomeFailed)
	d, _ := connect(t, r.Source, login{id: "a", keep: true})
	d.subscribe(1, "c/#", 1)
	done := make(chan ingest.Outcome, 1)
	go func() { done <- order(time.Minute, ingest.Command{Tail: "c.x%20y", Data: []byte("open")}) }()
	m := d.message()
	if m.Topic != "c/x y" || string(m.Payload) != "open" || m.QoS != 1 {
		t.Errorf("the device got %+v", m)
	}
	d.puback(m.ID)
	want(<-done, ingest.OutcomeDone)

	want(order(100*time.Millisecond, ingest.Command{Tail: "c.x", Data: []byte("no answer")}), ingest.OutcomeUnknown)
	if m := d.message(); string(m.Payload) != "no answer" {
		t.Errorf("the device got %+v", m)
	}
	// It is not sent again to a device that comes back.
	d, _ = connect(t, r.Source, login{id: "a", keep: true})
	long := strings.Repeat("x", topic.MaxTail+1)
	go func() {
		done <- order(time.Minute, ingest.Command{Tail: "%23.00", Header: map[string]string{topic.Header: "c/" + long}, Data: []byte("2")})
	}()
	if m = d.message(); m.Topic != "c/"+long || string(m.Payload) != "2" {
		t.Errorf("the device got %+v", m)
	}
	d.puback(m.ID)
	want(<-done, ingest.OutcomeDone)
	for _, tail := range []string{"", "c.+", "c.#", "%23.00", "a..b"} {
		want(order(time.Minute, ingest.Command{Tail: tail}), ingest.OutcomeRefused)
	}
	d.subscribe(0, "d/zero", 0)
	go func() { done <- order(time.Minute, ingest.Command{Tail: "d.zero", Data: []byte("3")}) }()
	if m = d.message(); m.QoS != 0 {
		t.Errorf("the device got %+v", m)
	}
	want(<-done, ingest.OutcomeUnknown)
	// The device goes while the command is under way.
	go func() { done <- order(300*time.Millisecond, ingest.Command{Tail: "c.x", Data: []byte("4")}) }()
	d.message()
	_ = d.Close()
	want(<-done, ingest.OutcomeUnknown)
	poll.Until(t, patience, func() bool { return r.Stats().Outgoing == 0 }, "nothing to wait for the device")
}
