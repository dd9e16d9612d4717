package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	fleet "github.com/holdfast-edge/holdfast/forward/hub"
)

// hubTimeout bounds a hub command's requests to the hub.
const hubTimeout = 5 * time.Minute

func hubPlan(ctx context.Context, args []string, std stdio) error {
	return hubChanges(ctx, "plan", args, std, fleet.Diff)
}

func hubApply(ctx context.Context, args []string, std stdio) error {
	return hubChanges(ctx, "apply", args, std, fleet.Apply)
}

func hubChanges(ctx context.Context, name string, args []string, std stdio, do func(context.Context, jetstream.JetStream, fleet.Plan) ([]fleet.Change, error)) error {
	f := newHubFlags(name, std)
	_, file, err := f.parse(args, 0, std)
	if err != nil {
		return err
	}
	plan, err := f.plan(file)
	if err != nil {
		return err
	}
	js, err := f.admin(file)
	if err != nil {
		return err
	}
	defer js.Conn().Close()
	ctx, cancel := context.WithTimeout(ctx, hubTimeout)
	defer cancel()
	changes, err := do(ctx, js, plan)
	if *f.asJSON {
		return errors.Join(err, writeJSON(std.out, changes))
	}
	for _, c := range changes {
		fmt.Fprintln(std.out, c)
	}
	return err
}

func hubUsers(_ context.Context, args []string, std stdio) error {
	f := newHubFlags("users", std)
	_, file, err := f.parse(args, 0, std)
	if err != nil {
		return err
	}
	plan, err := f.plan(file)
	if err != nil {
		return err
	}
	if *f.asJSON {
		return writeJSON(std.out, plan.Users())
	}
	_, err = fmt.Fprint(std.out, plan.Config())
	return err
}
