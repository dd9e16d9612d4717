package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/holdfast-edge/holdfast/configs"
	fleet "github.com/holdfast-edge/holdfast/forward/hub"
)

func hubEnrol(_ context.Context, args []string, std stdio) error {
	f := newHubFlags("enrol", std)
	words, file, err := f.parse(args, 1, std)
	if err != nil {
		return err
	}
	if len(words) == 0 {
		return usageErrorf("enrol which leaf?")
	}
	site := f.fleetOf(file)
	path, err := site.Enrol(words[0], time.Now())
	if err != nil {
		return fmt.Errorf("enrol: %w", err)
	}
	fmt.Fprintf(std.out, "wrote %s: bring it to the gateway by a safe way; there, holdfast init -enrolment FILE\n", path)
	if site.Auth == fleet.ByConfig {
		fmt.Fprintln(std.out, "the servers do not know the leaf yet: "+copyAccounts)
	}
	_, err = fmt.Fprintln(std.out, "if its streams are new to the hub: holdfast hub apply")
	return err
}

const copyAccounts = "copy the new accounts.conf of each server to its machine, then holdfast hub reload"

func hubRevoke(ctx context.Context, args []string, std stdio) error {
	f := newHubFlags("revoke", std)
	words, file, err := f.parse(args, 1, std)
	if err != nil {
		return err
	}
	if len(words) == 0 {
		return usageErrorf("revoke which leaf?")
	}
	site := f.fleetOf(file)
	gone, err := site.Revoke(words[0], time.Now())
	if err != nil {
		return fmt.Errorf("revoke: %w", err)
	}
	if site.Auth == fleet.ByConfig {
		_, err := fmt.Fprintf(std.out, "%s (key %s) is out of the servers' users here, and not there yet: %s\n", gone.Leaf, gone.Key, copyAccounts)
		return errors.Join(err, hubExpel(ctx, f, file, gone.Leaf, std))
	}
	nc, err := f.connect(file, fleet.SystemFile)
	if err != nil {
		return fmt.Errorf("%s is revoked here, but the hub does not know it yet; run this again: %w", gone.Leaf, err)
	}
	defer nc.Close()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	servers, err := site.Push(ctx, nc)
	if err != nil {
		return fmt.Errorf("%s is revoked here, but not all of the hub knows it (%s does); run this again: %w", gone.Leaf, strings.Join(servers, ", "), err)
	}
	err = told(std.out, fmt.Sprintf("%s (key %s) is cut off by", gone.Leaf, gone.Key), servers, file)
	return errors.Join(err, hubExpel(ctx, f, file, gone.Leaf, std))
}

// hubExpel takes out what the hub has for a revoked leaf, so that nothing there waits for it.
func hubExpel(ctx context.Context, f hubFlags, file configs.Fleet, leaf string, std stdio) error {
	js, err := f.admin(file)
	if err == nil {
		defer js.Conn().Close()
		var changes []fleet.Change
		changes, err = fleet.Expel(ctx, js, []string{leaf})
		for _, c := range changes {
			fmt.Fprintln(std.out, c)
		}
	}
	if err != nil {
		return fmt.Errorf("%s is revoked; its sources and consumers at the hub are not all taken out: holdfast hub apply does it, too: %w", leaf, err)
	}
	return nil
}

func hubReload(ctx context.Context, args []string, std stdio) error {
	f := newHubFlags("reload", std)
	_, file, err := f.parse(args, 0, std)
	if err != nil {
		return err
	}
	r, err := fleet.LoadRegister(f.fleetOf(file).Dir)
	if err != nil {
		return err
	}
	var keys []string
	for _, gone := range r.Revoked {
		keys = append(keys, gone.Key)
	}
	nc, err := f.connect(file, fleet.SystemFile)
	if err != nil {
		return err
	}
	defer nc.Close()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	servers, err := fleet.Reload(ctx, nc, file.Account, keys)
	return errors.Join(err, told(std.out, "read anew by", servers, file))
}

// told says which servers have done something, and how many may be missing.
func told(w io.Writer, what string, servers []string, file configs.Fleet) error {
	if _, err := fmt.Fprintf(w, "%s %s\n", what, strings.Join(servers, ", ")); err != nil {
		return err
	}
	if missing := len(file.Servers) - len(servers); missing > 0 {
		_, err := fmt.Fprintf(w, "%d more of the hub did not answer; with jwt they learn it when they are back, else reload again then\n", missing)
		return err
	}
	return nil
}
