package frame

// newCOBS finds messages in Consistent Overhead Byte Stuffing, which a zero byte ends.
func newCOBS(limit int) machine { return newDecoder(0, limit, limit/254+2, uncobs) }

// uncobs puts the zeros back: a code byte n stands for the n-1 bytes behind it and a zero, which is missing for code 255 and at
// the end. A code 1 at the end behind a code 255, which some encoders send, is thereby nothing.
func uncobs(b []byte) ([]byte, string) {
	out := make([]byte, 0, len(b))
	for i := 0; i < len(b); {
		code := int(b[i])
		if i+code > len(b) {
			return nil, BadCode
		}
		out = append(out, b[i+1:i+code]...)
		i += code
		if code < 255 && i < len(b) {
			out = append(out, 0)
		}
	}
	return out, ""
}
