package configs

import (
	"fmt"

	"github.com/holdfast-edge/holdfast/leaf"
)

// AppsRoom returns what local applications may take on disk: apps.max_file, or less where the captured streams leave less of the budget.
func (c Config) AppsRoom() int64 {
	left := c.Storage.Budget
	for _, s := range c.Streams {
		left -= s.MaxBytes
	}
	return max(min(c.Apps.MaxFile, left), 0)
}

// apps checks what the ports for local applications need, and that what is opened to them is there.
func (c check) apps() {
	apps := c.cfg.Apps
	for _, port := range []struct{ key, address string }{{"leaf.nats", c.cfg.Leaf.NATS}, {"apps.websocket", apps.Websocket}} {
		switch {
		case port.address == "" || c.doubtful(port.key) || leaf.Loopback(port.address):
		case len(apps.Users) == 0:
			c.fault(port.key, fmt.Sprintf("%s can be reached from other machines, and there are no apps.users: everybody may connect", port.address),
				"use 127.0.0.1 as the host, or add users")
		case apps.TLS.Cert == "":
			c.fault(port.key, fmt.Sprintf("%s can be reached from other machines, and passwords cross the network in the clear", port.address),
				"use 127.0.0.1 as the host, or add apps.tls")
		}
	}
	if c.cfg.Leaf.NATS != "" && c.cfg.Leaf.NATS == apps.Websocket {
		c.fault("apps.websocket", "is leaf.nats, too", "choose another port")
	}
	c.assets()
	for i, s := range apps.Captured {
		known := false
		for _, have := range c.cfg.Streams {
			known = known || have.Name == s.Stream
		}
		if !known {
			c.fault(fmt.Sprintf("apps.captured[%d].stream", i), fmt.Sprintf("there is no stream %q", s.Stream), "name one of streams")
		}
	}
}

// assets holds what is declared below jetstream against a server.
func (c check) assets() {
	if c.cfg.JetStream.Empty() || c.doubtful("jetstream") || c.doubtful("apps") {
		return
	}
	apps := c.cfg.Apps
	if apps.MaxFile = c.cfg.AppsRoom(); apps.MaxFile == 0 {
		c.fault("jetstream", "has no room: the streams leave nothing of storage.budget, or apps.max_file is 0", "raise storage.budget or apps.max_file, or lower max_bytes of streams")
		return
	}
	err := leaf.CheckAssets(apps, c.cfg.JetStream, func(key, problem, remedy string) { c.fault("jetstream."+key, problem, remedy) })
	if err != nil {
		c.fault("jetstream", err.Error(), "make room in the folder for temporary files, and try again")
	}
}
