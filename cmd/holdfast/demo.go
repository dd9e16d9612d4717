package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/holdfast-edge/holdfast/cmd/holdfast/demo"
)

func demoCommand(ctx context.Context, args []string, std stdio) error {
	fs := flags("demo", "", "Runs a hub of three nodes, a leaf, a simulated GPS on a serial line and MQTT sensors on this machine, cuts the link between leaf and hub, restores it, and accounts for every record. Exit code 1 if the account does not balance. Needs nothing set up, listens on the loopback only, leaves nothing behind.", std)
	outage := fs.Duration("outage", 20*time.Second, "how long the link is cut")
	verbose := fs.Bool("v", false, "show the leaf's log")
	if _, err := parse(fs, args, 0); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this binary: %w", err)
	}
	balanced, err := demo.Run(ctx, demo.Options{
		Holdfast: self, Out: std.out, Before: 10 * time.Second, Outage: *outage, After: 8 * time.Second, Verbose: *verbose,
	})
	if err != nil {
		return err
	}
	if !balanced {
		return errSaid
	}
	return nil
}
