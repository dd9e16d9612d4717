package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/cmd/holdfast/carry"
	"github.com/holdfast-edge/holdfast/cmd/holdfast/status"
	"github.com/holdfast-edge/holdfast/configs"
	"github.com/holdfast-edge/holdfast/storage"
	"github.com/holdfast-edge/holdfast/systemd"
)

// controlSocket is where a running daemon answers the commands status, tail, adopt and command: HTTP over a Unix socket in the data
// directory. Who may write to the socket, the daemon's user and group, may ask, say which stores this one takes over from, and send commands to devices.
func controlSocket(data string) string { return filepath.Join(data, "holdfast.sock") }

// control answers on the control socket.
type control struct {
	mux      *http.ServeMux
	sockets  *systemd.Sockets
	log      *slog.Logger
	listener net.Listener // set by listen, until serve has ended
	server   http.Server
}

// newControl makes what answers as long as the streams are not up.
func newControl(reports *reporter, sockets *systemd.Sockets, log *slog.Logger) *control {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(reports.report()); err != nil {
			log.Debug("status not delivered", "err", err)
		}
	})
	mux.HandleFunc("POST /adopt", func(w http.ResponseWriter, r *http.Request) {
		id := r.URL.Query().Get("store")
		if !storeForm.MatchString(id) {
			http.Error(w, fmt.Sprintf("%q is not a store id", id), http.StatusBadRequest)
			return
		}
		if err := reports.store.Adopt(storage.StoreID(id)); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if _, err := reports.bring.streams(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		http.NotFound(w, r)
	})
	c := &control{mux: mux, sockets: sockets, log: log}
	c.server = http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug)}
	return c
}

// extend adds what needs the streams. It may be called while control serves.
func (c *control) extend(self *gateway, js jetstream.JetStream, carrier carry.Gateway, cfg configs.Config) {
	c.mux.HandleFunc("POST /plan", func(w http.ResponseWriter, r *http.Request) { servePlan(w, r, self) })
	c.mux.HandleFunc("POST /reload", func(w http.ResponseWriter, r *http.Request) { serveReload(w, r, self) })
	c.mux.HandleFunc("POST /command", func(w http.ResponseWriter, r *http.Request) { serveCommand(w, r, self.executor) })
	c.mux.HandleFunc("GET /tail", func(w http.ResponseWriter, r *http.Request) { serveTail(w, r, js, cfg, c.log) })
	serveCarrier(c.mux, carrier, c.log)
}

// listen opens the control socket in data, or takes the one that the service manager opened. A socket left by a daemon that was killed is replaced: the directory lock is held.
func (c *control) listen(data string) error {
	if l, err := c.sockets.Listen("control"); l != nil || err != nil {
		c.listener = l
		return err
	}
	path := controlSocket(data)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the old socket: %w", err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	if err := os.Chmod(path, 0o660); err != nil {
		return errors.Join(err, l.Close())
	}
	c.listener = l
	return nil
}

// serve answers until ctx ends, on the control socket in data. It opens that if listen has not: a disk without an inode has no room for it.
func (c *control) serve(ctx context.Context, data string) error {
	if c.listener == nil {
		if err := c.listen(data); err != nil {
			return fmt.Errorf("open the control socket: %w", err)
		}
	}
	stop := context.AfterFunc(ctx, func() { _ = c.server.Close() }) // nothing is lost by cutting a status off
	defer stop()
	err := c.server.Serve(c.listener)
	if c.listener = nil; ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("answer on the control socket: %w", err)
}

// tailRecord is one line of `holdfast tail --json`.
type tailRecord struct {
	Stream  string            `json:"stream"`
	Seq     uint64            `json:"seq"`
	Subject string            `json:"subject"`
	ID      string            `json:"id"`
	Time    string            `json:"time"`
	Header  map[string]string `json:"header,omitempty"`
	Data    []byte            `json:"data"` // base64
}

