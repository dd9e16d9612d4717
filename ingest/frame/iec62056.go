package frame

import "bytes"

// identMax is how long an identification line may be: more than IEC 62056-21, 6.3.2 allows, as some meters do.
const identMax = 64

// iec is the rule of what meters send by IEC 62056-21: an identification line, "/XXXZ...", and data between STX (or SOH) and ETX (or
// EOT) with a block check character, the XOR of what is behind the first of them up to and with the last. With bare, an
// identification line, an empty line and data up to an exclamation mark are taken together, as meters send them unasked.
type iec struct {
	limit int
	bare  bool

	end int // data: place of ETX; identification: place behind its line; 0: not seen
}

func (r *iec) look(b []byte, seen int, _ bool) verdict {
	if seen == 0 {
		r.end = 0
	}
	switch b[0] {
	case '/':
		return r.ident(b, seen)
	case stx, soh:
		return r.block(b, seen)
	case '\r', '\n':
		return skip(1)
	}
	return verdict{}
}

func (r *iec) block(b []byte, seen int) verdict {
	for i := max(seen, 1); i < len(b); i++ {
		switch c := b[i]; {
		case r.end > 0:
			if c != xor(b[1:i]) {
				return bad(BadChecksum, i+1)
			}
			return between(i+1, b[1:r.end])
		case c == etx || c == eot:
			r.end = i
		case c == stx && (b[0] == stx || bytes.IndexByte(b[1:i], stx) >= 0):
			return cut(i)
		case c != stx && c != '\r' && c != '\n' && (c < ' ' || c > '~'):
			return bad(BadByte, i+1)
		case i > r.limit:
			return bad(Overlong, i+1)
		}
	}
	return wait(len(b) + 1)
}

func (r *iec) ident(b []byte, seen int) verdict {
	for i := max(seen, 1); i < len(b); i++ {
		switch c := b[i]; {
		case r.end > 0:
			if v, done := r.readout(b[:i+1]); done {
				return v
			}
		case c == '/':
			return cut(i)
		case c == '\n' && !identifies(b[:i]):
			return bad(NoAddress, i+1)
		case c == '\n' && !r.bare:
			return untilLF(b[:i+1])
		case c == '\n':
			r.end = i + 1
		case c != '\r' && (c < ' ' || c > '~'):
			return bad(BadByte, i+1)
		case i > identMax:
			return bad(Overlong, i+1)
		}
	}
	return wait(len(b) + 1)
}

// identifies says whether a line names a meter, /XXXZ with three letters, or asks for one, /?...!.
func identifies(b []byte) bool {
	b = bytes.TrimSuffix(b, []byte("\r"))
	if bytes.HasPrefix(b, []byte("/?")) {
		return b[len(b)-1] == '!'
	}
	return len(b) >= 5 && letter(b[1]) && letter(b[2]) && letter(b[3])
}

func letter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }

// readout looks at the last byte of b, behind an identification line.
func (r *iec) readout(b []byte) (v verdict, done bool) {
	n := len(b)
	c := b[n-1]
	switch {
	case n == r.end+1 && c != '\r' && c != '\n':
		return untilLF(b[:r.end]), true // what follows is no data of this kind
	case c == '/':
		return cut(n - 1), true
	case c == '\n' && b[bytes.LastIndexByte(b[:n-1], '\n')+1] == '!':
		return untilLF(b), true
	case c != '\r' && c != '\n' && (c < ' ' || c > '~'):
		return bad(BadByte, n), true
	case n > r.limit:
		return bad(Overlong, n), true
	}
	return verdict{}, false
}

func (r *iec) closed(b []byte) verdict {
	if b[0] == '/' && r.end == len(b) {
		return untilLF(b)
	}
	return verdict{}
}

// untilLF returns a message that a line end ends.
func untilLF(b []byte) verdict {
	text := bytes.TrimRight(b, "\r\n")
	return ending(found(len(b), text), len(b)-len(text))
}
