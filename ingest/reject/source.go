// Package reject keeps samples of what other sources reject, as records of a captured stream of their own.
package reject

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/holdfast-edge/holdfast/ingest"
)

// Headers of a sample. docs/WIRE.md describes them.
const (
	HeaderReason  = "Holdfast-Reject"         // why the bytes were rejected
	HeaderSize    = "Holdfast-Reject-Size"    // how many there were
	HeaderSkipped = "Holdfast-Reject-Skipped" // how many others of the source and reason were rejected since the last sample; only when some were
)

// Defaults and bounds of the configuration.
const (
	DefaultPerMinute = 6
	DefaultSample    = 512 // bytes
	buffer           = 256 << 10
	maxPerMinute     = 6000
	maxSample        = 64 << 10
)

// Config is the rejects section of a source: how much is kept of what the other sources reject.
type Config struct {
	PerMinute int   `yaml:"per_minute" doc:"samples a minute of each source and reason; the rest is counted in the next one"`
	Sample    int64 `yaml:"sample" unit:"bytes" doc:"how many of the rejected bytes a sample has"`
}

// SetDefaults sets every key.
func (c *Config) SetDefaults() { *c = Config{PerMinute: DefaultPerMinute, Sample: DefaultSample} }

// Validate reports what cannot work.
func (c Config) Validate(fault func(key, problem, remedy string)) {
	if c.PerMinute < 1 || c.PerMinute > maxPerMinute {
		fault("per_minute", fmt.Sprintf("%d is out of range", c.PerMinute), fmt.Sprintf("give 1 to %d", maxPerMinute))
	}
	if c.Sample < 1 || c.Sample > maxSample {
		fault("sample", fmt.Sprintf("%d bytes are out of range", c.Sample), "give 1 B to 64KiB")
	}
}

// kind is what samples are limited by.
type kind struct{ source, reason string }

// quota is what a kind may still have.
type quota struct {
	tokens  float64
	at      time.Time // when tokens was right
	skipped int
}

// Source delivers samples of what other sources reject.
type Source struct {
	name   string
	cfg    Config
	buffer *ingest.Buffer
	cond   *ingest.Condition
	tally  ingest.Tally

	mu     sync.Mutex // guards the field below
	quotas map[kind]*quota
}

var (
	_ ingest.Source  = (*Source)(nil)
	_ ingest.Stater  = (*Source)(nil)
	_ ingest.Counter = (*Source)(nil)
	_ ingest.Keeper  = (*Source)(nil)
)

// New returns a source that delivers what Put gets.
func New(name string, cfg Config, log *slog.Logger) *Source {
	log = log.With("source", name)
	s := &Source{name: name, cfg: cfg, cond: ingest.NewCondition(log), quotas: map[kind]*quota{}}
	s.buffer = ingest.NewBuffer(buffer, &s.tally, log)
	return s
}

// Name is the configured name.
func (s *Source) Name() string { return s.name }

// State is running while Run runs.
func (s *Source) State() ingest.State { return s.cond.State() }

// Counts says how many samples were delivered, and how many found no room.
func (s *Source) Counts() ingest.Counts { return s.tally.Counts() }

// Run delivers samples until ctx ends.
func (s *Source) Run(ctx context.Context, deliver ingest.Deliver) error {
	s.cond.Set(ingest.Running, "", "")
	return s.buffer.Run(ctx, deliver, func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
}

// Put keeps a sample of r if its source and reason have not had their share. It never waits, and copies what it keeps.
func (s *Source) Put(r ingest.Reject) {
	skipped, ok := s.admit(kind{r.Source, r.Reason}, r.Time)
	if !ok {
		return
	}
	reason := r.Reason
	if r.Detail != "" {
		reason += ": " + r.Detail
	}
	h := map[string]string{HeaderReason: ingest.HeaderText(reason), HeaderSize: strconv.Itoa(r.Size)}
	if skipped > 0 {
		h[HeaderSkipped] = strconv.Itoa(skipped)
	}
	data := bytes.Clone(r.Data[:min(len(r.Data), int(s.cfg.Sample))])
	s.buffer.Put(ingest.Reading{Time: r.Time, Tail: r.Source, Data: data, Header: h}, len(data))
}

// admit takes from a kind's share, and says how many were skipped since the last one.
func (s *Source) admit(k kind, now time.Time) (skipped int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	most := float64(s.cfg.PerMinute)
	q := s.quotas[k]
	if q == nil { // sources and their reasons are from short lists
		q = &quota{tokens: most, at: now}
		s.quotas[k] = q
	}
	q.tokens = min(most, q.tokens+max(0, now.Sub(q.at).Minutes())*most)
	q.at = now
	if q.tokens < 1 {
		q.skipped++
		return 0, false
	}
	q.tokens--
	skipped, q.skipped = q.skipped, 0
	return skipped, true
}
