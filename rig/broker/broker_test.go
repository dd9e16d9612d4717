package broker

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-edge/holdfast/rig/leak"
)

// subscribe opens a session of its own that takes everything and returns the next n topics when called.
func subscribe(t *testing.T, addr string) (topics func(n int) []string, close func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	p, err := Dial(ctx, addr, Login{ClientID: "listener"})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.send(0x82, []byte{0, 1}, append(field("#"), 0)); err != nil {
		t.Fatal(err)
	}
	if err := p.w.Flush(); err != nil {
		t.Fatal(err)
	}
	if kind, body, err := p.receive(); err != nil || kind != 0x90 || body[2] != 0 {
		t.Fatalf("subscribe: %#x % x %v", kind, body, err)
	}
	return func(n int) []string {
		t.Helper()
		var got []string
		err := p.within(ctx, func() error {
			for range n {
				_, body, err := p.receive()
				if err != nil {
					return err
				}
				got = append(got, string(body[2:2+binary.BigEndian.Uint16(body)]))
			}
			return nil
		})
		if err != nil {
			t.Fatalf("after %v: %v", got, err)
		}
		return got
	}, func() { _ = p.Close() }
}

func publish(t *testing.T, addr string, login Login, n int) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	p, err := Dial(ctx, addr, login)
	if err != nil {
		return err
	}
	defer func() { _ = p.Close() }()
	msgs := make([]Message, n)
	for i := range msgs {
		msgs[i] = Message{Topic: fmt.Sprintf("a/%d", i), Payload: bytes.Repeat([]byte{'x'}, i%300), QoS: byte(i % 2)}
	}
	return p.Publish(ctx, msgs...)
}

func checkTopics(t *testing.T, got []string) {
	t.Helper()
	for i, topic := range got {
		if want := fmt.Sprintf("a/%d", i); topic != want {
			t.Fatalf("message %d has topic %q, want %q", i, topic, want)
		}
	}
}

func TestNATSCarriesMessages(t *testing.T) {
	leak.Check(t)
	b, err := StartNATS("")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}()
	topics, end := subscribe(t, b.Addr())
	defer end()
	if err := publish(t, b.Addr(), Login{ClientID: "device"}, 300); err != nil {
		t.Fatal(err)
	}
	checkTopics(t, topics(300))
}

func TestMosquittoCarriesMessagesAndRestarts(t *testing.T) {
	leak.Check(t)
	b := Need(t, Options{Persistence: true})
	for _, end := range []struct {
		name string
		end  func()
	}{{"running", func() {}}, {"killed", b.Kill}, {"stopped", b.Stop}} {
		t.Run(end.name, func(t *testing.T) {
			addr := b.Addr()
			if end.end(); b.cmd == nil {
				if err := publish(t, addr, Login{ClientID: "device"}, 1); err == nil {
					t.Error("published to a broker that is down")
				}
				if err := b.Restart(); err != nil {
					t.Fatal(err)
				}
			}
			topics, end := subscribe(t, addr)
			defer end()
			if err := publish(t, addr, Login{ClientID: "device"}, 300); err != nil {
				t.Fatal(err)
			}
			checkTopics(t, topics(300))
		})
	}
}

func TestMosquittoUsers(t *testing.T) {
	b := Need(t, Options{Users: map[string]string{"pump": "secret"}})
	if err := publish(t, b.Addr(), Login{ClientID: "a", User: "pump", Password: "secret"}, 2); err != nil {
		t.Errorf("with the right password: %v", err)
	}
	for _, login := range []Login{{ClientID: "b", User: "pump", Password: "wrong"}, {ClientID: "c"}} {
		if err := publish(t, b.Addr(), login, 2); err == nil {
			t.Errorf("login %+v was let in", login)
		}
	}
}
