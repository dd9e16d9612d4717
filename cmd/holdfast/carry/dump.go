// Package carry moves the records of a gateway by file: exports that a person takes to the hub, and backups.
package carry

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/storage"
	"github.com/holdfast-edge/holdfast/storage/parcel"
)

// dump writes the records of a stream behind a sequence, on some subjects, that are there now.
func dump(ctx context.Context, js jetstream.JetStream, filter string, s parcel.Stream, w *parcel.Writer) error {
	stream, err := js.Stream(ctx, s.Name)
	if err != nil {
		return fmt.Errorf("read stream %s: %w", s.Name, err)
	}
	state := stream.CachedInfo().State
	if state.Msgs == 0 || state.LastSeq <= s.After {
		return nil
	}
	c, err := js.OrderedConsumer(ctx, s.Name, jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{filter},
		DeliverPolicy:  jetstream.DeliverByStartSequencePolicy, OptStartSeq: max(s.After+1, state.FirstSeq),
	})
	if err != nil {
		return fmt.Errorf("read stream %s: %w", s.Name, err)
	}
	if c.CachedInfo().NumPending == 0 {
		return nil
	}
	messages, err := c.Messages()
	if err != nil {
		return fmt.Errorf("read stream %s: %w", s.Name, err)
	}
	defer messages.Stop()
	for {
		m, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return fmt.Errorf("read stream %s: %w", s.Name, err)
		}
		meta, err := m.Metadata()
		if err != nil {
			return fmt.Errorf("read stream %s: %w", s.Name, err)
		}
		if err := w.Write(parcel.Record{
			Stream: s.Name, Seq: meta.Sequence.Stream, Time: meta.Timestamp, Subject: m.Subject(), Header: rawHeader(m.Headers()), Data: m.Data(),
		}); err != nil {
			return err
		}
		if meta.NumPending == 0 || meta.Sequence.Stream >= state.LastSeq {
			return nil
		}
	}
}

// rawHeader is a header as it is on the wire, in a fixed order.
func rawHeader(h nats.Header) []byte {
	if len(h) == 0 {
		return nil
	}
	b := []byte("NATS/1.0\r\n")
	for _, k := range slices.Sorted(maps.Keys(h)) {
		for _, v := range h[k] {
			b = fmt.Appendf(b, "%s: %s\r\n", k, v)
		}
	}
	return append(b, "\r\n"...)
}

// create writes a new file in one step: it is there, whole and on flash, or not at all. write returns what it wrote the file with.
func create(path string, write func(f *os.File) error) (err error) {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, ".holdfast-*.part")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name()) // the first error is the one to report
		}
	}()
	if err := errors.Join(write(f), f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := storage.Place(f.Name(), path); err != nil {
		return err
	}
	return nil
}
