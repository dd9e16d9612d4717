package status

import (
	"fmt"
	"sort"
	"strings"
	"time"
)

// Fold returns the verdict over a report. It looks at nothing but r.
func Fold(r Report) Verdict {
	v := Verdict{SetAside: r.SetAside, Findings: []Finding{}}
	foldStreams(r, &v)
	for _, l := range r.Left {
		v.add(Warning, "stream "+l.Name, fmt.Sprintf("is not in the configuration any more, and holds %s that the hub does not have: they stay, and go nowhere", records(l.Records)),
			"put it back into the file until they are at the hub, or remove it for good with the nats tool")
	}
	foldSources(r, &v)
	foldLink(r, &v)
	foldDown(r, &v)
	foldCrashes(r, &v)
	r.Damage = foldAside(r, &v)
	foldDamage(r, &v)
	if r.Apps != nil {
		foldApps(r, *r.Apps, &v)
	}
	if r.Clock == "unsynced" {
		v.add(Note, "clock", "not set by a time source yet: records say so in their time header, and nothing expires by it", "")
	}
	foldDisk(r, &v)
	sort.SliceStable(v.Findings, func(i, j int) bool {
		return rank(v.Findings[i].Severity) < rank(v.Findings[j].Severity)
	})
	v.Safe = v.Lost == 0 && v.SetAside == 0 && !v.blocked
	v.Sentence = sentence(r, v)
	return v
}

func (v *Verdict) add(s Severity, where, what, remedy string) {
	v.Findings = append(v.Findings, Finding{Severity: s, Where: where, What: what, Remedy: remedy})
}

func rank(s Severity) int {
	switch s {
	case Problem:
		return 0
	case Warning:
		return 1
	}
	return 2
}

func foldStreams(r Report, v *Verdict) {
	for _, s := range r.Streams {
		v.Waiting += s.Waiting
		v.Sent += s.Sent
		if s.Waiting > 0 && !s.Oldest.IsZero() && (v.Oldest.IsZero() || s.Oldest.Before(v.Oldest)) {
			v.Oldest = s.Oldest
		}
		v.ETA = max(v.ETA, s.ETA)
		where := "stream " + s.Name
		switch {
		case s.Full:
			v.blocked = true
			v.add(Problem, where, "is full and refuses new records", fullRemedy(s.Mode))
		case s.Error != "":
			v.blocked = true
			v.add(Problem, where, "cannot be written: "+s.Error, "check the disk; capture goes on by itself when writing works again")
		}
		if s.Waits != "" && !s.Full && s.Error == "" {
			v.add(Warning, where, "takes no records, which wait in the journal: "+s.Waits, "see to the cause, make room if the disk is full: when the journal is full, too, new data is refused; all goes on by itself")
		}
		if s.Former != "" && s.Mode != "none" {
			v.add(Problem, where, fmt.Sprintf("records that were captured when this leaf had the name %s wait, and the hub does not ask for them under its present name", s.Former),
				"set leaf.name back to "+s.Former+" until they are at the hub; if another gateway has that name, take out hub.urls meanwhile and carry them there with `holdfast export`")
		}
		if s.Wrong {
			v.add(Problem, where, "its account does not balance: stored is not forwarded, waiting and dropped together", "keep the log, which has the figures, and report it; capture and forwarding go on")
		}
		foldDropped(where, s.Dropped, v)
		if s.Mode == "none" {
			continue
		}
		switch s.State {
		case "handshake":
			if s.Cause != "" && r.Now.Sub(s.Since) > handshakePatience {
				v.add(Problem, where, "is not forwarded: "+s.Cause, s.Remedy)
			}
		case "stalled":
			v.add(Warning, where, "stalled: "+s.Cause, s.Remedy)
		case "refused", "same name twice", "other incarnation", "hub stream full", "hub stream missing":
			v.add(Problem, where, s.State+": "+s.Cause, s.Remedy)
		}
	}
}

// foldCrashes tells of a crash, and of what was done about crashes.
func foldCrashes(r Report, v *Verdict) {
	for _, a := range r.Aside {
		v.add(Problem, "data directory", "the store of before "+a.At.Format(time.DateTime)+" is set aside in "+a.Dir+", and nothing of it goes to the hub: "+a.Why,
			"capture goes on in a new store; how to bring back what it holds is in docs/OPERATIONS.md, `A store that was set aside`; remove the folder when that is done")
	}
	if r.Crash != "" {
		v.add(Warning, "daemon", "the run before this one crashed: "+r.Crash, "report it with the file crash.last of the data directory")
	}
}

