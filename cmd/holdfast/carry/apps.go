package carry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/storage"
	"github.com/holdfast-edge/holdfast/storage/blocks"
	"github.com/holdfast-edge/holdfast/storage/parcel"
)

// ask uses the JetStream API of an account as it is on the wire, so that nothing of a configuration is lost which a client does not know.
func ask(ctx context.Context, js jetstream.JetStream, request string, body []byte) (json.RawMessage, error) {
	m, err := js.Conn().RequestWithContext(ctx, "$JS.API."+request, body)
	if err != nil {
		return nil, err
	}
	var answer struct {
		Error *jetstream.APIError `json:"error"`
	}
	if err := json.Unmarshal(m.Data, &answer); err != nil {
		return nil, err
	}
	if answer.Error != nil {
		return nil, answer.Error
	}
	return m.Data, nil
}

// appStreams returns the streams of local applications that are kept on disk; nil: there are no local applications.
func appStreams(ctx context.Context, js jetstream.JetStream) ([]parcel.App, error) {
	if js == nil {
		return nil, nil
	}
	var all []parcel.App
	names := js.StreamNames(ctx)
	for name := range names.Name() {
		raw, err := ask(ctx, js, "STREAM.INFO."+name, nil)
		if err != nil {
			return nil, fmt.Errorf("look at stream %s of local applications: %w", name, err)
		}
		var info struct {
			Config json.RawMessage       `json:"config"`
			State  jetstream.StreamState `json:"state"`
		}
		var kind struct {
			Storage jetstream.StorageType `json:"storage"`
		}
		if err := errors.Join(json.Unmarshal(raw, &info), json.Unmarshal(info.Config, &kind)); err != nil {
			return nil, fmt.Errorf("look at stream %s of local applications: %w", name, err)
		}
		if kind.Storage == jetstream.FileStorage {
			a := parcel.App{Name: name, Config: info.Config, Last: info.State.LastSeq}
			if a.Consumers, err = appConsumers(ctx, js, a); err != nil {
				return nil, fmt.Errorf("look at the consumers of stream %s of local applications: %w", name, err)
			}
			all = append(all, a)
		}
	}
	if err := names.Err(); err != nil && !errors.Is(err, jetstream.ErrNoStreamResponse) && !noJetStream(err) {
		return nil, fmt.Errorf("list the streams of local applications: %w", err)
	}
	return all, nil
}

// appConsumers returns the durable consumers of such a stream. Others are made anew by who uses them.
func appConsumers(ctx context.Context, js jetstream.JetStream, a parcel.App) (all []parcel.Consumer, err error) {
	for offset := 0; ; {
		raw, err := ask(ctx, js, "CONSUMER.LIST."+a.Name, fmt.Appendf(nil, `{"offset":%d}`, offset))
		if err != nil {
			return nil, err
		}
		var page struct {
			Total     int `json:"total"`
			Consumers []struct {
				Name   string          `json:"name"`
				Config json.RawMessage `json:"config"`
				Floor  struct {
					Stream uint64 `json:"stream_seq"`
				} `json:"ack_floor"`
			} `json:"consumers"`
		}
		if err := json.Unmarshal(raw, &page); err != nil {
			return nil, err
		}
		for _, c := range page.Consumers {
			var kind struct {
				Durable string `json:"durable_name"`
			}
			if err := json.Unmarshal(c.Config, &kind); err != nil {
				return nil, err
			}
			if kind.Durable != "" {
				all = append(all, parcel.Consumer{Name: c.Name, Config: c.Config, Floor: min(c.Floor.Stream, a.Last)})
			}
		}
		if offset += len(page.Consumers); len(page.Consumers) == 0 || offset >= page.Total {
			return all, nil
		}
	}
}

// makeConsumers makes the consumers of a stream that was restored, behind what they had acknowledged. One that cannot be had is logged: the data is there.
func makeConsumers(ctx context.Context, js jetstream.JetStream, a parcel.App, log *slog.Logger) {
	for _, c := range a.Consumers {
		body, err := json.Marshal(map[string]any{"stream_name": a.Name, "config": c.Config, "action": "create"})
		if err == nil {
			_, err = ask(ctx, js, "CONSUMER.CREATE."+a.Name+"."+c.Name, body)
		}
		if err == nil && c.Floor > 0 {
			_, err = ask(ctx, js, "CONSUMER.RESET."+a.Name+"."+c.Name, fmt.Appendf(nil, `{"seq":%d}`, c.Floor+1))
		}
		if err != nil {
			log.Warn("a consumer of local applications is not where it was", "stream", a.Name, "consumer", c.Name, "acknowledged", c.Floor, "err", err)
		}
	}
}

// noJetStream says that local applications get no JetStream of their own.
func noJetStream(err error) bool {
	return errors.Is(err, jetstream.ErrJetStreamNotEnabled) || errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount)
}

// dumpApp writes what such a stream holds. It asks for each message: a consumer would not be let onto a work queue, and would be one more to wait for.
func dumpApp(ctx context.Context, js jetstream.JetStream, a parcel.App, w *parcel.Writer) error {
	s, err := js.Stream(ctx, a.Name)
	if err != nil {
		return fmt.Errorf("read stream %s of local applications: %w", a.Name, err)
	}
	for seq := max(s.CachedInfo().State.FirstSeq, 1); seq <= a.Last; {
		m, err := s.GetMsg(ctx, seq, jetstream.WithGetMsgSubject(">"))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read stream %s of local applications at %d: %w", a.Name, seq, err)
		}
		if m.Sequence > a.Last {
			return nil
		}
		if err := w.Write(parcel.Record{
			Stream: parcel.AppRecords + a.Name, Seq: m.Sequence, Time: m.Time, Subject: m.Subject, Header: rawHeader(m.Header), Data: m.Data,
		}); err != nil {
			return err
		}
		seq = m.Sequence + 1
	}
	return nil
}

// endApps ends what unpack has written of the streams of local applications: above everything that can have been given out.
func endApps(apps []parcel.App, dir string, writers map[string]*blocks.Writer) error {
	for _, a := range apps {
		w := writers[parcel.AppRecords+a.Name]
		if w == nil {
			var err error
			if w, err = storage.AppStreamFiles(dir, a.Name).NewWriter(); err != nil {
				return err
			}
		}
		if err := w.End(a.Last + storage.RestoredAhead); err != nil {
			return err
		}
		delete(writers, parcel.AppRecords+a.Name)
	}
	return nil
}

// makeApps makes the streams of local applications on the blocks that unpack has written, and sees that everything is there.
func makeApps(ctx context.Context, js jetstream.JetStream, apps []parcel.App, spans map[string]span, log *slog.Logger) error {
	for _, a := range apps {
		if _, err := ask(ctx, js, "STREAM.CREATE."+a.Name, a.Config); err != nil {
			return fmt.Errorf("stream %s of local applications: %w", a.Name, err)
		}
		s, err := js.Stream(ctx, a.Name)
		if err != nil {
			return fmt.Errorf("stream %s of local applications: %w", a.Name, err)
		}
		if st, sp := s.CachedInfo().State, spans[parcel.AppRecords+a.Name]; st.Msgs < sp.count && s.CachedInfo().Config.MaxAge == 0 && !s.CachedInfo().Config.AllowMsgTTL || st.LastSeq < a.Last {
			return fmt.Errorf("stream %s of local applications holds %d messages up to %d, and the backup has %d up to %d", a.Name, st.Msgs, st.LastSeq, sp.count, a.Last)
		}
		makeConsumers(ctx, js, a, log)
	}
	return nil
}
