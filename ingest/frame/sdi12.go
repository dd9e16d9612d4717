package frame

import "bytes"

// sdiCRCLen is how many characters the CRC of SDI-12 1.3, 4.4.12 has.
const sdiCRCLen = 3

// newSDI12 finds the answers of SDI-12 sensors: lines that begin with the sensor's address. bare takes those without a CRC too.
func newSDI12(limit int, bare bool) machine {
	return &filter{machine: &line{limit: limit, trim: true}, each: func(f Frame) []Frame {
		var out []Frame
		// A line of 7 data bits that is read with 8, and a sensor that takes the line, put bytes in front that are no text.
		if n := bytes.IndexFunc(f.Data, func(c rune) bool { return c > ' ' && c <= '~' }); n != 0 {
			if n < 0 {
				n = len(f.Data)
			}
			noise := f
			noise.Data, noise.Size, noise.Reject = f.Data[:n:n], n, Noise
			out = append(out, noise)
			f.Data, f.Size = f.Data[n:], f.Size-n
		}
		if f.Size > 0 {
			f.Reject = sdiCheck(f.Data, bare)
			out = append(out, f)
		}
		return out
	}}
}

// sdiCheck says what is wrong with an answer; empty: nothing.
func sdiCheck(s []byte, bare bool) string {
	if bytes.ContainsFunc(s, func(c rune) bool { return c < ' ' || c > '~' && c != 0x7f }) {
		return BadByte // the last character of a CRC may be 7F
	}
	if !alnum(s[0]) {
		return NoAddress
	}
	signed := len(s) > 1 && (s[1] == '+' || s[1] == '-')
	n := len(s) - sdiCRCLen
	if n > 0 && sdiSum(s[:n]) == string(s[n:]) {
		if signed && !sdiValues(s[1:n]) {
			return BadValue
		}
		return ""
	}
	switch {
	case !bare && !signed:
		return NoChecksum
	case signed && sdiValues(s[1:]):
		if bare {
			return ""
		}
		return NoChecksum
	case !signed:
		return ""
	case n > 1 && sdiValues(s[1:n]):
		return BadChecksum
	}
	return BadValue
}

// sdiSum returns the CRC of an answer as its three characters.
func sdiSum(b []byte) string {
	crc := crcARC(b)
	return string([]byte{0x40 | byte(crc>>12), 0x40 | byte(crc>>6&0x3f), 0x40 | byte(crc&0x3f)})
}

// sdiValues says whether b is numbers, each with its sign in front.
func sdiValues(b []byte) bool {
	for len(b) > 0 {
		if b[0] != '+' && b[0] != '-' {
			return false
		}
		digits, points, i := 0, 0, 1
		for ; i < len(b) && b[i] != '+' && b[i] != '-'; i++ {
			switch {
			case b[i] >= '0' && b[i] <= '9':
				digits++
			case b[i] == '.':
				points++
			default:
				return false
			}
		}
		if digits == 0 || points > 1 {
			return false
		}
		b = b[i:]
	}
	return true
}

func alnum(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z'
}
