package frame

// mhz is the rule of MH-Z19 and kindred CO2 sensors: FF, the command that is answered, six bytes, and the complement of the sum of the
// seven bytes before.
type mhz struct{}

// mhzSize is the length of every answer.
const mhzSize = 9

// mhzCommands are the commands that are answered: set or read self-calibration, raw values, concentration, range.
var mhzCommands = map[byte]bool{0x78: true, 0x79: true, 0x7d: true, 0x84: true, 0x85: true, 0x86: true, 0x99: true, 0x9b: true}

func (mhz) look(b []byte, _ int, _ bool) verdict {
	switch {
	case b[0] != 0xff:
		return verdict{}
	case len(b) < 2:
		return wait(2)
	case !mhzCommands[b[1]]:
		return verdict{}
	case len(b) < mhzSize:
		return wait(mhzSize)
	}
	var sum byte
	for _, c := range b[1 : mhzSize-1] {
		sum += c
	}
	if -sum != b[mhzSize-1] {
		return bad(BadChecksum, mhzSize)
	}
	return found(mhzSize, b[:mhzSize])
}

// davis is the rule of LOOP and LOOP2 packets of Davis Vantage weather stations: LOO, 92 bytes, LF CR, and a CRC-16/XMODEM with which
// that of the whole is 0. The ACK of the station before a packet belongs to none.
type davis struct{}

const davisSize = 99

func (davis) look(b []byte, _ int, _ bool) verdict {
	const ack = 0x06
	if b[0] == ack {
		if len(b) < 2 {
			return wait(2)
		}
		if b[1] == 'L' {
			return skip(1)
		}
		return verdict{}
	}
	if want, ok := synced(b, []byte("LOO")); !ok || want > 0 {
		return verdict{more: want}
	}
	if len(b) < davisSize {
		return wait(davisSize)
	}
	if b[95] != '\n' || b[96] != '\r' {
		return bad(NoStop, davisSize)
	}
	if crcXMODEM(b[:davisSize]) != 0 {
		return bad(BadChecksum, davisSize)
	}
	return found(davisSize, b[:davisSize])
}
