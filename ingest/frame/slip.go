package frame

// Bytes of SLIP (RFC 1055).
const (
	slipEnd    = 0xc0
	slipEsc    = 0xdb
	slipEscEnd = 0xdc
	slipEscEsc = 0xdd
)

// newSLIP finds SLIP messages, which END ends and may begin.
func newSLIP(limit int) machine { return newDecoder(slipEnd, limit, limit, unslip) }

// unslip takes the escapes out of a message.
func unslip(b []byte) ([]byte, string) {
	out := make([]byte, 0, len(b))
	for i := 0; i < len(b); i++ {
		if b[i] != slipEsc {
			out = append(out, b[i])
			continue
		}
		i++
		switch {
		case i < len(b) && b[i] == slipEscEnd:
			out = append(out, slipEnd)
		case i < len(b) && b[i] == slipEscEsc:
			out = append(out, slipEsc)
		default:
			return nil, BadEscape
		}
	}
	return out, ""
}
