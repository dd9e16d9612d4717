package frame

import (
	"bytes"
	"encoding/binary"
)

var (
	smlStart  = []byte{0x1b, 0x1b, 0x1b, 0x1b, 1, 1, 1, 1}
	smlEscape = smlStart[:4]
)

// smlEnd is the first byte behind an escape that ends a file.
const smlEnd = 0x1a

// sml is the rule of SML files in transport protocol version 1: escapes stand at multiples of four bytes, and a CRC-16/X-25 over
// all ends the file. The message is what is between, without escapes and padding.
type sml struct {
	limit int

	data []byte
	esc  bool // the last four bytes were an escape
}

func (r *sml) look(b []byte, seen int, _ bool) verdict {
	if want, ok := synced(b, smlStart); !ok || want > 0 {
		return verdict{more: want}
	}
	if seen < len(smlStart) {
		seen = len(smlStart)
		r.data, r.esc = nil, false
	}
	for i := seen; i < len(b); i++ {
		// A new file that begins elsewhere than at a multiple of four shows that bytes were lost. With a further 1b in front it
		// may be data.
		if from := i + 1 - len(smlStart); from > 0 && bytes.Equal(b[from:i+1], smlStart) && b[from-1] != smlStart[0] {
			return cut(from)
		}
		if (i+1)%4 == 0 {
			if v, done := r.four(b[:i+1]); done {
				return v
			}
		}
		if i >= 2*r.limit {
			return bad(Overlong, i+1)
		}
	}
	return wait(len(b) + 1)
}

// four looks at the last four bytes of b, which stand at a multiple of four.
func (r *sml) four(b []byte) (v verdict, done bool) {
	n := len(b)
	last := b[n-4:]
	switch {
	case !r.esc && bytes.Equal(last, smlEscape):
		r.esc = true
		return verdict{}, false
	case r.esc && last[0] == smlEnd:
		return r.end(b), true
	case r.esc && bytes.Equal(last, smlStart[4:]):
		return cut(n - len(smlStart)), true
	case r.esc && !bytes.Equal(last, smlEscape):
		return bad(BadEscape, n), true
	}
	r.esc = false
	r.data = append(r.data, last...)
	if len(r.data) > r.limit {
		return bad(Overlong, n), true
	}
	return verdict{}, false
}

// end checks a file, of which b is all.
func (r *sml) end(b []byte) verdict {
	n := len(b)
	pad := int(b[n-3])
	if crcX25(b[:n-2]) != binary.LittleEndian.Uint16(b[n-2:]) {
		return bad(BadChecksum, n)
	}
	if pad > 3 || pad >= len(r.data) {
		return bad(BadLength, n)
	}
	return found(n, r.data[:len(r.data)-pad])
}
