package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"testing"

	"github.com/holdfast-edge/holdfast/rig/hub"
)

// asHoldfast makes the test binary behave as holdfast: tests that kill the daemon run it so, without building it first.
const asHoldfast = "as-holdfast"

func TestMain(m *testing.M) {
	if code, ran := hub.Main(os.Args); ran {
		os.Exit(code)
	}
	if len(os.Args) > 1 && os.Args[1] == asHoldfast {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		code := execute(ctx, os.Args[2:], stdio{out: os.Stdout, err: os.Stderr})
		stop()
		os.Exit(code)
	}
	os.Exit(m.Run())
}
