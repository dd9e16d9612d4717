package main

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
)

// version returns the module version or the commit that the binary was built from.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	v := info.Main.Version
	if v == "" || v == "(devel)" {
		v = "devel"
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && v == "devel" && len(s.Value) >= 12 {
			v = "devel-" + s.Value[:12]
		}
	}
	return v
}

func versionCommand(_ context.Context, args []string, std stdio) error {
	fs := flags("version", "", "Prints the version of Holdfast and of what it embeds.", std)
	if _, err := parse(fs, args, 0); err != nil {
		return err
	}
	fmt.Fprintf(std.out, "holdfast %s (%s, %s/%s)\n", version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, d := range info.Deps {
			if d.Path == "github.com/nats-io/nats-server/v2" {
				fmt.Fprintf(std.out, "nats-server %s\n", d.Version)
			}
		}
	}
	return nil
}
