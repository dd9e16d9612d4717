package main

import (
	"sync/atomic"
	"time"

	"github.com/holdfast-edge/holdfast/cmd/holdfast/apps"
	"github.com/holdfast-edge/holdfast/cmd/holdfast/status"
	"github.com/holdfast-edge/holdfast/configs"
	"github.com/holdfast-edge/holdfast/forward"
	"github.com/holdfast-edge/holdfast/ingest"
	"github.com/holdfast-edge/holdfast/leaf"
	"github.com/holdfast-edge/holdfast/storage"
)

// reporter gathers what the parts report. All its fields are immutable once set, or atomic.
type reporter struct {
	cfg     *atomic.Pointer[configs.Config] // as it is after a reload
	started time.Time
	store   *storage.Store
	runner  *ingest.Runner
	bring   *bringing
	apps    atomic.Pointer[apps.Keeper] // of local applications, once the streams are up
	start   *storage.Start
}

// line is the report in one line.
func (r *reporter) line() string { return status.Line(r.report()) }

// report asks every part how it is and folds the answers.
func (r *reporter) report() status.Report {
	up, waits := r.bring.streams()
	link := leaf.Link{State: leaf.LinkDown}
	var carried forward.Traffic
	if up != nil {
		link, carried = up.server.Link(), up.uplink.Traffic()
	} else {
		link.Cause = waits.Error()
	}
	rep := status.Report{
		Leaf: r.cfg.Load().Leaf.Name, Version: version(), Store: string(r.store.ID()), Epoch: r.store.Epoch(),
		Started: r.started, Now: time.Now(), Clock: r.store.Clock().String(),
		Link: status.Link{
			State: link.State.String(), Cause: link.Cause, Remedy: link.Remedy, Remote: link.Remote,
			Since: link.Since, RTT: link.RTT.Seconds(),
			SentToday: carried.Today.Sent, ReceivedToday: carried.Today.Received, SentMonth: carried.Month.Sent, ReceivedMonth: carried.Month.Received,
		},
		Wear: wear(r.store.Wear()), Streams: r.streams(up, waits), Sources: r.sources(), Damage: damage(r.store.Alarms()), Left: left(r.store.Lefts()),
		Crash: r.start.Crashed(), Aside: aside(r.cfg.Load().Leaf.Data), SetAside: r.store.SetAside(),
	}
	if up != nil {
		rep.Down = down(up.uplink.Downlinks(), link.State == leaf.LinkUp)
	}
	if keeper := r.apps.Load(); keeper != nil {
		rep.Apps = keeper.Status()
	}
	if short := r.store.DiskShort(); short != nil {
		rep.Disk = short.Error()
	}
	if link.State == leaf.LinkOff && r.cfg.Load().Hub.Link == leaf.LinkOnDemand && len(r.cfg.Load().Hub.URLs) > 0 {
		rep.Link.State, rep.Link.Cause = status.OnDemand, ""
	}
	rep.Verdict = status.Fold(rep)
	return rep
}

