package frame

// Control characters of text protocols.
const (
	soh = 0x01
	stx = 0x02
	etx = 0x03
	eot = 0x04
	dle = 0x10
)

// stxETX is the rule of messages between STX and ETX. A block check character may follow: the XOR of the message and ETX. Without
// it, STX begins a message wherever it stands.
type stxETX struct {
	limit int
	bcc   bool

	sum   byte // of what is behind STX
	inner int  // place of a later STX from which on the sum is the same, so that a message may as well begin there; 0: none
	end   int  // place of ETX; 0: not seen
}

func (r *stxETX) look(b []byte, seen int, _ bool) verdict {
	if b[0] != stx {
		return verdict{}
	}
	if seen == 0 {
		r.sum, r.inner, r.end = 0, 0, 0
	}
	for i := max(seen, 1); i < len(b); i++ {
		c := b[i]
		switch {
		case r.end > 0 && c != r.sum:
			return bad(BadChecksum, i+1)
		case r.end > 0 && r.inner > 0:
			return cut(r.inner) // two messages, of which the first lost its end
		case r.end > 0:
			return between(i+1, b[1:r.end])
		case c == etx && !r.bcc:
			return between(i+1, b[1:i])
		case c == etx:
			r.end = i
		case c == stx && !r.bcc:
			return cut(i)
		case i > r.limit:
			return bad(Overlong, i+1)
		}
		if r.sum ^= c; r.sum == 0 && c == stx {
			r.inner = i
		}
	}
	return wait(len(b) + 1)
}

// between returns a message, of which n bytes are on the line. An empty one is none.
func between(n int, data []byte) verdict {
	if len(data) == 0 {
		return skip(n)
	}
	return found(n, data)
}

// dleSTX is the rule of messages between DLE STX and DLE ETX, in which DLE is doubled. A block check character may follow: the XOR
// of the message, with its DLEs single, and ETX.
type dleSTX struct {
	limit int
	bcc   bool

	data []byte
	esc  bool // the last byte was a DLE that stands for nothing yet
	end  bool // the message is complete but for its block check character
}

func (r *dleSTX) look(b []byte, seen int, _ bool) verdict {
	if want, ok := synced(b, []byte{dle, stx}); !ok || want > 0 {
		return verdict{more: want}
	}
	if seen < 2 {
		seen = 2
		r.data, r.esc, r.end = nil, false, false
	}
	for i := seen; i < len(b); i++ {
		switch c := b[i]; {
		case r.end:
			if c != xor(r.data)^etx {
				return bad(BadChecksum, i+1)
			}
			return between(i+1, r.data)
		case !r.esc && c == dle:
			r.esc = true
			continue
		case r.esc && c == stx:
			return cut(i - 1)
		case r.esc && c == etx && r.bcc:
			r.end = true
		case r.esc && c == etx:
			return between(i+1, r.data)
		case r.esc && c != dle:
			return bad(BadEscape, i+1)
		case len(r.data) == r.limit:
			return bad(Overlong, i+1)
		default:
			r.data = append(r.data, c)
		}
		r.esc = false
	}
	return wait(len(b) + 1)
}
