package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/holdfast-edge/holdfast/ingest"
	"github.com/holdfast-edge/holdfast/ingest/command"
	"github.com/holdfast-edge/holdfast/ingest/frame"
)

// maxCommand bounds what is read of a command, above what the stream of commands takes.
const maxCommand = 1 << 20

func commandCommand(ctx context.Context, args []string, std stdio) error {
	fs := flags("command", "SOURCE[.TAIL] DATA", "Sends a command to a device and shows what became of it: bytes for a serial line, for a Modbus device {\"field\":\"setpoint\",\"value\":21.5} to SOURCE.DEVICE, or a value to SOURCE.DEVICE.FIELD. DATA - is read from standard input. It is executed once, after those before it; its outcome is stored as a record of the source, too.", std)
	path := fs.String("config", defaultConfig, "configuration `file` of the daemon")
	timeout := fs.Duration("timeout", ingest.DefaultCommandTimeout, "how long the execution may take")
	within := fs.Duration("within", 0, "it must begin within this time, or not at all; needs a synchronised clock; 0: whenever its turn comes")
	escaped := fs.Bool("e", false, `DATA has \r \n \t \0 \xHH and \\, or is hex: and digits`)
	noWait := fs.Bool("no-wait", false, "end when the command is on flash, and print its ID")
	asJSON := fs.Bool("json", false, "print JSON, the reply in base64")
	words, err := parse(fs, args, 2)
	if err != nil {
		return err
	}
	if len(words) != 2 {
		return usageErrorf("give a source and the data; `holdfast command -h` shows how")
	}
	data := []byte(words[1])
	switch {
	case words[1] == "-":
		if data, err = io.ReadAll(io.LimitReader(os.Stdin, maxCommand)); err != nil {
			return fmt.Errorf("read the command: %w", err)
		}
	case *escaped:
		if data, err = frame.Unescape(words[1]); err != nil {
			return usageErrorf("%w", err)
		}
	}
	cfg, err := loadConfig(*path, std.err)
	if err != nil {
		return err
	}
	source, tail, _ := strings.Cut(words[0], ".")
	query := url.Values{"source": {source}, "tail": {tail}, "timeout": {timeout.String()}, "within": {within.String()}}
	if *noWait {
		query.Set("wait", "no")
	}
	body, err := askDaemon(ctx, http.MethodPost, cfg.Leaf.Data, "/command", query, data)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }() // read only
	var o command.Outcome
	if err := json.NewDecoder(body).Decode(&o); err != nil {
		return fmt.Errorf("read the daemon's answer: %w; the command may have been executed", err)
	}
	return printOutcome(std.out, o, *noWait, *asJSON)
}

// printOutcome shows an outcome. It fails, with the reason shown, for a command that is not done.
func printOutcome(w io.Writer, o command.Outcome, ordered, asJSON bool) error {
	switch {
	case asJSON:
		if err := json.NewEncoder(w).Encode(o); err != nil {
			return err
		}
	case ordered:
		fmt.Fprintln(w, o.Command)
	default:
		fmt.Fprintln(w, strings.TrimSuffix(o.State+": "+o.Cause, ": "))
		if len(o.Reply) > 0 {
			fmt.Fprintln(w, printable(o.Reply))
		}
	}
	if !ordered && o.State != ingest.OutcomeDone {
		return errSaid
	}
	return nil
}

// serveCommand takes a command and answers with its outcome, or with its ID alone.
func serveCommand(w http.ResponseWriter, r *http.Request, executor *command.Executor) {
	q := r.URL.Query()
	c := ingest.Command{Source: q.Get("source"), Tail: q.Get("tail")}
	timeout, err := time.ParseDuration(q.Get("timeout"))
	within, wrong := time.ParseDuration(q.Get("within"))
	switch {
	case err != nil || timeout <= 0 || timeout > ingest.MaxCommandTimeout:
		http.Error(w, fmt.Sprintf("timeout %q is no duration up to %s", q.Get("timeout"), ingest.MaxCommandTimeout), http.StatusBadRequest)
		return
	case wrong != nil || within < 0:
		http.Error(w, fmt.Sprintf("within %q is no duration", q.Get("within")), http.StatusBadRequest)
		return
	}
	c.Timeout = timeout
	if within > 0 {
		c.NotAfter = time.Now().Add(within)
	}
	if c.Data, err = io.ReadAll(http.MaxBytesReader(w, r.Body, maxCommand)); err != nil {
		http.Error(w, fmt.Sprintf("the command cannot be read: %v", err), http.StatusBadRequest)
		return
	}
	answer := command.Outcome{Source: c.Source, Tail: c.Tail}
	if q.Get("wait") == "no" {
		answer.Command, err = executor.Submit(r.Context(), c)
	} else {
		var out ingest.Outcome
		answer.Command, out, err = executor.Do(r.Context(), c)
		answer.State, answer.Cause, answer.Reply, answer.Time = out.State, out.Cause, out.Reply, time.Now()
	}
	if err != nil {
		status := http.StatusInternalServerError
		if errors.Is(err, command.ErrNoSource) {
			status = http.StatusNotFound
		}
		http.Error(w, err.Error(), status)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer) // a caller that went away finds the outcome in the stream
}
