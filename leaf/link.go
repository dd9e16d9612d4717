package leaf

import (
	"fmt"
	"log/slog"
	"net"
	"regexp"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// LinkState is where the link to the hub stands.
type LinkState uint8

// The states of the link.
const (
	LinkUnknown    LinkState = iota
	LinkOff                  // not wanted, or no hub configured
	LinkDown                 // no connection; it is being retried
	LinkConnecting           // dialling, or shaking hands, and nothing has gone wrong yet
	LinkUp                   // accepted by the hub
	LinkRefused              // hub and leaf do not agree; it is being retried, but somebody must act
)

// String returns the state in one word.
func (s LinkState) String() string {
	switch s {
	case LinkOff:
		return "off"
	case LinkDown:
		return "down"
	case LinkConnecting:
		return "connecting"
	case LinkUp:
		return "up"
	case LinkRefused:
		return "refused"
	}
	return "unknown"
}

// Link is the state of the link to the hub at one moment.
type Link struct {
	State  LinkState
	Reason Reason        // why it is not up, or what is wrong although it is; empty: nothing
	Cause  string        // Reason in words, for people
	Remedy string        // what to do about it; empty when waiting is all
	Since  time.Time     // when State was entered
	Remote string        // address of the hub node connected to, or last tried
	Hub    string        // name of the hub node connected to
	RTT    time.Duration // last measured round trip; 0: none yet
}

// duplicateMemory is how long after its last sign another leaf of our name is taken to be there still.
const duplicateMemory = time.Minute

// link follows the one leaf connection. What has gone wrong comes from the server's log, the only place that tells of dials and of
// what the hub said; whether the link is up comes from the server's list of connections.
type link struct {
	log     *slog.Logger
	name    string
	now     func() time.Time
	changed chan struct{} // buffered 1, never closed
	heard   chan struct{} // buffered 1, never closed: look at the connections soon

	mu         sync.Mutex // guards the fields below
	enabled    bool
	state      Link
	problem    problem         // of the last attempt or loss; zero: none
	id         uint64          // connection that is or was being made
	blamed     uint64          // connection whose problem is known already
	closed     map[uint64]bool // connections closed but perhaps still listed
	up         uint64          // connection that is up
	foreign    uint64          // connection of the link of local applications
	created    time.Time       // when id was
	examined   time.Time       // last examination of a hub that does not say why it hangs up
	found      problem         // what that showed; stands in for vague problems
	lasting    problem         // why the hub does not accept who we are; stands in for what it says of that later
	duplicates int
	duplicate  time.Time // last sign of another leaf of our name
	tries      int       // attempts that ended, ever
	sign       time.Time // last line about an attempt or a connection
	told       map[told]bool
}

// told is an edge that was logged since the link was up; an outage whose cause goes to and fro between two addresses is told of once each.
type told struct {
	state  LinkState
	reason Reason
}

func newLink(log *slog.Logger, name string, configured bool) *link {
	l := &link{
		log: log, name: name, now: time.Now, changed: make(chan struct{}, 1), heard: make(chan struct{}, 1), closed: make(map[uint64]bool), told: make(map[told]bool),
	}
	l.state = Link{State: LinkOff, Since: l.now()}
	if !configured {
		l.state.Cause = "no hub is configured"
	}
	return l
}

// Lines of the server's log that concern the link (nats-server 2.15.3, leafnode.go and client.go).
var (
	dialLine    = regexp.MustCompile(`^Error trying to connect as leafnode to remote server "([^"]*)" \(attempt \d+\): (.*)$`)
	leafLine    = regexp.MustCompile(`^\S+ - lid(?:_ws)?:(\d+) - (.*)$`)
	createdLine = regexp.MustCompile(`^Leafnode connection created for account: (\S+) \(([^)]*)\)`)
	closedLine  = regexp.MustCompile(`^Leafnode connection closed: ([^-]*?)(?: - .*)?$`)
	errorLine   = regexp.MustCompile(`^(?:Leafnode Error |TLS leafnode handshake error: |Error soliciting websocket connection: )(.*)$`)
)

// hear takes a line of the server's log and is true when it concerns the link. It must not block: the server holds locks.
func (l *link) hear(level slog.Level, line string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if m := dialLine.FindStringSubmatch(line); m != nil {
		l.tries, l.sign = l.tries+1, l.now()
		l.state.Remote = m[1]
		l.problem = dialProblem(m[1], m[2], l.now())
		signal(l.heard)
		return true
	}
	m := leafLine.FindStringSubmatch(line)
	if m == nil {
		return false
	}
	id, err := strconv.ParseUint(m[1], 10, 64)
	if err != nil {
		return false
	}
	l.hearConnection(level, id, m[2])
	signal(l.heard)
	return true
}

// hearConnection takes a line about one connection. mu is held.
func (l *link) hearConnection(level slog.Level, id uint64, text string) {
	l.sign = l.now()
	if m := createdLine.FindStringSubmatch(text); m != nil {
		if m[1] != AccountCapture {
			l.foreign = id
			return
		}
		l.id, l.created, l.state.Remote = id, l.now(), m[2]
		return
	}
	if id == l.foreign {
		return
	}
	if m := closedLine.FindStringSubmatch(text); m != nil {
		l.tries++
		if len(l.closed) > 16 {
			clear(l.closed)
		}
		l.closed[id] = true
		if l.blamed == id || !l.enabled {
			return
		}
		l.problem = closeProblem(l.state.Remote, m[1], l.up == id, l.now().Sub(l.created))
		if l.problem.lasting {
			l.lasting = l.problem
		}
		if l.problem.vague && l.found.reason != "" {
			l.problem = l.found
			l.problem.vague = true
		}
		return
	}
	if level < slog.LevelWarn {
		return
	}
	if m := errorLine.FindStringSubmatch(text); m != nil {
		text = m[1]
	}
	p, known := hubProblem(l.state.Remote, l.name, text, l.now())
	if !known && l.blamed == id {
		return // an earlier line said more
	}
	switch {
	case p.lasting:
		l.lasting = p
	case p.reason == ReasonCredentials && l.lasting.reason != "":
		p = l.lasting
	}
	if p.reason == ReasonDuplicate {
		l.duplicates++
		l.duplicate = l.now()
	}
	l.problem, l.blamed = p, id
}

// enable notes that the link is wanted, or not.
func (l *link) enable(on bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.enabled != on {
		l.enabled = on
		l.problem, l.found, l.lasting = problem{}, problem{}, problem{}
		l.examined = time.Time{}
		l.duplicates, l.duplicate = 0, time.Time{}
		l.sign = l.now()
	}
	signal(l.heard)
	l.fold(nil)
}

// renewed notes that the next attempt has other credentials.
func (l *link) renewed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lasting = problem{}
}

