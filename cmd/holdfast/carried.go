package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"time"

	"github.com/holdfast-edge/holdfast/cmd/holdfast/carry"
	"github.com/holdfast-edge/holdfast/configs"
	"github.com/holdfast-edge/holdfast/leaf"
	"github.com/holdfast-edge/holdfast/storage"
	"github.com/holdfast-edge/holdfast/storage/parcel"
)

// carrier is the daemon as exports and backups see it.
func carrier(cfg configs.Config, store *storage.Store, up *streams) carry.Gateway {
	g := carry.Gateway{Store: store, Uplink: up.uplink, JS: up.js, Apps: up.apps, Version: version()}
	for _, s := range cfg.Streams {
		g.Streams = append(g.Streams, parcel.Stream{Name: s.Name, Mode: s.Forward.Mode, HubStream: s.Forward.HubStream})
	}
	return g
}

// serveCarrier answers the commands export and backup.
func serveCarrier(mux *http.ServeMux, g carry.Gateway, log *slog.Logger) {
	stream := func(what string, write func(ctx context.Context, w io.Writer) error) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			out := &started{w: w}
			if err := write(r.Context(), out); err != nil {
				log.Warn(what+" was not finished", "err", err)
				if !out.yes {
					http.Error(w, err.Error(), http.StatusInternalServerError)
				} // else the caller sees that the end is missing
			}
		}
	}
	mux.HandleFunc("GET /backup", stream("a backup", g.Backup))
	mux.HandleFunc("GET /export", func(w http.ResponseWriter, r *http.Request) {
		again := r.URL.Query().Get("again") != ""
		stream("an export", func(ctx context.Context, w io.Writer) error { return g.Export(ctx, w, again) })(w, r)
	})
	mux.HandleFunc("POST /exported", func(w http.ResponseWriter, r *http.Request) {
		var done struct {
			Part int
			Last map[string]uint64
		}
		err := json.NewDecoder(io.LimitReader(r.Body, 1<<20)).Decode(&done)
		if err == nil {
			err = g.Exported(done.Part, done.Last)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	mux.HandleFunc("POST /receipt", func(w http.ResponseWriter, r *http.Request) {
		var receipt carry.Receipt
		err := json.NewDecoder(io.LimitReader(r.Body, 1<<20)).Decode(&receipt)
		if err == nil {
			err = g.Accept(receipt)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
		}
	})
}

// started notes whether anything was written.
type started struct {
	w   io.Writer
	yes bool
}

func (s *started) Write(p []byte) (int, error) {
	s.yes = true
	return s.w.Write(p)
}

// post sends a value to the daemon.
func post(ctx context.Context, data, path string, v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return err
	}
	body, err := askDaemon(ctx, http.MethodPost, data, path, nil, raw)
	if err != nil {
		return err
	}
	return body.Close()
}

func exportCommand(ctx context.Context, args []string, std stdio) error {
	fs := flags("export", "--to DIR", "Writes what waits for the hub to a file that somebody takes there: `holdfast import` brings it to the hub and leaves a receipt beside it. Receipts that are in DIR count first. What was exported before is not exported again, so several sticks may be on their way.", std)
	path := fs.String("config", defaultConfig, "configuration `file` of the daemon")
	to := fs.String("to", "", "folder or `file` to write; in a folder the file has a name of its own")
	limit := fs.Int64("max-bytes", 0, "size of the file at most; 0 is what the medium has room for")
	again := fs.Bool("again", false, "export once more what was exported, such as for a stick that was lost")
	if _, err := parse(fs, args, 0); err != nil {
		return err
	}
	if *to == "" {
		return usageErrorf("export where? give --to DIR")
	}
	cfg, err := loadConfig(*path, std.err)
	if err != nil {
		return err
	}
	if st, err := os.Stat(*to); err == nil && st.IsDir() {
		receipts, err := carry.Receipts(*to)
		if err != nil {
			fmt.Fprintf(std.err, "holdfast export: %v\n", err)
		}
		for _, r := range receipts {
			if r.Leaf != cfg.Leaf.Name {
				continue
			}
			if err := post(ctx, cfg.Leaf.Data, "/receipt", r); err != nil {
				fmt.Fprintf(std.err, "holdfast export: receipt of part %d: %v\n", r.Part, err)
			}
		}
	}
	query := url.Values{}
	if *again {
		query.Set("again", "1")
	}
	body, err := askDaemon(ctx, http.MethodGet, cfg.Leaf.Data, "/export", query, nil)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }() // read only
	file, h, end, err := carry.Save(body, *to, *limit)
	if err != nil {
		return err
	}
	if end.Records == 0 {
		if err := os.Remove(file); err != nil {
			return err
		}
		if end.Full {
			return fmt.Errorf("%s has no room for a single record", *to)
		}
		_, err = fmt.Fprintln(std.out, "nothing waits that was not exported")
		return err
	}
	if err := post(ctx, cfg.Leaf.Data, "/exported", map[string]any{"Part": h.Part, "Last": end.Last}); err != nil {
		return fmt.Errorf("%s is written, and the daemon does not know: the next export has the same records, which does no harm: %w", file, err)
	}
	_, err = fmt.Fprintf(std.out, "%s: part %d, %d records\n", file, h.Part, end.Records)
	if err == nil && end.Full {
		_, err = fmt.Fprintln(std.out, "it is full, and more waits: export to another stick")
	}
	return err
}

