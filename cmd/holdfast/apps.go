package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/configs"
	fleet "github.com/holdfast-edge/holdfast/forward/hub"
	"github.com/holdfast-edge/holdfast/ingest/mqttserver"
	"github.com/holdfast-edge/holdfast/leaf"
	"github.com/holdfast-edge/holdfast/storage"
)

// lateConn is the daemon's connection for those who are there before the server is.
type lateConn struct {
	ready chan struct{} // closed by set
	nc    *nats.Conn
}

func newLateConn() *lateConn { return &lateConn{ready: make(chan struct{})} }

// set is called once.
func (l *lateConn) set(nc *nats.Conn) {
	l.nc = nc
	close(l.ready)
}

func (l *lateConn) wait(ctx context.Context) (*nats.Conn, error) {
	select {
	case <-l.ready:
		return l.nc, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func leafOptions(cfg configs.Config, store *storage.Store, log *slog.Logger) leaf.Options {
	o := leaf.Options{Config: cfg.Leaf, Hub: cfg.Hub, Apps: cfg.Apps, Log: log, Owner: fleet.Owner}
	o.Key, o.Cipher = store.ServerKey()
	if o.Apps.MaxFile = cfg.AppsRoom(); o.Apps.MaxFile < cfg.Apps.MaxFile {
		log.Warn("the streams leave less of storage.budget than apps.max_file", "bytes", o.Apps.MaxFile)
	}
	for _, s := range cfg.Sources {
		if s.Append != nil {
			o.Append = append(o.Append, s.Name)
		}
	}
	return o
}

// maxCapturedPending is how many records a consumer of a captured stream may have out.
const maxCapturedPending = 1000

// ensureCaptured makes the consumers by which local applications read captured streams. One that cannot be made is logged and returned, in words: capture
// does not depend on it.
func ensureCaptured(ctx context.Context, js jetstream.JetStream, cfg configs.Config, log *slog.Logger) (failed []string) {
	for _, c := range cfg.Apps.Captured {
		for _, name := range c.Consumers {
			_, err := js.CreateOrUpdateConsumer(ctx, c.Stream, jetstream.ConsumerConfig{
				Durable: name, AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: maxCapturedPending,
				FilterSubject: storage.DataSubject(cfg.Leaf.Name, c.Stream, ">"),
			})
			if err != nil {
				log.Error("no consumer for local applications", "stream", c.Stream, "consumer", name, "err", err)
				failed = append(failed, fmt.Sprintf("consumer %s of captured stream %s: %v", name, c.Stream, err))
			}
		}
	}
	return failed
}

func passwordCommand(_ context.Context, args []string, std stdio) error {
	fs := flags("password", "", "Reads a password from standard input and prints its hash, for apps.users. With -users it writes the hash into the users file of an mqttserver source.", std)
	file := fs.String("users", "", "`file` of users of an mqttserver source, made if it is not there")
	user := fs.String("user", "", "`name` of the user in that file")
	remove := fs.Bool("remove", false, "remove the user from the file, without a password")
	if _, err := parse(fs, args, 0); err != nil {
		return err
	}
	if (*file == "") != (*user == "") || *remove && *file == "" {
		return usageErrorf("-users and -user belong together, and -remove needs both")
	}
	if *remove {
		return mqttserver.SetUser(*file, *user, "")
	}
	const most = 1 << 10
	text, err := io.ReadAll(io.LimitReader(os.Stdin, most))
	if err != nil {
		return fmt.Errorf("read the password: %w", err)
	}
	password := strings.TrimRight(string(text), "\r\n")
	if password == "" {
		return usageErrorf("standard input holds no password: type one, or use a pipe")
	}
	hash, err := leaf.HashPassword(password)
	if err != nil {
		return err
	}
	if *file != "" {
		return mqttserver.SetUser(*file, *user, hash)
	}
	_, err = fmt.Fprintln(std.out, hash)
	return err
}