// configure notes whether there is a hub at all.
func (l *link) configure(hub bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state.State == LinkOff {
		l.state.Cause = ""
		if !hub {
			l.state.Cause = "no hub is configured"
		}
	}
}

// refuse notes a problem that keeps the link from being tried.
func (l *link) refuse(p problem) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p.refused = true
	l.problem = p
	l.fold(nil)
}

// retract takes a problem back that kept the link from being tried.
func (l *link) retract() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.problem.reason == ReasonLocal {
		l.problem = problem{}
		l.fold(nil)
	}
}

// puzzled is true when the problem at hand is vague and an examination is due. It notes the time of one.
func (l *link) puzzled() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.problem.vague || l.now().Sub(l.examined) < examineInterval {
		return false
	}
	l.examined = l.now()
	return true
}

// learn takes what an examination has shown; the zero problem is nothing.
func (l *link) learn(p problem) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.found = p
	if p.reason == "" {
		return
	}
	p.vague = true // to be looked at again
	if l.problem.vague {
		l.problem = p
		l.fold(nil)
	}
}

// settle takes the server's list of connections.
func (l *link) settle(conns []*server.LeafInfo) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range conns {
		if !l.closed[c.ID] {
			l.fold(c)
			return
		}
	}
	l.fold(nil)
}

// fold derives the state from what is known and tells of a change. c is the connection that is up, nil for none. mu is held.
func (l *link) fold(c *server.LeafInfo) {
	next := Link{Since: l.state.Since, Remote: l.state.Remote, Cause: l.state.Cause}
	switch {
	case !l.enabled:
		next.State = LinkOff
		next.Remote = ""
		if l.state.State != LinkOff {
			next.Cause = "switched off"
		}
	case c != nil:
		next.State, next.Hub, next.Cause = LinkUp, c.Name, ""
		if c.IP != "" && next.Remote == "" {
			next.Remote = net.JoinHostPort(c.IP, strconv.Itoa(c.Port))
		}
		l.up = c.ID
		l.problem, l.found, l.lasting = problem{}, problem{}, problem{}
		if l.duplicates > 0 && l.now().Sub(l.duplicate) < duplicateMemory {
			p := duplicateProblem(l.name)
			next.Reason, next.Cause, next.Remedy = p.reason, p.cause, p.remedy
		} else {
			l.duplicates = 0
		}
	case l.problem.reason != "":
		next.State = LinkDown
		if l.problem.refused {
			next.State = LinkRefused
		}
		next.Reason, next.Cause, next.Remedy = l.problem.reason, l.problem.cause, l.problem.remedy
	default:
		next.State, next.Cause = LinkConnecting, ""
	}
	if next.State == l.state.State && next.Reason == l.state.Reason && next.Cause == l.state.Cause {
		l.state = next
		return
	}
	edge := next.State != l.state.State || next.Reason != l.state.Reason
	before := l.state
	if next.State != before.State {
		next.Since = l.now()
	}
	l.state = next
	if edge {
		signal(l.changed)
		if next.State == LinkUp || next.State == LinkOff {
			clear(l.told)
		}
		if this := (told{next.State, next.Reason}); !l.told[this] {
			l.told[this] = true
			l.report(before, next)
		}
	}
}

// attempts returns how many attempts have ended so far, and when the last sign of one was.
func (l *link) attempts() (int, time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.tries, l.sign
}

// awake notes that an attempt is to be expected from now on.
func (l *link) awake() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sign = l.now()
}

// report logs an edge. mu is held; the logger does not come back.
func (l *link) report(before, next Link) {
	attrs := []any{"state", next.State.String(), "before", before.State.String(), "dur", l.now().Sub(before.Since).Round(time.Millisecond)}
	if next.Remote != "" {
		attrs = append(attrs, "hub", next.Remote)
	}
	if next.Reason == "" {
		l.log.Info("link state", attrs...)
		return
	}
	attrs = append(attrs, "reason", string(next.Reason), "cause", next.Cause)
	if next.Remedy != "" {
		attrs = append(attrs, "remedy", next.Remedy)
	}
	l.log.Warn("link state", attrs...)
}

func (l *link) current() Link {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state
}

// State returns the link's state alone.
func (l *link) State() LinkState {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state.State
}

// String returns the link in one line, for a status.
func (l Link) String() string {
	text := l.State.String()
	if l.Remote != "" {
		text += " " + l.Remote
	}
	if l.Cause != "" {
		text += ": " + l.Cause
	}
	if l.RTT > 0 {
		text += fmt.Sprintf(" (%v)", l.RTT.Round(time.Millisecond))
	}
	return text
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
