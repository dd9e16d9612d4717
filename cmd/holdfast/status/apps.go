package status

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Apps is what local applications use, and what goes wrong with it. Counters begin with the daemon.
type Apps struct {
	Streams       int               `json:"streams"`
	Bytes         int64             `json:"bytes"`
	MaxBytes      int64             `json:"max_bytes"`
	Memory        int64             `json:"memory_bytes"`
	MaxMemory     int64             `json:"max_memory_bytes"`
	Connections   int               `json:"connections"` // the daemon's own among them
	Subjects      int               `json:"subjects"`    // different ones, in all streams
	MaxSubjects   int               `json:"max_subjects"`
	Held          string            `json:"held,omitempty"`   // why they may store nothing more
	Full          []string          `json:"full,omitempty"`   // streams that refuse what is new, and why
	Failed        []string          `json:"failed,omitempty"` // what is declared and could not be made
	Link          string            `json:"link,omitempty"`   // of their own to the hub: up, down; absent: none is configured
	LinkSince     time.Time         `json:"link_since,omitzero"`
	GaveUp        uint64            `json:"max_deliveries"`                  // messages delivered as often as they may be, and not acknowledged
	GaveUpNewest  string            `json:"max_deliveries_newest,omitempty"` // stream.consumer
	Limited       map[string]uint64 `json:"users_limited,omitempty"`         // how often connections of a user were closed for its limits
	Dropped       uint64            `json:"dropped_for_memory"`              // connections that were closed because memory was short
	APIErrors     uint64            `json:"api_errors"`                      // requests to JetStream that were refused
	SlowConsumers uint64            `json:"slow_consumers"`                  // connections that were closed because they did not read
}

// linkPatience is how long the link of local applications may be down before it is a warning.
const linkPatience = 30 * time.Second

// foldApps tells what goes wrong with local applications. Nothing of it concerns what is captured.
func foldApps(r Report, a Apps, v *Verdict) {
	const where = "local applications"
	for _, f := range a.Failed {
		v.add(Problem, where, "are without what is declared for them: "+f, "correct it below jetstream or apps.captured, then `holdfast reload`; `holdfast plan` shows what it would do")
	}
	if a.Held != "" {
		v.add(Problem, where, "can store nothing more: "+a.Held, "purge what nobody needs, limit their streams by max_age or max_msgs, let them store less at once, or raise apps.max_subjects if there is memory for it")
	}
	if a.MaxBytes > 0 && a.Bytes >= a.MaxBytes/100*98 {
		v.add(Warning, where, fmt.Sprintf("have stored %s of %s", size(uint64(a.Bytes)), size(uint64(a.MaxBytes))), "limit their streams, or raise apps.max_file")
	}
	for _, f := range a.Full {
		v.add(Warning, where, "have a stream that takes nothing more, "+f, "remove what nobody needs, or raise its limit")
	}
	if a.GaveUp > 0 {
		v.add(Warning, where, fmt.Sprintf("%s delivered as often as they may be, and never acknowledged, the newest of %s", messages(a.GaveUp), a.GaveUpNewest),
			"see what the application makes of them: they stay in the stream, and are not delivered again")
	}
	for _, name := range slices.Sorted(maps.Keys(a.Limited)) {
		v.add(Warning, where, "have a user, "+name+", with more connections or subscriptions than it may have: the newest were closed", "correct the application, or raise the user's limits")
	}
	if a.Dropped > 0 {
		v.add(Warning, where, fmt.Sprintf("%s closed because memory was short", connections(a.Dropped)), "lower apps.max_connections, or see which program sends or asks for too much at once")
	}
	if a.SlowConsumers > 0 {
		v.add(Note, where, fmt.Sprintf("%s closed because nobody read from it", connections(a.SlowConsumers)), "")
	}
	if a.Link == "down" && r.Now.Sub(a.LinkSince) > linkPatience {
		v.add(Warning, where, "have no link of their own to the hub for "+span(r.Now.Sub(a.LinkSince)), "see apps.hub, and the log for why")
	}
}

func messages(n uint64) string { return Count(n) + verb(n, " message was", " messages were") }

func connections(n uint64) string { return Count(n) + verb(n, " connection was", " connections were") }

// appsLine says what local applications use.
func appsLine(a *Apps) string {
	if a == nil || a.Streams == 0 && a.Link == "" {
		return ""
	}
	parts := []string{fmt.Sprintf("local applications have %d %s with %s of %s, and %s subjects", a.Streams, verb(uint64(a.Streams), "stream", "streams"),
		size(uint64(a.Bytes)), size(uint64(a.MaxBytes)), Count(uint64(a.Subjects)))}
	if a.Link != "" {
		parts = append(parts, "their link is "+a.Link)
	}
	return strings.Join(parts, "; ") + "\n"
}
