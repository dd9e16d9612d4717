package frame

import "encoding/binary"

// pms is the rule of Plantower particle sensors (PMS3003, 5003, 7003, 5003T/ST): 42 4D, a length, words, and the sum of all bytes before.
type pms struct{}

// pmsLengths are the lengths that such sensors send: the answer to a command, PMS3003, PMS5003, PMS5003ST.
var pmsLengths = map[uint16]bool{4: true, 20: true, 28: true, 36: true}

func (pms) look(b []byte, _ int, _ bool) verdict {
	if want, ok := synced(b, []byte{0x42, 0x4d}); !ok || want > 0 {
		return verdict{more: want}
	}
	if len(b) < 4 {
		return wait(4)
	}
	size := binary.BigEndian.Uint16(b[2:])
	if !pmsLengths[size] {
		return bad(BadLength, 4)
	}
	n := 4 + int(size)
	if len(b) < n {
		return wait(n)
	}
	var sum uint16
	for _, c := range b[:n-2] {
		sum += uint16(c)
	}
	if sum != binary.BigEndian.Uint16(b[n-2:]) {
		return bad(BadChecksum, n)
	}
	return found(n, b[:n])
}