// serveTail streams the records of one stream as JSON lines: the newest `last` of them, then new ones until the caller goes.
func serveTail(w http.ResponseWriter, r *http.Request, js jetstream.JetStream, cfg configs.Config, log *slog.Logger) {
	name := r.URL.Query().Get("stream")
	var last uint64
	if _, err := fmt.Sscan(r.URL.Query().Get("last"), &last); err != nil {
		last = 0
	}
	stream, err := js.Stream(r.Context(), name)
	if err != nil {
		http.Error(w, fmt.Sprintf("stream %q: %v", name, err), http.StatusNotFound)
		return
	}
	start := stream.CachedInfo().State.LastSeq + 1
	start -= min(last, start-1)
	consumer, err := js.OrderedConsumer(r.Context(), name, jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{storage.DataSubject(cfg.Leaf.Name, name, ">")},
		DeliverPolicy:  jetstream.DeliverByStartSequencePolicy, OptStartSeq: max(start, 1),
	})
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	messages, err := consumer.Messages()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	// A consumer that nobody reads lives on for minutes, and a stream may have a thousand of them.
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), 5*time.Second)
		defer cancel()
		messages.Stop()
		if err := js.DeleteConsumer(ctx, name, consumer.CachedInfo().Name); err != nil {
			log.Warn("a consumer is left behind until it expires", "stream", name, "err", err)
		}
	}()
	defer context.AfterFunc(r.Context(), messages.Stop)()
	out := json.NewEncoder(w)
	w.WriteHeader(http.StatusOK)
	flush := http.NewResponseController(w)
	for {
		if err := flush.Flush(); err != nil {
			return
		}
		m, err := messages.Next()
		if err != nil {
			return
		}
		if err := out.Encode(newTailRecord(name, m)); err != nil {
			return
		}
	}
}

func newTailRecord(stream string, m jetstream.Msg) tailRecord {
	t := tailRecord{Stream: stream, Subject: m.Subject(), Data: m.Data()}
	if meta, err := m.Metadata(); err == nil {
		t.Seq = meta.Sequence.Stream
	}
	for k := range m.Headers() {
		switch v := m.Headers().Get(k); k {
		case storage.HeaderID:
			t.ID = v
		case storage.HeaderTime:
			t.Time = v
		default:
			if t.Header == nil {
				t.Header = map[string]string{}
			}
			t.Header[k] = v
		}
	}
	return t
}

// askDaemon asks the daemon that runs on data. The caller closes the body.
func askDaemon(ctx context.Context, method, data, path string, query url.Values, content []byte) (io.ReadCloser, error) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", controlSocket(data))
	}}}
	req, err := http.NewRequestWithContext(ctx, method, "http://holdfast"+path+"?"+query.Encode(), bytes.NewReader(content))
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	switch {
	case errors.Is(err, os.ErrPermission):
		return nil, fmt.Errorf("not allowed to ask the daemon in %s: run as root or as the user of the daemon", data)
	case err != nil:
		return nil, fmt.Errorf("no daemon answers in %s: is it running? `systemctl status holdfast` and `journalctl -u holdfast` tell why (%w)", data, err)
	case resp.StatusCode != http.StatusOK:
		defer func() { _ = resp.Body.Close() }()                // read only
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10)) // what was read of it is all there is to show
		return nil, fmt.Errorf("the daemon answered: %s", text)
	}
	return resp.Body, nil
}

// askStatus returns the report of the daemon that runs on data.
func askStatus(ctx context.Context, data string) (status.Report, error) {
	body, err := askDaemon(ctx, http.MethodGet, data, "/status", nil, nil)
	if err != nil {
		return status.Report{}, err
	}
	defer func() { _ = body.Close() }() // read only
	var r status.Report
	if err := json.NewDecoder(body).Decode(&r); err != nil {
		return status.Report{}, fmt.Errorf("read the daemon's status: %w", err)
	}
	return r, nil
}
