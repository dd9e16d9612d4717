package apps

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/holdfast-edge/holdfast/cmd/holdfast/status"
)

// state is what Status shows beside what the server says at the moment.
type state struct {
	held     string            // why they may store nothing more; empty: they may
	subjects int               // at the newest look
	limited  map[string]uint64 // how often connections of a user were closed for its limits
	gaveUp   uint64            // messages that were delivered as often as they may be, and not acknowledged
	newest   string            // stream and consumer of the newest of them
	dropped  uint64            // connections that were closed for want of memory
	relieved time.Time         // when the newest of them was
	failed   []string          // what is declared for them and could not be made
	linkUp   bool
	linkTo   time.Time // when linkUp became so
}

// thaw is the part of max_subjects, in percent, below which they may store again.
const thaw = 90

// guard keeps local applications within the limits that are looked at from outside.
func (k *Keeper) guard() {
	streams, subjects := k.server.AppStreams(false), 0
	for _, st := range streams {
		subjects += st.Subjects
	}
	limited := k.server.LimitUsers()
	_, up := k.server.AppLink()
	limits := k.server.AppLimits()
	k.flow.window = limits.DuplicateWindow
	messages := k.flow.look(time.Now(), streams)
	live, limit := memory()
	k.mu.Lock()
	was := k.state.held
	k.state.held, k.state.subjects = "", subjects
	switch most := limits.MaxSubjects; {
	case subjects > most, was != "" && subjects > most/100*thaw:
		k.state.held = fmt.Sprintf("their streams hold %d different subjects, and may hold %d", subjects, most)
	case tooMany(messages, live, limit):
		k.state.held = fmt.Sprintf("%d messages in %v, whose IDs the server may have in memory for so long, are more than there is memory for", messages, limits.DuplicateWindow)
	}
	hold := k.state.held
	for _, name := range limited {
		if k.state.limited == nil {
			k.state.limited = map[string]uint64{}
		}
		k.state.limited[name]++
	}
	if up != k.state.linkUp || k.state.linkTo.IsZero() {
		k.state.linkUp, k.state.linkTo = up, time.Now()
	}
	k.mu.Unlock()
	for _, name := range limited {
		k.log.Warn("connections of a user of local applications were closed: there were more than it may have", "user", name)
	}
	if hold != "" || was != "" { // a reload forgets it
		if err := k.server.HoldApps(hold != ""); err != nil {
			k.log.Error("local applications cannot be limited", "err", err)
		}
	}
	switch {
	case hold != "" && was == "":
		k.log.Warn("local applications can store nothing more", "err", hold)
	case hold == "" && was != "":
		k.log.Info("local applications can store again")
	}
}

// gaveUp counts a message that was delivered as often as it may be.
func (k *Keeper) gaveUp(of string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.state.gaveUp++
	k.state.newest = of
}

// SetFailed says what of the configuration could not be made for local applications, one text each.
func (k *Keeper) SetFailed(failed []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.state.failed = failed
}

// Status returns the state of local applications.
func (k *Keeper) Status() *status.Apps {
	u, limits := k.server.AppUsage(), k.server.AppLimits()
	k.mu.Lock()
	defer k.mu.Unlock()
	a := &status.Apps{
		Streams: u.Streams, Bytes: u.Bytes, MaxBytes: limits.MaxFile, Memory: u.Memory, MaxMemory: limits.MaxMem, Connections: u.Connections,
		Subjects: k.state.subjects, MaxSubjects: limits.MaxSubjects,
		Failed: slices.Clone(k.state.failed), GaveUp: k.state.gaveUp, GaveUpNewest: k.state.newest, Limited: maps.Clone(k.state.limited), Held: k.state.held,
		Dropped: k.state.dropped, APIErrors: u.APIErrors, SlowConsumers: u.SlowConsumers,
	}
	for _, st := range k.server.AppStreams(false) {
		if st.Full != "" {
			a.Full = append(a.Full, st.Name+": "+st.Full)
		}
	}
	if configured, up := k.server.AppLink(); configured {
		a.Link, a.LinkSince = "down", k.state.linkTo
		if up {
			a.Link = "up"
		}
	}
	return a
}
