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
	"path/filepath"
	"strconv"

	"github.com/holdfast-edge/holdfast/configs"
)

// maxPlanned is how large a configuration may be that a plan is asked for, in bytes.
const maxPlanned = 1 << 20

func planCommand(ctx context.Context, args []string, std stdio) error {
	fs := flags("plan", "[FILE]", "Asks the running daemon what a configuration would change if it were reloaded. Changes nothing. It fails when data of local applications "+
		"would be lost, unless -allow-loss is given.", std)
	path := fs.String("config", defaultConfig, "configuration `file`")
	allow := fs.Bool("allow-loss", false, "do not fail when data would be lost")
	asJSON := fs.Bool("json", false, "print the plan as JSON")
	words, err := parse(fs, args, 1)
	if err != nil {
		return err
	}
	if len(words) == 1 {
		*path = words[0]
	}
	cfg, err := loadConfig(*path, std.err)
	if err != nil {
		return err
	}
	full, err := filepath.Abs(*path)
	if err != nil {
		return err
	}
	file, err := os.ReadFile(*path)
	if err != nil {
		return err
	}
	p, err := askPlan(ctx, cfg.Leaf.Data, "/plan", url.Values{"folder": {filepath.Dir(full)}}, file)
	if err != nil {
		return err
	}
	if err := printPlan(std.out, p, *asJSON); err != nil {
		return err
	}
	if p.lossy() && !*allow {
		return fmt.Errorf("data would be lost; -allow-loss says that it may be")
	}
	return nil
}

func reloadCommand(ctx context.Context, args []string, std stdio) error {
	fs := flags("reload", "", "Makes the running daemon read its configuration again, and shows what it changed. A file with faults changes nothing. "+
		"The daemon reads the file that it was started with.", std)
	path := fs.String("config", defaultConfig, "configuration `file`, to find the daemon by")
	allow := fs.Bool("allow-loss", false, "also do what loses data of local applications")
	asJSON := fs.Bool("json", false, "print what was done as JSON")
	if _, err := parse(fs, args, 0); err != nil {
		return err
	}
	cfg, err := loadConfig(*path, std.err)
	if err != nil {
		return err
	}
	p, err := askPlan(ctx, cfg.Leaf.Data, "/reload", url.Values{"allow_loss": {strconv.FormatBool(*allow)}}, nil)
	if err != nil {
		return err
	}
	if err := printPlan(std.out, p, *asJSON); err != nil {
		return err
	}
	if len(p.Failed) > 0 {
		return errors.New("not everything could be done")
	}
	return nil
}

func printPlan(w io.Writer, p reloadPlan, asJSON bool) error {
	if !asJSON {
		_, err := io.WriteString(w, p.String())
		return err
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(p)
}

// askPlan posts to the daemon that runs on data and returns the plan that it answers with.
func askPlan(ctx context.Context, data, path string, query url.Values, content []byte) (reloadPlan, error) {
	var p reloadPlan
	answer, err := askDaemon(ctx, http.MethodPost, data, path, query, content)
	if err != nil {
		return p, err
	}
	defer func() { _ = answer.Close() }() // read only
	if err := json.NewDecoder(answer).Decode(&p); err != nil {
		return p, fmt.Errorf("read the daemon's answer: %w", err)
	}
	return p, nil
}

// servePlan answers what the configuration in the body would change.
func servePlan(w http.ResponseWriter, r *http.Request, g *gateway) {
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxPlanned))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	cfg, faults := configs.Read(data, r.URL.Query().Get("folder"))
	if len(faults) > 0 {
		http.Error(w, faultsError{faults}.Error(), http.StatusUnprocessableEntity)
		return
	}
	p, err := g.plan(r.Context(), cfg)
	answerPlan(w, p, err)
}

// serveReload reloads.
func serveReload(w http.ResponseWriter, r *http.Request, g *gateway) {
	// A caller that goes away must not leave half a reload behind.
	p, err := g.reload(context.WithoutCancel(r.Context()), r.URL.Query().Get("allow_loss") == "true")
	answerPlan(w, p, err)
}

func answerPlan(w http.ResponseWriter, p reloadPlan, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(p) // the caller has gone, then
}
