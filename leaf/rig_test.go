package leaf

import (
	"context"
	"io"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/holdfast-edge/holdfast/rig/hub"
	"github.com/holdfast-edge/holdfast/rig/poll"
)

// patience bounds what takes no time when all is well.
const patience = 20 * time.Second

// startHub starts a hub of one node, or of as many as o says, which is closed with the test.
func startHub(t *testing.T, o hub.Options) *hub.Cluster {
	t.Helper()
	if o.Nodes == 0 {
		o.Nodes = 1
	}
	if o.Log == nil {
		o.Log = verbose()
	}
	c, err := hub.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// startLeaf starts a leaf on a directory of its own unless o says otherwise, which is shut down with the test.
func startLeaf(t *testing.T, o Options) *Server {
	t.Helper()
	if o.Name == "" {
		o.Name = "leaf1"
	}
	if o.Data == "" {
		o.Data = t.TempDir()
	}
	if o.Log == nil {
		o.Log = slog.New(slog.NewTextHandler(verbose(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	s, err := Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Error(err)
		}
	})
	return s
}

// verbose is where logs go: nowhere, unless LEAF_TEST_LOG is set.
func verbose() io.Writer {
	if os.Getenv("LEAF_TEST_LOG") != "" {
		return os.Stderr
	}
	return io.Discard
}

// withUser adds the default leaf user of the rig to addresses.
func withUser(t *testing.T, urls ...string) []string {
	t.Helper()
	with, err := hub.WithUser(urls, "leaf", "leaf")
	if err != nil {
		t.Fatal(err)
	}
	return with
}

func enable(t *testing.T, s *Server) {
	t.Helper()
	if err := s.Enable(true); err != nil {
		t.Fatal(err)
	}
}

func waitState(t *testing.T, s *Server, want LinkState, within time.Duration) Link {
	t.Helper()
	poll.Until(t, within, func() bool { return s.Link().State == want }, "link %v, it is %v", want, describe{s})
	return s.Link()
}

func waitReason(t *testing.T, s *Server, want Reason, within time.Duration) Link {
	t.Helper()
	poll.Until(t, within, func() bool { return s.Link().Reason == want }, "reason %q, link is %v", want, describe{s})
	return s.Link()
}

// describe prints a link when it is printed, not before.
type describe struct{ s *Server }

func (d describe) String() string { return d.s.Link().String() }

func TestMain(m *testing.M) {
	if code, ran := hub.Main(os.Args); ran {
		os.Exit(code)
	}
	os.Exit(m.Run())
}
