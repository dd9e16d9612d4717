package frame

import (
	"bytes"
	"time"
)

// delimiter finds frames that end with given bytes. Empty frames are none.
type delimiter struct {
	queue
	end     []byte
	limit   int
	include bool

	cur  piece
	tail []byte // the last bytes of cur, as many as end has
	over bool   // the frame is overlong and part of it was already rejected
}

func (d *delimiter) step(b byte, t time.Time) {
	d.cur.add(b, t, d.limit+len(d.end))
	if len(d.tail) == len(d.end) {
		copy(d.tail, d.tail[1:])
		d.tail = d.tail[:len(d.tail)-1]
	}
	d.tail = append(d.tail, b)
	if bytes.Equal(d.tail, d.end) {
		d.finish()
		return
	}
	if d.cur.size >= d.limit+len(d.end)+chunk {
		d.reject(d.cur.size - len(d.end))
		d.over = true
	}
}

// finish ends the frame, whose last bytes are the delimiter.
func (d *delimiter) finish() {
	d.tail = d.tail[:0]
	size := d.cur.size - len(d.end)
	switch {
	case d.over || size > d.limit:
		d.reject(size)
		d.ended += len(d.end)
	case size <= 0:
		d.ended += d.cur.size
	case d.include:
		d.emit(&d.cur, "")
	default:
		d.cur.size, d.cur.data = size, d.cur.data[:size]
		d.ended += len(d.end)
		d.emit(&d.cur, "")
	}
	d.cur, d.over = piece{}, false
}

// reject emits the first size bytes of an overlong frame and holds on to the others.
func (d *delimiter) reject(size int) {
	rest := d.cur.size - size
	last := d.cur.last
	d.cur.size, d.cur.data = size, d.cur.data[:min(size, len(d.cur.data), d.limit)]
	d.emit(&d.cur, Overlong)
	for _, b := range d.tail[max(0, len(d.tail)-rest):] {
		d.cur.add(b, last, d.limit)
	}
}

func (d *delimiter) reset(reason string) {
	if d.over || d.cur.size > d.limit+len(d.end) {
		reason = Overlong
	}
	d.emit(&d.cur, reason)
	d.tail, d.over = d.tail[:0], false
}

func (d *delimiter) held() int { return d.cur.size }