func importCommand(ctx context.Context, args []string, std stdio) error {
	fs := flags("import", "FILE...", "Brings exports to the hub, with the user of the gateway that they are from, and leaves a receipt beside each. Records that the hub has are not sent again; parts go in their order, and one whose predecessor is missing is refused. The gateway itself must not be connected meanwhile.", std)
	hub := fs.String("hub", "", "`URL` of the hub's leaf listener, as tls://hub.example.com:7422")
	var h leaf.Hub
	h.SetDefaults()
	fs.StringVar(&h.Domain, "domain", h.Domain, "JetStream domain of the hub")
	fs.StringVar(&h.Credentials, "credentials", "", "`file` with the gateway's user JWT and seed")
	fs.StringVar(&h.NKey, "nkey", "", "`file` with the seed of the gateway's nkey")
	fs.StringVar(&h.TLS.CA, "ca", "", "`file` with the authorities of the hub's certificate")
	fs.StringVar(&h.TLS.Cert, "cert", "", "`file` with the gateway's certificate")
	fs.StringVar(&h.TLS.Key, "key", "", "`file` with the key of cert")
	patience := fs.Duration("patience", 2*time.Minute, "give up when nothing moves for so long")
	debug := fs.Bool("debug", false, "log what the link does")
	files, err := parse(fs, args, 10_000)
	if err != nil {
		return err
	}
	if len(files) == 0 || *hub == "" {
		return usageErrorf("import what, and where to? give the files and --hub URL")
	}
	h.URLs = []string{*hub}
	log := slog.New(slog.DiscardHandler)
	if *debug {
		log = newLogger(std.err, true)
	}
	done, err := carry.Import(ctx, files, carry.ImportOptions{Hub: h, Patience: *patience, Log: log})
	for _, im := range done {
		if _, perr := fmt.Fprintf(std.out, "%s: part %d of %s, %d records are at the hub; receipt %s\n", im.File, im.Header.Part, im.Header.Leaf, im.Records, im.Receipt); err == nil {
			err = perr
		}
	}
	return err
}

func backupCommand(ctx context.Context, args []string, std stdio) error {
	fs := flags("backup", "FILE", "Writes everything that the captured streams and those of local applications hold to a file, or to a file of its own name in a folder, while the daemon runs. With --data, of a directory that no daemon runs on, such as the card of a dead gateway; it must be writable. The file is not encrypted.", std)
	path := fs.String("config", defaultConfig, "configuration `file` of the daemon")
	data := fs.String("data", "", "data `directory` of a gateway that does not run")
	key := fs.String("key", "", "`file` with the key of an encrypted --data")
	words, err := parse(fs, args, 1)
	if err != nil {
		return err
	}
	if len(words) == 0 {
		return usageErrorf("back up where to? give a file or a folder")
	}
	var file string
	var h parcel.Header
	var end parcel.End
	if *data != "" {
		file, h, end, err = carry.BackupOf(ctx, carry.Place{Dir: *data, Key: *key, Log: newLogger(std.err, false)}, words[0], version())
		if err != nil {
			return storeError(err)
		}
	} else {
		cfg, err := loadConfig(*path, std.err)
		if err != nil {
			return err
		}
		body, err := askDaemon(ctx, http.MethodGet, cfg.Leaf.Data, "/backup", nil, nil)
		if err != nil {
			return err
		}
		defer func() { _ = body.Close() }() // read only
		if file, h, end, err = carry.Save(body, words[0], 0); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintf(std.out, "%s: gateway %s, store %s, %d records\n", file, h.Leaf, h.Store, end.Records)
	return err
}

func restoreCommand(ctx context.Context, args []string, std stdio) error {
	fs := flags("restore", "FILE", "Makes a new data directory of a backup. It is another store, which goes on where the backed up one stood with the hub: should the old gateway come back, the two are told apart.", std)
	data := fs.String("data", "", "the new data `directory`; it must have no store yet")
	key := fs.String("key", "", "`file` with a key to encrypt the new store with")
	words, err := parse(fs, args, 1)
	if err != nil {
		return err
	}
	if len(words) == 0 || *data == "" {
		return usageErrorf("restore what, and where to? give the file and --data DIR")
	}
	h, store, err := carry.Restore(ctx, words[0], carry.Place{Dir: *data, Key: *key, Log: newLogger(std.err, false)})
	if errors.Is(err, os.ErrExist) {
		return exitError{exitStore, err}
	}
	if err != nil {
		return storeError(err)
	}
	_, err = fmt.Fprintf(std.out, "%s: gateway %s, store %s (was %s), made %s; give the directory to the user of the daemon, then start it\n",
		*data, h.Leaf, store, h.Store, strconv.Quote(h.Made.Format(time.DateTime)))
	return err
}
