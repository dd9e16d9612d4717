package frame

// Bytes of wired M-Bus (EN 13757-2, 5).
const (
	mbusAck   = 0xe5
	mbusShort = 0x10
	mbusLong  = 0x68
	mbusStop  = 0x16
)

// mbus is the rule of M-Bus telegrams: an acknowledgement of one byte, short ones of 5 bytes, and long ones with a length.
type mbus struct{}

func (mbus) look(b []byte, _ int, clean bool) verdict {
	switch b[0] {
	case mbusAck:
		if !clean { // it has no check, so it is not believed inside junk
			return verdict{}
		}
		return found(1, b[:1])
	case mbusShort:
		return mbusCheck(b, 1, 5)
	case mbusLong:
		if len(b) < 4 {
			return wait(4)
		}
		if b[1] != b[2] || b[3] != mbusLong || b[1] < 3 {
			return bad(BadLength, 4)
		}
		return mbusCheck(b, 4, int(b[1])+6)
	}
	return verdict{}
}

// mbusCheck looks at a telegram of n bytes whose sum begins at from.
func mbusCheck(b []byte, from, n int) verdict {
	if len(b) < n {
		return wait(n)
	}
	var sum byte
	for _, c := range b[from : n-2] {
		sum += c
	}
	if b[n-1] != mbusStop {
		return bad(NoStop, n)
	}
	if b[n-2] != sum {
		return bad(BadChecksum, n)
	}
	return found(n, b[:n])
}
