package frame

import (
	"bytes"
	"slices"
	"time"
)

// groupsMax is how many incomplete groups of sentences are held; a further one drops the oldest.
const groupsMax = 32

// ais finds NMEA sentences and joins those that carry one AIS message (IEC 61162-1, VDM and VDO) into one, with CR LF between
// them in the order of their numbers. All other sentences are messages of their own.
type ais struct {
	nmea    nmea
	timeout time.Duration

	out    []Frame
	groups []*group // oldest first
}

// group is what is there of an AIS message of several sentences.
type group struct {
	key   string  // address, number of parts, sequence number and channel
	parts []Frame // by number; with no Data: not there
	size  int     // bytes of these
	begun time.Time
}

func (a *ais) step(b byte, t time.Time) {
	a.nmea.step(b, t)
	if len(a.nmea.out) > 0 {
		a.sort()
	}
}

// sort takes what nmea found.
func (a *ais) sort() {
	for _, f := range a.nmea.take() {
		if f.Reject != "" || !voyage(f.Data) {
			a.out = append(a.out, f)
			continue
		}
		key, n, k, ok := part(f.Data)
		switch {
		case !ok:
			f.Reject = BadFields
			a.out = append(a.out, f)
		case n == 1:
			a.out = append(a.out, f)
		default:
			a.join(key, n, k, f)
		}
	}
}

// voyage says whether a sentence carries an AIS message.
func voyage(s []byte) bool {
	return len(s) > 6 && s[0] == '!' && s[6] == ',' && (string(s[3:6]) == "VDM" || string(s[3:6]) == "VDO")
}

// part reads the fields that say where a sentence belongs: part k of n. ok is false if they, or those that hold the payload,
// cannot be right.
func part(s []byte) (key string, n, k int, ok bool) {
	body, _, _ := bytes.Cut(s, []byte("*"))
	f := bytes.Split(body, []byte(","))
	if len(f) != 7 {
		return "", 0, 0, false
	}
	n, k = digit(f[1]), digit(f[2])
	fill := digit(f[6])
	if n < 1 || k < 1 || k > n || fill < 0 || fill > 5 || len(f[3]) > 1 || len(f[3]) == 1 && digit(f[3]) < 0 || n > 1 && len(f[3]) == 0 {
		return "", 0, 0, false
	}
	if bytes.ContainsFunc(f[5], func(c rune) bool { return c < '0' || c > 'w' || c > 'W' && c < '`' }) {
		return "", 0, 0, false
	}
	return string(bytes.Join([][]byte{f[0], f[1], f[3], f[4]}, []byte(","))), n, k, true
}

// digit reads one decimal digit; -1: it is none.
func digit(b []byte) int {
	if len(b) != 1 || b[0] < '0' || b[0] > '9' {
		return -1
	}
	return int(b[0] - '0')
}

// join puts part k of n into its group. A part that is there already shows that the group's message lost one.
func (a *ais) join(key string, n, k int, f Frame) {
	at := slices.IndexFunc(a.groups, func(g *group) bool { return g.key == key })
	if at >= 0 && a.groups[at].parts[k-1].Data != nil {
		a.give(at, Incomplete)
		at = -1
	}
	if at < 0 {
		if len(a.groups) == groupsMax {
			a.give(0, Incomplete)
		}
		at = len(a.groups)
		a.groups = append(a.groups, &group{key: key, parts: make([]Frame, n), begun: f.First})
	}
	g := a.groups[at]
	g.parts[k-1] = f
	g.size += f.Size
	if !slices.ContainsFunc(g.parts, func(f Frame) bool { return f.Data == nil }) {
		a.give(at, "")
	}
}

// give emits a group.
func (a *ais) give(at int, reject string) {
	g := a.groups[at]
	a.groups = slices.Delete(a.groups, at, at+1)
	out := Frame{Size: g.size, Reject: reject}
	for _, f := range g.parts {
		if f.Data == nil {
			continue
		}
		if out.Data == nil || f.First.Before(out.First) {
			out.First = f.First
		}
		if f.Last.After(out.Last) {
			out.Last = f.Last
		}
		if out.Data != nil {
			out.Data = append(out.Data, "\r\n"...)
		}
		out.Data = append(out.Data, f.Data...)
		out.Tag = append(out.Tag, f.Tag...)
	}
	a.out = append(a.out, out)
}

// tick gives up groups whose first sentence came too long ago.
func (a *ais) tick(t time.Time) {
	for len(a.groups) > 0 && t.Sub(a.groups[0].begun) >= a.timeout {
		a.give(0, Incomplete)
	}
}

func (a *ais) reset(reason string) {
	a.nmea.reset(reason)
	a.sort()
	for len(a.groups) > 0 {
		a.give(0, Incomplete)
	}
}

func (a *ais) take() []Frame {
	out := a.out
	a.out = nil
	return out
}

func (a *ais) held() int {
	n := a.nmea.held()
	for _, g := range a.groups {
		n += g.size
	}
	return n
}

func (a *ais) terminators() int { return a.nmea.terminators() }
