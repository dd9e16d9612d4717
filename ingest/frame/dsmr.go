package frame

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
)

// dsmrTail is how many bytes may stand behind the exclamation mark: four digits, CR and LF.
const dsmrTail = 6

// dsmr is the rule of P1 telegrams of electricity meters: from a slash to an exclamation mark, and four hexadecimal digits, the
// CRC-16/ARC over all of that with the line ends as sent. DSMR 2.2 and 3.0 have no CRC. A slash begins a telegram wherever it stands.
type dsmr struct {
	limit int
	bare  bool // telegrams without a CRC are taken

	mark int // place of the exclamation mark; 0: not seen
}

func (r *dsmr) look(b []byte, seen int, _ bool) verdict {
	if b[0] != '/' {
		return verdict{}
	}
	if seen == 0 {
		r.mark = 0
	}
	for i := max(seen, 1); i < len(b); i++ {
		switch c := b[i]; {
		case c == '/':
			return cut(i)
		case r.mark > 0 && c == '\n':
			return r.end(b[:i+1])
		case r.mark > 0 && i > r.mark+dsmrTail:
			return bad(BadDigits, i+1)
		case r.mark == 0 && c == '!':
			r.mark = i
		case i >= r.limit:
			return bad(Overlong, i+1)
		}
	}
	return wait(len(b) + 1)
}

func (r *dsmr) closed(b []byte) verdict {
	if r.mark == 0 {
		return verdict{}
	}
	return r.end(b)
}

// end checks a telegram, of which b is all.
func (r *dsmr) end(b []byte) verdict {
	text := bytes.TrimSuffix(bytes.TrimSuffix(b, []byte("\n")), []byte("\r"))
	given := text[r.mark+1:]
	if len(given) == 0 {
		if !r.bare {
			return bad(NoChecksum, len(b))
		}
		if bytes.ContainsFunc(text, func(c rune) bool { return c != '\r' && c != '\n' && (c < ' ' || c > '~') }) {
			return bad(BadByte, len(b))
		}
		return ending(found(len(b), text), len(b)-len(text))
	}
	var sum [2]byte
	if n, err := hex.Decode(sum[:], given[:min(len(given), 4)]); err != nil || n != 2 || len(given) != 4 {
		return bad(BadDigits, len(b))
	}
	signed := b[:r.mark+1]
	want := binary.BigEndian.Uint16(sum[:])
	if got := crcARC(signed); got != want {
		return r.wrong(signed, got, want, len(b))
	}
	return ending(found(len(b), text), len(b)-len(text))
}

// wrong explains a CRC that is not right.
func (r *dsmr) wrong(signed []byte, got, want uint16, n int) verdict {
	unix := bytes.ReplaceAll(signed, []byte("\r\n"), []byte("\n"))
	if crcARC(bytes.ReplaceAll(unix, []byte("\n"), []byte("\r\n"))) == want {
		return bad(LineEnds, n).about("the CRC is over CR LF at the end of every line, and something changed them")
	}
	return bad(BadChecksum, n).about(fmt.Sprintf("the telegram says %04X, its bytes give %04X", want, got))
}
