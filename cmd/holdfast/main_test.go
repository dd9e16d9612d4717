package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-edge/holdfast/rig/hub"
)

// crashOn names a file as long as which is there a daemon of the test binary crashes some time after its start.
const crashOn = "HOLDFAST_TEST_CRASH_ON"

// crashAfter is how long it takes to: capture has begun, on a machine that is not too busy.
const crashAfter = 500 * time.Millisecond

// crash is the bug.
func crash(file string) {
	<-time.After(crashAfter)
	if _, err := os.Stat(file); err == nil {
		panic("a planted bug")
	}
}

// asHoldfast makes the test binary behave as holdfast: tests that kill the daemon run it so, without building it first.
const asHoldfast = "as-holdfast"

func TestMain(m *testing.M) {
	if code, ran := hub.Main(os.Args); ran {
		os.Exit(code)
	}
	if len(os.Args) > 1 && os.Args[1] == asHoldfast {
		if file := os.Getenv(crashOn); file != "" {
			go crash(file)
		}
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		code := execute(ctx, os.Args[2:], stdio{out: os.Stdout, err: os.Stderr})
		stop()
		os.Exit(code)
	}
	os.Exit(m.Run())
}
