package frame

// Bytes of HDLC-like framing (RFC 1662, 4).
const (
	hdlcFlag   = 0x7e
	hdlcEsc    = 0x7d
	hdlcFlip   = 0x20
	hdlcShort  = 4      // bytes of the shortest frame: address, control and FCS
	hdlcGood   = 0xf0b8 // what the FCS-16 gives over a frame with its FCS, before the last inversion
	hdlcSumLen = 2
)

// newHDLC finds frames between flags, whose FCS-16 is checked and taken off. One flag may end a frame and begin the next.
func newHDLC(limit int) machine { return newDecoder(hdlcFlag, limit, limit+2*hdlcSumLen, unhdlc) }

func unhdlc(b []byte) ([]byte, string) {
	out := make([]byte, 0, len(b))
	for i := 0; i < len(b); i++ {
		if b[i] != hdlcEsc {
			out = append(out, b[i])
			continue
		}
		i++
		if i == len(b) {
			return nil, Aborted
		}
		out = append(out, b[i]^hdlcFlip)
	}
	if len(out) < hdlcShort {
		return nil, TooShort
	}
	if reflected(out, 0xffff, 0x8408) != hdlcGood {
		return nil, BadChecksum
	}
	return out[:len(out)-hdlcSumLen], ""
}
