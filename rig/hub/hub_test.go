package hub

import (
	"context"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/rig/leak"
	"github.com/holdfast-edge/holdfast/rig/poll"
)

func TestMain(m *testing.M) {
	if code, ran := Main(os.Args); ran {
		os.Exit(code)
	}
	os.Exit(m.Run())
}

func TestStreamSurvivesLossOfNode(t *testing.T) {
	for _, tc := range []struct {
		name      string
		processes bool
	}{{"in process", false}, {"child processes", true}} {
		t.Run(tc.name, func(t *testing.T) {
			leak.Check(t)
			begun := time.Now()
			c, err := Start(Options{Processes: tc.processes})
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			}()
			t.Logf("hub up in %v", time.Since(begun))
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			js, err := c.JetStream()
			if err != nil {
				t.Fatal(err)
			}
			st, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "S", Subjects: []string{"s.>"}, Replicas: 3})
			if err != nil {
				t.Fatal(err)
			}
			publish := func(id string) func() bool {
				return func() bool {
					short, cancel := context.WithTimeout(ctx, 2*time.Second)
					defer cancel()
					_, err := js.Publish(short, "s.x", nil, jetstream.WithMsgID(id))
					return err == nil
				}
			}
			poll.Until(t, 30*time.Second, publish("1"), "publish before the loss")
			if err := c.Kill(1); err != nil {
				t.Fatal(err)
			}
			if c.Kill(1) == nil {
				t.Error("Kill of a node that is down = nil")
			}
			poll.Until(t, 30*time.Second, publish("2"), "publish with two of three nodes")
			if err := c.Restart(1); err != nil {
				t.Fatal(err)
			}
			if err := c.WaitReady(ctx); err != nil {
				t.Fatal(err)
			}
			if err := c.Stop(ctx, 2); err != nil {
				t.Fatal(err)
			}
			poll.Until(t, 30*time.Second, publish("3"), "publish with the returned node")
			poll.Until(t, 30*time.Second, func() bool {
				info, err := st.Info(ctx)
				return err == nil && info.State.Msgs == 3
			}, "three messages in the stream")
			if tc.processes {
				if err := c.Signal(0, syscall.SIGSTOP); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func TestStartRefusesAccountsWithoutEdge(t *testing.T) {
	leak.Check(t)
	if c, err := Start(Options{Accounts: "accounts { OTHER: { users: [ {user: a, password: a} ] } }"}); err == nil {
		_ = c.Close()
		t.Error("Start without account EDGE = nil")
	}
}
