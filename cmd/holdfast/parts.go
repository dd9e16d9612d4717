package main

import (
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/configs"
	"github.com/holdfast-edge/holdfast/forward"
	"github.com/holdfast-edge/holdfast/ingest"
	"github.com/holdfast-edge/holdfast/ingest/command"
	"github.com/holdfast-edge/holdfast/ingest/convert"
	"github.com/holdfast-edge/holdfast/ingest/modbus"
	"github.com/holdfast-edge/holdfast/ingest/mqtt"
	"github.com/holdfast-edge/holdfast/ingest/mqttserver"
	"github.com/holdfast-edge/holdfast/ingest/reject"
	"github.com/holdfast-edge/holdfast/ingest/request"
	"github.com/holdfast-edge/holdfast/ingest/serial"
	"github.com/holdfast-edge/holdfast/leaf"
	"github.com/holdfast-edge/holdfast/storage"
	"github.com/holdfast-edge/holdfast/systemd"
)

// defaultConfig is where the package installs the configuration.
const defaultConfig = "/etc/holdfast/holdfast.yaml"

// loadConfig reads the configuration. Faults are printed to w, all of them.
func loadConfig(path string, w io.Writer) (configs.Config, error) {
	cfg, faults, err := configs.Load(path)
	if err != nil {
		return cfg, exitError{exitConfig, err}
	}
	if len(faults) > 0 {
		if _, err := io.WriteString(w, configs.Format(faults)); err != nil {
			return cfg, exitError{exitConfig, err}
		}
		return cfg, exitError{exitConfig, errSaid}
	}
	return cfg, nil
}

func storageOptions(cfg configs.Config, log *slog.Logger) storage.Options {
	o := storage.Options{Leaf: cfg.Leaf.Name, Dir: cfg.Leaf.Data, Config: cfg.Storage, Sources: map[string]string{}, TTL: map[string]time.Duration{}, Log: log}
	o.Streams = cfg.StorageStreams()
	for _, s := range cfg.Sources {
		o.Sources[s.Name] = s.Into
		o.TTL[s.Name] = s.TTL
	}
	return o
}

func uplinkOptions(cfg configs.Config, home string, log *slog.Logger) forward.Options {
	o := forward.Options{
		Leaf: cfg.Leaf.Name, Domain: cfg.Hub.Domain, Dir: home, Streams: map[string]forward.Config{}, Log: log,
		Rate: cfg.Hub.Rate, Commands: cfg.Hub.Commands && len(cfg.Hub.URLs) > 0, Documents: cfg.Hub.Documents && len(cfg.Hub.URLs) > 0,
	}
	if cfg.Hub.Link == leaf.LinkOnDemand {
		o.Demand = &cfg.Hub.OnDemand
	}
	for _, s := range cfg.Streams {
		o.Streams[s.Name] = s.Forward
	}
	return o
}

// commandOptions says whose commands are executed, and where their marks are.
func commandOptions(cfg configs.Config, store *storage.Store, runner *ingest.Runner, js jetstream.JetStream, entries []ingest.Entry, log *slog.Logger) command.Options {
	return command.Options{
		Leaf: cfg.Leaf.Name, Dir: command.MarkDir(store.Home()), JetStream: js, Store: store, Entries: entries, Record: runner.Store, Log: log,
	}
}

// newSources builds the configured sources. newest tells the number of the newest record of a source that was stored since the start.
func newSources(cfg configs.Config, store *storage.Store, newest func(source string) uint64, conn *lateConn, sockets *systemd.Sockets, log *slog.Logger) ([]ingest.Entry, error) {
	entries := make([]ingest.Entry, 0, len(cfg.Sources))
	for _, s := range cfg.Sources {
		var source ingest.Source
		var err error
		last := func() (epoch, seq uint64) {
			if seq = newest(s.Name); seq > 0 { // it was replaced while it ran
				return store.Epoch(), seq
			}
			return store.Last(s.Name)
		}
		switch {
		case s.Serial != nil:
			source, err = serial.New(s.Name, *s.Serial, *s.Frame, log)
		case s.Modbus != nil:
			source, err = modbus.New(s.Name, *s.Modbus, log)
		case s.Rejects != nil:
			source = reject.New(s.Name, *s.Rejects, log)
		case s.Append != nil:
			source = request.New(request.Options{
				Name: s.Name, Config: *s.Append, Subject: leaf.AppendSubject(s.Name), MaxSize: maxSize(cfg, s.Into), Conn: conn.wait, Log: log,
			})
		case s.MQTT != nil:
			source, err = mqtt.New(mqtt.Options{
				Name: s.Name, Leaf: cfg.Leaf.Name, Config: *s.MQTT, Log: log,
				StateDir: filepath.Join(cfg.Leaf.Data, "ingest", s.Name),
				Last:     last,
				Marks:    func() []storage.Mark { return store.Marks(s.Name) },
			})
		case s.MQTTServer != nil:
			source, err = mqttserver.New(mqttserver.Options{
				Name: s.Name, Config: *s.MQTTServer, Log: log,
				StateDir:  filepath.Join(cfg.Leaf.Data, "ingest", s.Name),
				Last:      last,
				Marks:     func() []storage.Mark { return store.Marks(s.Name) },
				Inherited: sockets.Listen,
			})
		}
		if err == nil && s.Decode != nil {
			source, err = convert.New(source, convertOptions(cfg, s, store, log))
		}
		if err != nil {
			return nil, exitError{exitConfig, fmt.Errorf("source %s: %w", s.Name, err)}
		}
		entries = append(entries, ingest.Entry{Source: source, Stream: s.Into})
	}
	return entries, nil
}

// convertOptions says how the messages of a source are decoded.
func convertOptions(cfg configs.Config, s configs.Source, store *storage.Store, log *slog.Logger) convert.Options {
	opt := convert.Options{Decode: *s.Decode, Keep: s.Keep, Trusted: func() bool { return store.Clock() == storage.ClockSynced }, Log: log}
	if s.Transform != nil {
		opt.Transform = *s.Transform
	}
	opt.MaxSize = maxSize(cfg, s.Into)
	return opt
}

// maxSize is the largest record that a stream takes.
func maxSize(cfg configs.Config, stream string) int64 {
	for _, s := range cfg.Streams {
		if s.Name == stream {
			return s.MaxMsgSize
		}
	}
	return 0
}
