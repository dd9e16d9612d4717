package frame

import (
	"bytes"
	"time"
)

// junkChunk bounds the bytes that one reject of a scanner stands for.
const junkChunk = 4 << 10

// scanner is a machine that tries a rule at every byte in turn. When the bytes from one on turn out to be no message, that one
// byte is rejected and the next is tried: a good message is found wherever it begins, also inside a bad one.
type scanner struct {
	queue
	rule  rule
	limit int
	gap   time.Duration // a silence this long ends whatever was begun; 0: none does

	win  window
	want int // bytes in win that the rule waits for
	seen int // bytes in win that the rule has looked at
	last time.Time

	junk   piece
	why    string // the reason for junk
	detail string
	blame  int64 // up to this place on the line rejected bytes belong to one bad message
}

// rule knows what one kind of message looks like.
type rule interface {
	// look judges b, whose first byte may begin a message. It is called with one byte, and, after a wait, again when there are
	// as many as it wanted. seen is how many bytes it was shown at the last call for the same first byte; 0: a new one. clean
	// says that the bytes before b were no junk.
	look(b []byte, seen int, clean bool) verdict
}

// closer is a rule that knows messages whose end only shows by what comes next.
type closer interface {
	// closed judges b like look, knowing that nothing comes behind it.
	closed(b []byte) verdict
}

// verdict is what a rule says. The zero verdict means that the first byte begins nothing.
type verdict struct {
	more   int    // bytes needed in all; above 0, nothing else is said
	take   int    // bytes that are settled
	ended  int    // bytes at the end of these that are terminators
	data   []byte // the message; nil: none, and the bytes are rejected unless all of them are terminators
	why    string // the reason for a reject
	span   int    // bytes that the bad message seems to have; those behind take are tried anew, and share its reason
	detail string // more about the reason
}

func wait(n int) verdict                 { return verdict{more: n} }
func skip(n int) verdict                 { return verdict{take: n, ended: n} }
func found(n int, data []byte) verdict   { return verdict{take: n, data: data} }
func bad(why string, span int) verdict   { return verdict{take: 1, why: why, span: span} }
func cut(n int) verdict                  { return verdict{take: n, why: Truncated, span: n} }
func ending(v verdict, n int) verdict    { v.ended = n; return v }
func (v verdict) about(s string) verdict { v.detail = s; return v }

func (s *scanner) step(b byte, t time.Time) {
	s.last = t
	s.win.add(b, t)
	s.scan()
}

// scan settles what can be settled.
func (s *scanner) scan() {
	for len(s.win.buf) > 0 && len(s.win.buf) >= s.want {
		v := s.rule.look(s.win.buf, s.seen, s.junk.size == 0)
		if v.more > 0 {
			s.want, s.seen = v.more, len(s.win.buf)
			return
		}
		s.settle(v)
	}
}

func (s *scanner) settle(v verdict) {
	s.want, s.seen = 0, 0
	switch {
	case v.data != nil:
		s.dump()
		s.blame = 0
		f := Frame{Data: bytes.Clone(v.data), Size: v.take - v.ended}
		f.First, f.Last = s.win.when(0), s.win.when(f.Size-1)
		s.out = append(s.out, f)
		s.ended += v.ended
		s.win.drop(v.take)
	case v.take > 0 && v.take == v.ended:
		s.dump()
		s.blame = 0
		s.ended += v.ended
		s.win.drop(v.take)
	default:
		s.reject(v)
	}
}

// reject moves bytes into junk.
func (s *scanner) reject(v verdict) {
	if s.win.base >= s.blame {
		why := v.why
		if why == "" {
			why = Noise
		}
		if why != Noise || s.why != Noise {
			s.dump()
		}
		s.why, s.detail = why, v.detail
		s.blame = s.win.base + int64(v.span)
	}
	for i := range max(v.take, 1) {
		s.junk.add(s.win.buf[i], s.win.when(i), min(s.limit, junkChunk))
	}
	s.win.drop(max(v.take, 1))
	if s.junk.size >= junkChunk {
		why, detail := s.why, s.detail
		s.dump()
		s.why, s.detail = why, detail
	}
}

// dump emits junk.
func (s *scanner) dump() {
	if s.junk.size > 0 {
		s.emit(&s.junk, s.why)
		s.out[len(s.out)-1].Detail = s.detail
	}
	s.why, s.detail = "", ""
}

// tick ends what was begun when the line was silent for long enough.
func (s *scanner) tick(t time.Time) {
	if s.gap > 0 && s.held() > 0 && t.Sub(s.last) >= s.gap {
		s.reset(Silence)
	}
}

// reset settles all bytes, knowing that none follow.
func (s *scanner) reset(reason string) {
	for len(s.win.buf) > 0 {
		v := verdict{}
		if c, ok := s.rule.(closer); ok {
			v = c.closed(s.win.buf)
		}
		if v.data == nil {
			v = bad(reason, len(s.win.buf))
		}
		s.settle(v)
		s.scan()
	}
	s.dump()
	s.blame = 0
}

func (s *scanner) held() int { return len(s.win.buf) + s.junk.size }