// foldAside tells of acknowledged records that are in no stream, and returns the other damage.
func foldAside(r Report, v *Verdict) []Damage {
	const remedy = "`holdfast repair --dry-run` says why, and `holdfast repair --put-back`, with the daemon stopped, has the next start put back what can be: docs/OPERATIONS.md, `Is the card sound?`, says when"
	if v.SetAside > 0 {
		v.add(Problem, quarantine, "holds "+acknowledged(v.SetAside)+" that could not go into "+verb(v.SetAside, "its stream", "their streams"), remedy)
	}
	var others []Damage
	for _, d := range r.Damage {
		switch {
		case !strings.HasPrefix(d.Where, quarantine+"/"):
			others = append(others, d)
		case v.SetAside == 0: // what the store wrote itself, or cannot read
			v.add(Warning, d.Where, d.Problem, remedy)
		}
	}
	return others
}

// quarantine is where the store keeps what could not go into its stream, from the data directory.
const quarantine = "store/quarantine"

// foldDamage tells of damage that was found and dealt with: all that took data of local applications, and the first three others by name.
func foldDamage(r Report, v *Verdict) {
	const most = 3
	others := 0
	for _, d := range r.Damage {
		what := d.Problem
		if d.Aside != "" {
			what += "; kept as " + d.Aside
		}
		if d.Lost {
			v.AppsLost++
			v.add(Problem, d.Where, "data of local applications is LOST: "+what,
				"let the application store it again, or `holdfast restore` a backup; the medium may be failing: `holdfast check --store` while the daemon is stopped")
			continue
		}
		if others++; others <= most {
			v.add(Warning, d.Where, what, "the medium may be failing: `holdfast check --store` while the daemon is stopped, and replace it if this comes again")
		}
	}
	if others > most {
		v.add(Warning, "data directory", fmt.Sprintf("%s more damages", Count(uint64(others-most))), "`status --json` and the log have them all")
	}
}

// handshakePatience is how long a handshake may say that something is wrong before a person has to know.
const handshakePatience = 30 * time.Second

func fullRemedy(mode string) string {
	if mode == "none" {
		return "raise max_bytes or the budget, or set when_full: drop-oldest"
	}
	return "raise max_bytes or the budget, set when_full: drop-oldest, or bring the link up"
}

// limitReason is the one for which records are dropped as configured. Those without a name here are losses that nobody chose.
const limitReason = "drop-oldest"

// expiredReason is the one for which records are dropped because they are too old, as configured.
const expiredReason = "expired"

// notKeptReason is the one for records that the hub lost and the gateway did not keep any more.
const notKeptReason = "not-kept"

// refusedReason is the one for records that were set aside. They may have been put back since.
const refusedReason = "refused"

func foldDropped(where string, dropped map[string]uint64, v *Verdict) {
	if n := dropped[limitReason]; n > 0 {
		v.add(Warning, where, records(n)+" dropped for want of room before the hub had them; a gap record marks each range",
			"raise max_bytes or the budget if this is not what you want")
		v.Lost += n
	}
	if n := dropped[expiredReason]; n > 0 {
		v.add(Warning, where, records(n)+" became too old before the hub had them; a gap record marks each range",
			"raise max_age or ttl if this is not what you want")
		v.Lost += n
	}
	if n := dropped[notKeptReason]; n > 0 {
		v.add(Problem, where, records(n)+" that the hub had are there no more, and not here either; a gap record marks each range",
			"find out why the hub lost them: it was restored to an earlier state, or its stream was made anew or purged; a longer keep_forwarded lets this gateway send more of them again")
		v.Lost += n
	}
	if n := dropped[refusedReason]; n > 0 {
		v.add(Warning, where, records(n)+" could not go into it and went to "+quarantine+"; a gap record marks each", "the log names the first and why")
	}
	var lost uint64
	others := map[string]uint64{}
	for reason, n := range dropped {
		if reason != limitReason && reason != expiredReason && reason != notKeptReason && reason != refusedReason && n > 0 {
			lost += n
			others[reason] = n
		}
	}
	if lost > 0 {
		v.add(Problem, where, fmt.Sprintf("%s lost (%s); a gap record marks each range", records(lost), reasons(others)),
			"find out why: the log names the files; check the medium, and replace it if this goes on")
		v.Lost += lost
	}
}

// wornOut is how long a card must last at least before a person has to know.
const wornOut = 180 * 24 * time.Hour

func foldDisk(r Report, v *Verdict) {
	if r.Disk != "" {
		v.add(Warning, "disk", "is too small: "+r.Disk, "lower the budget or max_bytes, or use a larger disk")
	}
	w := r.Wear
	if w.Endurance <= 0 || w.PerDay <= 0 {
		return
	}
	if life := time.Duration(w.Life * float64(time.Second)); life < wornOut {
		v.add(Warning, "disk", fmt.Sprintf("%s will be worn out in %s at the present rate, %s a day", w.name(), span(life), size(uint64(w.PerDay))),
			"plan its replacement; see what else writes to it; raise commit.max_delay")
	}
}

