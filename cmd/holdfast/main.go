// Command holdfast is the daemon of a field gateway and the tools of the people who look after it.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := execute(ctx, os.Args[1:], stdio{out: os.Stdout, err: os.Stderr})
	stop()
	os.Exit(code)
}
