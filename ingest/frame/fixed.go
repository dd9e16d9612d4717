package frame

// fixed is the rule of messages of one length, which may begin with given bytes.
type fixed struct {
	size int
	sync []byte
}

func (r fixed) look(b []byte, _ int, _ bool) verdict {
	if want, ok := synced(b, r.sync); !ok || want > 0 {
		return verdict{more: want}
	}
	if len(b) < r.size {
		return wait(r.size)
	}
	return found(r.size, b[:r.size])
}

// synced says whether b begins with sync, as far as both go. want is how many bytes must be there to say more; 0: enough are.
func synced(b, sync []byte) (want int, ok bool) {
	n := min(len(b), len(sync))
	if string(b[:n]) != string(sync[:n]) {
		return 0, false
	}
	if n < len(sync) {
		return n + 1, true
	}
	return 0, true
}