// streams returns the state of the streams. They may not be up, for the reason waits.
func (r *reporter) streams(up *streams, waits error) []status.Stream {
	progress := map[string]forward.Progress{}
	if up != nil {
		for _, p := range up.uplink.Progress() {
			progress[p.Stream] = p
		}
	}
	states := r.store.Streams()
	out := make([]status.Stream, 0, len(states))
	for i, s := range states {
		p := progress[s.Name]
		st := status.Stream{
			Name: s.Name, Mode: r.cfg.Load().Streams[i].Forward.Mode, Full: s.Full, Wrong: s.Unbalanced,
			Stored: s.Stored, Forwarded: s.Forwarded, Waiting: s.Waiting, Dropped: dropped(s.Dropped),
			Records: s.Messages, Bytes: s.Bytes, MaxBytes: r.cfg.Load().Streams[i].MaxBytes,
			State: p.State.String(), Cause: p.Cause, Remedy: p.Remedy, Since: p.Since, Oldest: p.Oldest, Rate: p.Rate, ETA: p.ETA.Seconds(),
		}
		if s.Former != nil {
			st.Former = s.Former.Leaf
		} else if attached(p.State) {
			// A quorum of the hub has acknowledged the rest. What may be removed here still goes by the proof read from the hub.
			st.Waiting = min(st.Waiting, p.Pending)
			st.Sent = min(st.Waiting, p.Sent)
			st.Forwarded = s.Stored - sum(s.Dropped) - st.Waiting
		}
		if st.Waiting == 0 {
			st.Oldest, st.ETA = time.Time{}, 0
		}
		if st.Mode == forward.ModeNone {
			st.State, st.Waiting = "local", 0 // nothing waits for a hub
		}
		if up == nil {
			s.Waits = waits
		}
		if s.Waits != nil {
			st.Waits = s.Waits.Error()
		}
		if s.Err != nil {
			st.Error = s.Err.Error()
		}
		out = append(out, st)
	}
	return out
}

func (r *reporter) sources() []status.Source {
	totals := map[string]storage.SourceCounters{}
	for _, c := range r.store.Sources() {
		totals[c.Name] = c
	}
	states := r.runner.Status()
	out := make([]status.Source, 0, len(states))
	for _, s := range states {
		c := totals[s.Name]
		if since := sum(s.Rejected); c.Rejected > since {
			s.Rejected[status.BeforeStart] = c.Rejected - since
		}
		out = append(out, status.Source{
			Name: s.Name, Into: s.Stream, State: s.State.Kind.String(), Cause: s.State.Cause, Remedy: s.State.Remedy,
			Since: s.State.Since, Last: s.Last, Stored: c.Stored, Received: c.Stored + sum(s.Rejected), Rejected: s.Rejected,
		})
	}
	return out
}

func down(links []forward.Downlink, linked bool) []status.Down {
	var all []status.Down
	for _, d := range links {
		state := "not taking"
		switch {
		case !linked || !d.Attached && d.Cause == "":
			state = "waiting for the link"
		case d.Attached:
			state = "taking"
		}
		all = append(all, status.Down{Name: d.Stream, State: state, Cause: d.Cause, Remedy: d.Remedy, Received: d.Received, Behind: d.Behind, Heard: d.Heard})
	}
	return all
}

func wear(w storage.Wear) status.Wear {
	return status.Wear{
		Device: w.Device, Observed: w.Observed.Seconds(), Written: w.Written, PerDay: w.PerDay, PerRecord: w.PerRecord,
		Endurance: w.Endurance, Life: w.Life.Seconds(),
	}
}

func damage(alarms []storage.Alarm) []status.Damage {
	var all []status.Damage
	for _, a := range alarms {
		all = append(all, status.Damage{Where: a.Where, Problem: a.Problem, Aside: a.Aside, Lost: a.Lost, At: a.At})
	}
	return all
}

func aside(data string) []status.Aside {
	var all []status.Aside
	for _, a := range storage.AsideStores(data) {
		all = append(all, status.Aside{Dir: a.Dir, Why: a.Why, At: a.At})
	}
	return all
}

func dropped(by map[storage.GapReason]uint64) map[string]uint64 {
	out := make(map[string]uint64, len(by))
	for reason, n := range by {
		out[string(reason)] = n
	}
	return out
}

// attached says that the hub takes a stream's records just now.
func attached(s forward.State) bool {
	return s == forward.Live || s == forward.CatchingUp || s == forward.Stalled || s == forward.Full
}

func sum[K ~string](by map[K]uint64) (n uint64) {
	for _, more := range by {
		n += more
	}
	return n
}

func left(all []storage.Left) (out []status.Left) {
	for _, l := range all {
		out = append(out, status.Left(l))
	}
	return out
}
