package modbus

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// Function codes and limits. Modbus application protocol V1.1b3, section 6.
const (
	fnReadCoils      = 1
	fnReadDiscrete   = 2
	fnReadHolding    = 3
	fnReadInput      = 4
	fnWriteCoil      = 5
	fnWriteRegister  = 6
	fnWriteCoils     = 15
	fnWriteRegisters = 16

	exceptionBit   = 0x80
	exceptionPDU   = 2 // bytes
	exceptionFrame = 5
	writeReplyPDU  = 5
	coilOn         = 0xff00

	maxRegisters      = 125
	maxCoils          = 2000
	maxWriteRegisters = 123
	maxWriteCoils     = 1968
	maxPDU            = 253
)

// Exception is a device's refusal of a request.
type Exception struct{ Code byte }

// Exception codes that are not all alike to a master. Modbus application protocol V1.1b3, section 7.
const (
	excAddress       = 2
	excValue         = 3
	excAcknowledge   = 5
	excBusy          = 6
	excGatewayPath   = 10
	excGatewayTarget = 11
)

var exceptionNames = map[byte]string{
	1: "illegal function", 2: "illegal data address", 3: "illegal data value", 4: "device failure", 5: "acknowledge, still working",
	6: "device busy", 7: "negative acknowledge", 8: "memory parity error", 10: "gateway path unavailable", 11: "gateway target does not respond",
}

// Error names the exception.
func (e *Exception) Error() string {
	if name := exceptionNames[e.Code]; name != "" {
		return fmt.Sprintf("exception %d: %s", e.Code, name)
	}
	return fmt.Sprintf("exception %d", e.Code)
}

// request is a protocol data unit for one unit.
type request struct {
	unit byte
	pdu  []byte
}

// readRequest asks for count registers or bits of a table.
func readRequest(unit byte, table string, address, count int) request {
	fn := map[string]byte{TableCoil: fnReadCoils, TableDiscrete: fnReadDiscrete, TableHolding: fnReadHolding, TableInput: fnReadInput}[table]
	return request{unit, binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16([]byte{fn}, uint16(address)), uint16(count))}
}

// registersRequest writes registers, as a single one if there is one and multiple is false.
func registersRequest(unit byte, address int, values []uint16, multiple bool) request {
	if len(values) == 1 && !multiple {
		return request{unit, binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16([]byte{fnWriteRegister}, uint16(address)), values[0])}
	}
	p := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16([]byte{fnWriteRegisters}, uint16(address)), uint16(len(values)))
	p = append(p, byte(2*len(values)))
	for _, v := range values {
		p = binary.BigEndian.AppendUint16(p, v)
	}
	return request{unit, p}
}

// coilsRequest writes coils, as a single one if there is one and multiple is false.
func coilsRequest(unit byte, address int, values []bool, multiple bool) request {
	if len(values) == 1 && !multiple {
		v := uint16(0)
		if values[0] {
			v = coilOn
		}
		return request{unit, binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16([]byte{fnWriteCoil}, uint16(address)), v)}
	}
	p := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16([]byte{fnWriteCoils}, uint16(address)), uint16(len(values)))
	bits := make([]byte, (len(values)+7)/8)
	for i, v := range values {
		if v {
			bits[i/8] |= 1 << (i % 8)
		}
	}
	return request{unit, append(append(p, byte(len(bits))), bits...)}
}

// reads tells a read from a write.
func (q request) reads() bool { return q.pdu[0] <= fnReadInput }

// equalReply tells whether the device's reply is byte for byte the request, so that an echo cannot be told from it.
func (q request) equalReply() bool { return q.pdu[0] == fnWriteCoil || q.pdu[0] == fnWriteRegister }

// dataLen is how many bytes of values the reply to a read holds.
func (q request) dataLen() int {
	count := int(binary.BigEndian.Uint16(q.pdu[3:]))
	if q.pdu[0] <= fnReadDiscrete {
		return (count + 7) / 8
	}
	return 2 * count
}

// replyLen is the length of the reply's data unit.
func (q request) replyLen() int {
	if q.reads() {
		return 2 + q.dataLen()
	}
	return writeReplyPDU
}

// accept holds a data unit against the request: ok says that it is its reply, exc that the device refuses.
func (q request) accept(pdu []byte) (ok bool, exc *Exception) {
	switch {
	case len(pdu) == exceptionPDU && pdu[0] == q.pdu[0]|exceptionBit:
		return true, &Exception{pdu[1]}
	case len(pdu) != q.replyLen() || pdu[0] != q.pdu[0]:
		return false, nil
	case q.reads():
		return int(pdu[1]) == q.dataLen(), nil
	}
	return bytes.Equal(pdu, q.pdu[:writeReplyPDU]), nil
}
