package blocks

import "encoding/binary"

// ConsumerStateReadable walks a consumer's state, the content of its o.dat, as the server's decoder would, without believing any count that the rest of the
// file cannot hold. The server believes it and asks for more memory than there is, at every start (nats-server 2.15.3, decodeConsumerState).
func ConsumerStateReadable(b []byte) bool {
	if len(b) < 2 || b[0] != 22 || (b[1] != 1 && b[1] != 2) {
		return false
	}
	version := b[1]
	b = b[2:]
	ok := true
	number := func() uint64 {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			ok, b = false, nil
			return 0
		}
		b = b[n:]
		return v
	}
	number() // ack floor in the consumer's count
	floor := number()
	number() // delivered in the consumer's count
	delivered := number()
	if !ok || floor>>63 != 0 || delivered>>63 != 0 || (version == 2 && delivered < floor) {
		return false
	}
	pending := number()
	if !ok || pending > uint64(len(b)) {
		return false
	}
	if pending > 0 {
		number() // time that those of the entries are relative to
	}
	for ; ok && pending > 0; pending-- {
		if seq := number(); seq>>63 != 0 || seq+floor == 0 {
			return false
		}
		if version == 2 {
			number()
		}
		number()
	}
	redelivered := number()
	if !ok || redelivered > uint64(len(b)) {
		return false
	}
	for ; ok && redelivered > 0; redelivered-- {
		number()
		number()
	}
	return ok && len(b) == 0
}
