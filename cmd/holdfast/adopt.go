package main

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"time"
)

// storeForm is the form of a store id, see docs/WIRE.md.
var storeForm = regexp.MustCompile(`^[0-9a-f]{10}$`)

func adoptCommand(ctx context.Context, args []string, std stdio) error {
	fs := flags("adopt", "STORE", "Takes this gateway's name over from another store that is gone for good, after `status` has told of the same name twice: the card was swapped, and this one is back. The store id stands in that message. With two gateways alive, rename one instead.", std)
	path := fs.String("config", defaultConfig, "configuration `file` of the daemon")
	words, err := parse(fs, args, 1)
	if err != nil {
		return err
	}
	if len(words) == 0 || !storeForm.MatchString(words[0]) {
		return usageErrorf("adopt which store? give its id, ten characters 0 to 9 and a to f, as `holdfast status` names it")
	}
	cfg, err := loadConfig(*path, std.err)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	body, err := askDaemon(ctx, http.MethodPost, cfg.Leaf.Data, "/adopt", url.Values{"store": {words[0]}}, nil)
	if err != nil {
		return err
	}
	if err := body.Close(); err != nil {
		return err
	}
	_, err = fmt.Fprintf(std.out, "took over from store %s; `holdfast status` shows how it goes on\n", words[0])
	return err
}
