package frame

import "time"

// gap finds messages between silences.
type gap struct {
	queue
	limit int
	gap   time.Duration

	cur  piece
	over bool // the message is overlong and part of it was already rejected
}

func (g *gap) step(b byte, t time.Time) {
	g.cur.add(b, t, g.limit)
	if g.cur.size >= g.limit+chunk {
		g.emit(&g.cur, Overlong)
		g.over = true
		g.cur.last = t
	}
}

func (g *gap) tick(t time.Time) {
	if !g.cur.last.IsZero() && t.Sub(g.cur.last) >= g.gap {
		g.end("")
	}
}

func (g *gap) end(reason string) {
	if g.over || g.cur.size > g.limit {
		reason = Overlong
	}
	g.emit(&g.cur, reason)
	g.over = false
}

func (g *gap) reset(reason string) { g.end(reason) }

func (g *gap) held() int { return g.cur.size }
