package hub

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// merger adds to an existing stream what a plan wants of it.
type merger struct {
	have    *jetstream.StreamConfig
	want    jetstream.StreamConfig
	state   jetstream.StreamState
	set     HubStream // what the fleet file says of the stream
	revoked []string
	ways    ways // where the leaves' streams go

	changes  []string // in words
	warnings []string
}

func (m *merger) change(format string, args ...any) {
	m.changes = append(m.changes, fmt.Sprintf(format, args...))
}

// merge changes have, or says why that cannot be.
func (m *merger) merge() error {
	have, want := m.have, m.want
	if (have.Mirror == nil) != (want.Mirror == nil) || want.Mirror != nil && !same(have.Mirror, want.Mirror) {
		return errors.New("it exists and is not what the plan wants: a stream cannot become a mirror, or a mirror of another stream; choose another hub_stream, or delete it")
	}
	if err := m.sources(); err != nil {
		return err
	}
	for _, subject := range want.Subjects {
		if !slices.Contains(have.Subjects, subject) {
			have.Subjects = append(have.Subjects, subject)
			m.change("subject %s", subject)
		}
	}
	if want.AllowDirect && !have.AllowDirect {
		have.AllowDirect = true
		m.change("direct reads, which the handshake needs")
	}
	if have.Mirror != nil && have.MaxAge > 0 {
		m.warnings = append(m.warnings, fmt.Sprintf("this mirror has a max_age of %v, counted from the arrival at the leaf: what arrives here later than that is deleted on arrival; use max_bytes",
			have.MaxAge))
	}
	if limited := have.MaxBytes > 0 || have.MaxMsgs > 0; have.Mirror != nil && limited && have.Discard == jetstream.DiscardNew {
		m.warnings = append(m.warnings, "this mirror is to refuse what has no room, which is without effect: it grows beyond its limits (nats-server 2.15); let it drop its oldest, or take its limits away")
	}
	return m.limits()
}

// ways has the hub stream that each stream of a leaf goes to, by label.
type ways map[string]string

// ways returns where the plan's streams go.
func (p Plan) ways() ways {
	w := ways{}
	for _, l := range p.spec.Leaves {
		for _, s := range l.Streams {
			w[l.Name+"/"+s.Name] = s.HubStream
		}
	}
	return w
}

// dropGone takes out the sources of revoked leaves, and those that go to another hub stream by now: both would have the records.
func (m *merger) dropGone() {
	m.have.Sources = slices.DeleteFunc(m.have.Sources, func(s *jetstream.StreamSource) bool {
		to := m.ways[label(s)]
		switch {
		case slices.Contains(m.revoked, leafOf(s)):
			m.change("no longer source %s, which is revoked", label(s))
		case to != "" && to != m.have.Name && s.Consumer != nil && s.Consumer.Name == Consumer(leafOf(s), s.Name):
			m.change("no longer source %s, which goes to hub stream %s now", label(s), to)
		default:
			return false
		}
		return true
	})
}

func (m *merger) sources() error {
	had := len(m.have.Sources)
	m.dropGone()
	at := make(map[string]int, had)
	for i, s := range m.have.Sources {
		at[label(s)] = i
	}
	var added []string
	for _, w := range m.want.Sources {
		i, there := at[label(w)]
		switch {
		case !there:
			m.have.Sources = append(m.have.Sources, w)
			added = append(added, label(w))
		case !same(m.have.Sources[i], w):
			return fmt.Errorf("it has a source %s of other settings than the plan's (consumer %s); remove that source first", label(w), w.Consumer.Name)
		}
	}
	if len(added) > 12 {
		m.change("%d sources", len(added))
		return nil
	}
	for _, s := range added {
		m.change("source %s", s)
	}
	return nil
}

// limits sets what the fleet file names, and refuses what would delete records.
func (m *merger) limits() error {
	have, set := m.have, m.set
	if set.MaxBytes > 0 && set.MaxBytes != have.MaxBytes {
		if held := m.state.Bytes; uint64(set.MaxBytes) < held {
			return fmt.Errorf("max_bytes %d is less than the %d that it holds: the oldest records would be deleted; raise it, or purge the stream yourself first", set.MaxBytes, held)
		}
		m.change("max_bytes %d instead of %d", set.MaxBytes, have.MaxBytes)
		have.MaxBytes = set.MaxBytes
	}
	if set.MaxAge > 0 && set.MaxAge != have.MaxAge {
		if oldest := m.state.FirstTime; m.state.Msgs > 0 && time.Since(oldest) > set.MaxAge {
			return fmt.Errorf("max_age %v is less than the age of its first record, of %s: it would be deleted, and what follows; raise it, or purge the stream yourself first",
				set.MaxAge, oldest.UTC().Format(time.RFC3339))
		}
		m.change("max_age %v instead of %v", set.MaxAge, have.MaxAge)
		have.MaxAge = set.MaxAge
	}
	if set.Replicas > 0 && set.Replicas != have.Replicas {
		m.change("%d replicas instead of %d", set.Replicas, have.Replicas)
		have.Replicas = set.Replicas
	}
	if set.Full != "" && m.want.Discard != have.Discard && have.Name != Documents {
		m.change("when full %s", set.Full)
		have.Discard = m.want.Discard
	}
	return nil
}
