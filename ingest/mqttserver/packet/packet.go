// Package packet reads and writes MQTT 3.1.1 and MQTT 5 packets, as far as a server has to.
package packet

import (
	"encoding/binary"
	"fmt"
	"io"
)

// Protocol levels of CONNECT (MQTT 3.1.1 section 3.1.2.2, MQTT 5 section 3.1.2.2).
const (
	V311 = 4
	V5   = 5
)

// Type is a packet type (MQTT 5 section 2.1.2).
type Type byte

// The packet types.
const (
	CONNECT     Type = 1
	CONNACK     Type = 2
	PUBLISH     Type = 3
	PUBACK      Type = 4
	PUBREC      Type = 5
	PUBREL      Type = 6
	PUBCOMP     Type = 7
	SUBSCRIBE   Type = 8
	SUBACK      Type = 9
	UNSUBSCRIBE Type = 10
	UNSUBACK    Type = 11
	PINGREQ     Type = 12
	PINGRESP    Type = 13
	DISCONNECT  Type = 14
	AUTH        Type = 15
)

// Reason is a reason code of MQTT 5 (section 2.4); 0x80 and above are failures.
type Reason byte

// The reason codes that a server here uses.
const (
	Success            Reason = 0x00
	NoSubscription     Reason = 0x11
	UnspecifiedError   Reason = 0x80
	MalformedPacket    Reason = 0x81
	ProtocolError      Reason = 0x82
	UnsupportedVersion Reason = 0x84
	ClientIDNotValid   Reason = 0x85
	BadUserOrPassword  Reason = 0x86
	NotAuthorized      Reason = 0x87
	ServerUnavailable  Reason = 0x88
	ServerBusy         Reason = 0x89
	ServerShuttingDown Reason = 0x8B
	BadAuthMethod      Reason = 0x8C
	KeepAliveTimeout   Reason = 0x8D
	SessionTakenOver   Reason = 0x8E
	TopicFilterInvalid Reason = 0x8F
	TopicNameInvalid   Reason = 0x90
	ReceiveMaxExceeded Reason = 0x93
	TopicAliasInvalid  Reason = 0x94
	PacketTooLarge     Reason = 0x95
	QuotaExceeded      Reason = 0x97
	SharedNotSupported Reason = 0x9E
	SubIDNotSupported  Reason = 0xA1
	WithWill           Reason = 0x04 // of DISCONNECT: the will is to be published
	refusedV311        Reason = 0x80 // of SUBACK in MQTT 3.1.1
	maxString                 = 65535
	requiredFlags      byte   = 2 // of PUBREL, SUBSCRIBE and UNSUBSCRIBE
	lastPropertyID            = 0x2A
	maxUserProperties         = 64
)

// Error says what is wrong with a packet. Whoever sent it is disconnected with the reason.
type Error struct {
	Reason Reason
	Text   string
}

// Error returns the text and the reason.
func (e *Error) Error() string { return fmt.Sprintf("%s (MQTT reason 0x%02X)", e.Text, byte(e.Reason)) }

func malformed(format string, args ...any) error {
	return &Error{MalformedPacket, fmt.Sprintf(format, args...)}
}

func violation(format string, args ...any) error {
	return &Error{ProtocolError, fmt.Sprintf(format, args...)}
}

// Header is the fixed header of a packet.
type Header struct {
	Type   Type
	Flags  byte
	Length int // of what follows, in bytes
}

// ReadHeader reads a fixed header, and an *Error when it is none. Errors of r are returned as they are.
func ReadHeader(r io.ByteReader) (Header, error) {
	first, err := r.ReadByte()
	if err != nil {
		return Header{}, err
	}
	h := Header{Type: Type(first >> 4), Flags: first & 0x0f}
	for shift := 0; ; shift += 7 {
		if shift == 28 {
			return h, malformed("packet length has more than four bytes")
		}
		b, err := r.ReadByte()
		if err != nil {
			return h, noEOF(err)
		}
		h.Length |= int(b&0x7f) << shift
		if b < 0x80 {
			break
		}
	}
	want := byte(0)
	switch h.Type {
	case PUBLISH:
		if h.QoS() == 3 {
			return h, malformed("message with QoS 3")
		}
		return h, nil
	case PUBREL, SUBSCRIBE, UNSUBSCRIBE:
		want = requiredFlags
	case 0:
		return h, malformed("packet of type 0")
	}
	if h.Flags != want {
		return h, malformed("packet of type %d with flags %#x", h.Type, h.Flags)
	}
	return h, nil
}

// QoS returns the quality of service in the header of a PUBLISH.
func (h Header) QoS() byte { return h.Flags >> 1 & 3 }

// noEOF makes an end within a packet an unexpected one.
func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// cursor takes fields from the body of a packet. After a first error all fields are empty.
type cursor struct {
	b   []byte
	err error
}

func (c *cursor) fail(err error) {
	if c.err == nil {
		c.err = err
	}
	c.b = nil
}

func (c *cursor) take(n int) []byte {
	if c.err == nil && n > len(c.b) {
		c.fail(malformed("packet ends within a field"))
	}
	if c.err != nil {
		return nil
	}
	out := c.b[:n:n]
	c.b = c.b[n:]
	return out
}

func (c *cursor) u8() byte {
	if b := c.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (c *cursor) u16() uint16 {
	if b := c.take(2); b != nil {
		return binary.BigEndian.Uint16(b)
	}
	return 0
}

func (c *cursor) u32() uint32 {
	if b := c.take(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (c *cursor) varint() int {
	n := 0
	for shift := 0; shift < 28; shift += 7 {
		b := c.u8()
		n |= int(b&0x7f) << shift
		if b < 0x80 {
			return n
		}
	}
	c.fail(malformed("number with more than four bytes"))
	return 0
}

func (c *cursor) bytes() []byte { return c.take(int(c.u16())) }

// text takes a string that has to be valid (MQTT 5 section 1.5.4).
func (c *cursor) text() string {
	s := string(c.bytes())
	if c.err == nil && !ValidText(s) {
		c.fail(malformed("text that is not UTF-8 or holds U+0000"))
	}
	return s
}

// end checks that nothing is left.
func (c *cursor) end() error {
	if c.err == nil && len(c.b) > 0 {
		c.fail(malformed("%d bytes too many in a packet", len(c.b)))
	}
	return c.err
}
