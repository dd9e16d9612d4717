package frame

import "time"

// line finds lines that end with LF, CR LF or CR. Empty lines are no frames.
type line struct {
	queue
	limit int
	trim  bool

	cur     piece // the line so far
	nul     piece // NULs behind cur: noise if the line ends here, part of the line if it goes on
	over    bool  // the line is overlong and part of it was already rejected
	afterCR bool  // the last byte was a CR: a LF belongs to it
}

func (l *line) step(b byte, t time.Time) {
	lf := b == '\n' && l.afterCR
	l.afterCR = false
	switch {
	case lf:
		l.ended++
	case b == '\n' || b == '\r':
		l.ended++
		l.afterCR = b == '\r'
		l.end()
	case b == 0 && l.trim && !l.over:
		l.nul.add(b, t, l.limit)
		if l.nul.size >= chunk {
			l.goOn()
		}
	default:
		l.goOn()
		l.cur.add(b, t, l.limit)
		if l.cur.size >= l.limit+chunk {
			l.emit(&l.cur, Overlong)
			l.over = true
		}
	}
}

// goOn settles the NULs behind the line so far: they are part of it, or noise when it has not begun.
func (l *line) goOn() {
	if l.nul.size == 0 {
		return
	}
	if l.cur.size == 0 {
		l.emit(&l.nul, Noise)
		return
	}
	for i := range l.nul.size {
		t := l.nul.first
		if i > 0 {
			t = l.nul.last
		}
		l.cur.add(0, t, l.limit)
	}
	l.nul = piece{}
}

// end finishes a line.
func (l *line) end() {
	reject := ""
	if l.over || l.cur.size > l.limit {
		reject = Overlong
	}
	l.over = false
	l.emit(&l.cur, reject)
	l.emit(&l.nul, Noise)
}

func (l *line) reset(reason string) {
	if l.over || l.cur.size > l.limit {
		reason = Overlong
	}
	l.over, l.afterCR = false, false
	l.emit(&l.cur, reason)
	l.emit(&l.nul, Noise)
}

func (l *line) held() int { return l.cur.size + l.nul.size }