func (w Wear) name() string {
	if w.Device == "" {
		return "the disk"
	}
	return w.Device
}

func foldSources(r Report, v *Verdict) {
	for _, s := range r.Sources {
		where := "source " + s.Name
		what := s.State
		if s.Cause != "" {
			what += ": " + s.Cause
		}
		foldRejected(where, s.Rejected, v)
		switch s.State {
		case "running", "starting":
		case "blocked":
			v.blocked = true
			v.add(Problem, where, what, s.Remedy)
		case "denied", "busy", "refused":
			v.add(Problem, where, what, s.Remedy)
		default:
			v.add(Warning, where, what, s.Remedy)
		}
	}
}

// foldRejected tells of messages that nobody will send again. Noise on a line is rejected for other reasons, and is in the table only.
func foldRejected(where string, rejected map[string]uint64, v *Verdict) {
	for _, reason := range []string{"invalid", "payload too large", "message too large", "not allowed", "topic not valid", "queue full", "overrun"} {
		if n := rejected[reason]; n > 0 {
			v.add(Warning, where, fmt.Sprintf("%s refused: %s", records(n), reason), rejectRemedies[reason])
		}
	}
}

var rejectRemedies = map[string]string{
	"invalid":           "the log names the first; usually max_msg_size of the stream is below what the devices send",
	"payload too large": "raise max_message of the source and max_msg_size of its stream, or let the devices send less at once",
	"message too large": "raise max_message of the source and max_msg_size of its stream, or let the devices send less at once",
	"not allowed":       "correct the device's topic, or let its user publish there in access; the log names the newest",
	"topic not valid":   "correct the device's topic: it is empty, has a wildcard, or is no text; the log names the newest",
	"queue full":        "QoS 0 messages came faster than they could be stored: use QoS 1, or raise queue",
	"overrun":           "the line brought more than could be stored: raise buffer, or see why the store is slow",
}

func foldDown(r Report, v *Verdict) {
	for _, d := range r.Down {
		if d.Cause != "" {
			v.add(Warning, "from the hub", d.Name+" does not come: "+d.Cause, d.Remedy)
		}
	}
}

func foldLink(r Report, v *Verdict) {
	switch r.Link.State {
	case "up", "off", OnDemand:
	case "refused":
		v.add(Problem, "link", "refused: "+r.Link.Cause, r.Link.Remedy)
	default:
		what := r.Link.State
		if !r.Link.Since.IsZero() {
			what += " for " + span(r.Now.Sub(r.Link.Since))
		}
		if r.Link.Cause != "" {
			what += ": " + r.Link.Cause
		}
		v.add(Warning, "link", what, r.Link.Remedy)
	}
}

func sentence(r Report, v Verdict) string {
	s := standing(v)
	forwards := false
	for _, st := range r.Streams {
		forwards = forwards || st.Mode != "none"
	}
	switch {
	case !forwards || r.Link.State == "off":
		return s + "; no hub is configured."
	case v.Waiting == 0:
		return s + ", and all of it is at the hub."
	case v.Waiting == v.Sent:
		return s + "; all but " + records(v.Sent) + " on the way " + verb(v.Sent, "is", "are") + " at the hub."
	}
	s += "; " + records(v.Waiting) + verb(v.Waiting, " waits", " wait") + " for the hub"
	if !v.Oldest.IsZero() {
		s += ", the oldest for " + span(r.Now.Sub(v.Oldest))
	}
	switch {
	case r.Link.State == OnDemand:
		s += "; it goes there when enough waits, or for long enough."
	case r.Link.State != "up":
		s += "; it goes there when the link is back."
	case v.ETA > 0:
		s += "; at the present rate it is there in " + span(time.Duration(v.ETA*float64(time.Second))) + "."
	default:
		s += "."
	}
	return s
}

// standing says how the records stand that were acknowledged, and what becomes of new ones.
func standing(v Verdict) string {
	const refused = "NEW DATA CANNOT BE STORED"
	var bad []string
	if v.Lost > 0 {
		bad = append(bad, acknowledged(v.Lost)+verb(v.Lost, " was", " were")+" LOST")
	}
	if v.SetAside > 0 {
		bad = append(bad, acknowledged(v.SetAside)+verb(v.SetAside, " is", " are")+" SET ASIDE")
	}
	if v.AppsLost > 0 {
		bad = append(bad, "DATA OF LOCAL APPLICATIONS WAS LOST")
	}
	s := strings.Join(bad, " and ")
	switch {
	case s == "" && v.blocked:
		return "What was acknowledged is on flash, but " + refused
	case s == "":
		return "Your data is safe on this gateway"
	case v.blocked:
		s += ", and " + refused
	}
	return s + "; what else was acknowledged is on flash"
}
