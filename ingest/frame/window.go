package frame

import (
	"sort"
	"time"
)

// window holds bytes of the line that are not settled yet, and when each of them was read.
type window struct {
	buf  []byte
	base int64  // place on the line of buf[0]
	runs []mark // by place; the first is at or before base while buf has bytes
}

// mark says when the byte at a place, and those behind it up to the next mark, were read.
type mark struct {
	at int64
	t  time.Time
}

func (w *window) add(b byte, t time.Time) {
	if n := len(w.runs); n == 0 || !w.runs[n-1].t.Equal(t) {
		w.runs = append(w.runs, mark{w.base + int64(len(w.buf)), t})
	}
	w.buf = append(w.buf, b)
}

// when returns the time of buf[i].
func (w *window) when(i int) time.Time {
	at := w.base + int64(i)
	k := sort.Search(len(w.runs), func(k int) bool { return w.runs[k].at > at })
	return w.runs[k-1].t
}

// drop forgets the first n bytes.
func (w *window) drop(n int) {
	w.buf = w.buf[n:]
	w.base += int64(n)
	if len(w.buf) == 0 {
		w.buf, w.runs = nil, nil
		return
	}
	for len(w.runs) > 1 && w.runs[1].at <= w.base {
		w.runs = w.runs[1:]
	}
}
