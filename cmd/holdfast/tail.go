package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/holdfast-edge/holdfast/configs"
)

func tailCommand(ctx context.Context, args []string, std stdio) error {
	fs := flags("tail", "[STREAM]", "Shows records as they are stored, until interrupted. With one stream configured its name may be left out.", std)
	path := fs.String("config", defaultConfig, "configuration `file` of the daemon")
	last := fs.Uint64("last", 10, "how many of the newest stored records to show first")
	count := fs.Int("count", 0, "end after this many records; 0: go on")
	asJSON := fs.Bool("json", false, "print one JSON object a record, its data in base64")
	words, err := parse(fs, args, 1)
	if err != nil {
		return err
	}
	cfg, err := loadConfig(*path, std.err)
	if err != nil {
		return err
	}
	stream, err := tailStream(cfg, words)
	if err != nil {
		return err
	}
	body, err := askDaemon(ctx, http.MethodGet, cfg.Leaf.Data, "/tail", url.Values{"stream": {stream}, "last": {strconv.FormatUint(*last, 10)}}, nil)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }() // read only
	err = printTail(std.out, body, *count, *asJSON)
	if ctx.Err() != nil {
		return nil // interrupted: that is how it ends
	}
	return err
}

func tailStream(cfg configs.Config, words []string) (string, error) {
	names := make([]string, 0, len(cfg.Streams))
	for _, s := range cfg.Streams {
		if len(words) == 1 && s.Name == words[0] {
			return s.Name, nil
		}
		names = append(names, s.Name)
	}
	if len(words) == 0 && len(names) == 1 {
		return names[0], nil
	}
	if len(words) == 0 {
		return "", usageErrorf("which stream? the configuration has %s", strings.Join(names, ", "))
	}
	return "", usageErrorf("no stream %q: the configuration has %s", words[0], strings.Join(names, ", "))
}

func printTail(w io.Writer, body io.Reader, count int, asJSON bool) error {
	lines := bufio.NewReader(body)
	for n := 0; count == 0 || n < count; n++ {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF {
			return fmt.Errorf("the daemon ended the stream of records: is it stopping?")
		}
		if err != nil {
			return fmt.Errorf("read records from the daemon: %w", err)
		}
		if asJSON {
			if _, err := w.Write(line); err != nil {
				return err
			}
			continue
		}
		var r tailRecord
		if err := json.Unmarshal(line, &r); err != nil {
			return fmt.Errorf("read a record: %w", err)
		}
		if _, err := fmt.Fprintf(w, "%s  %s  %s\n", r.Time, r.Subject, printable(r.Data)); err != nil {
			return err
		}
	}
	return nil
}

// printable shows data as text when it is text, else in hex.
func printable(data []byte) string {
	if !utf8.Valid(data) {
		return fmt.Sprintf("hex:%x", data)
	}
	for _, c := range string(data) {
		if c < ' ' && c != '\t' || c == 0x7f {
			return strconv.Quote(string(data))
		}
	}
	return string(data)
}
