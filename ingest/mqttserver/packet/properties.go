package packet

import (
	"encoding/binary"
	"strings"
	"unicode/utf8"
)

// ValidText says whether a string is one that MQTT allows: UTF-8 without U+0000 (MQTT 3.1.1 section 1.5.3).
func ValidText(s string) bool { return utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 }

// Identifiers of properties (MQTT 5 section 2.2.2.2).
const (
	idPayloadFormat   = 0x01
	idMessageExpiry   = 0x02
	idContentType     = 0x03
	idResponseTopic   = 0x08
	idCorrelation     = 0x09
	idSubscription    = 0x0B
	idSessionExpiry   = 0x11
	idAssignedClient  = 0x12
	idServerKeepAlive = 0x13
	idAuthMethod      = 0x15
	idAuthData        = 0x16
	idRequestProblem  = 0x17
	idWillDelay       = 0x18
	idRequestResponse = 0x19
	idReasonString    = 0x1F
	idReceiveMaximum  = 0x21
	idTopicAliasMax   = 0x22
	idTopicAlias      = 0x23
	idUser            = 0x26
	idMaxPacket       = 0x27
	idSubIDAvailable  = 0x29
	idSharedAvailable = 0x2A
)

// place is where a property may be. Wills are a place of their own.
type place uint16

const (
	inConnect place = 1 << iota
	inWill
	inPublish
	inAck
	inSubscribe
	inUnsubscribe
	inDisconnect
	inAuth
)

// form is how a property is written.
type form byte

const (
	formNone form = iota
	formByte
	formBool // a byte that is 0 or 1
	formU16
	formU32
	formVarint
	formText
	formBytes
	formPair
)

// properties lists what clients may send.
var properties = [lastPropertyID + 1]struct {
	form  form
	where place
}{
	idPayloadFormat:   {formBool, inWill | inPublish},
	idMessageExpiry:   {formU32, inWill | inPublish},
	idContentType:     {formText, inWill | inPublish},
	idResponseTopic:   {formText, inWill | inPublish},
	idCorrelation:     {formBytes, inWill | inPublish},
	idSubscription:    {formVarint, inSubscribe},
	idSessionExpiry:   {formU32, inConnect | inDisconnect},
	idAuthMethod:      {formText, inConnect | inAuth},
	idAuthData:        {formBytes, inConnect | inAuth},
	idRequestProblem:  {formBool, inConnect},
	idWillDelay:       {formU32, inWill},
	idRequestResponse: {formBool, inConnect},
	idReasonString:    {formText, inAck | inDisconnect | inAuth},
	idReceiveMaximum:  {formU16, inConnect},
	idTopicAliasMax:   {formU16, inConnect},
	idTopicAlias:      {formU16, inPublish},
	idUser:            {formPair, inConnect | inWill | inPublish | inAck | inSubscribe | inUnsubscribe | inDisconnect | inAuth},
	idMaxPacket:       {formU32, inConnect},
}

// UserProperty is a name and a value that a client chose.
type UserProperty struct{ Name, Value string }

// Properties are the properties of one packet, as far as a server uses them. Zero values mean that a property was not there.
type Properties struct {
	SessionExpiry    uint32 // seconds
	HasSessionExpiry bool
	ReceiveMaximum   uint16
	MaxPacket        uint32 // bytes
	AuthMethod       string
	WillDelay        uint32 // seconds
	Expiry           uint32 // seconds
	HasExpiry        bool
	Text             bool // the payload is UTF-8
	ContentType      string
	ResponseTopic    string
	Correlation      []byte
	User             []UserProperty
	TopicAlias       uint16
	HasTopicAlias    bool
	SubscriptionID   int

	// Forward is what a server hands on with a message as it came: all that describes the payload.
	Forward []byte
}

// properties takes the properties of a packet.
func (c *cursor) properties(where place) (p Properties) {
	list := cursor{b: c.take(c.varint()), err: c.err}
	var seen uint64
	for len(list.b) > 0 && list.err == nil {
		start := list.b
		id := list.varint()
		if list.err == nil && (id > lastPropertyID || properties[id].where&where == 0) {
			list.fail(violation("property 0x%02X does not belong here", id))
		}
		if list.err != nil {
			break
		}
		if seen&(1<<id) != 0 && id != idUser {
			list.fail(violation("property 0x%02X comes twice", id))
			break
		}
		seen |= 1 << id
		list.property(id, &p)
		switch id {
		case idPayloadFormat, idContentType, idResponseTopic, idCorrelation, idUser:
			if where&(inPublish|inWill) != 0 && list.err == nil {
				p.Forward = append(p.Forward, start[:len(start)-len(list.b)]...)
			}
		}
	}
	if list.err != nil {
		c.fail(list.err)
	}
	return p
}

// property takes the value of one property.
func (c *cursor) property(id int, p *Properties) {
	var n uint32
	var text string
	var raw []byte
	switch properties[id].form {
	case formByte, formBool:
		if n = uint32(c.u8()); n > 1 && properties[id].form == formBool {
			c.fail(violation("property 0x%02X is neither 0 nor 1", id))
		}
	case formU16:
		n = uint32(c.u16())
	case formU32:
		n = c.u32()
	case formVarint:
		n = uint32(c.varint())
	case formText:
		text = c.text()
	case formBytes:
		raw = c.bytes()
	case formPair:
		pair := UserProperty{c.text(), c.text()}
		if len(p.User) == maxUserProperties {
			c.fail(&Error{PacketTooLarge, "more user properties than are taken here"})
		}
		p.User = append(p.User, pair)
	}
	if c.err != nil {
		return
	}
	switch id {
	case idPayloadFormat:
		p.Text = n == 1
	case idMessageExpiry:
		p.Expiry, p.HasExpiry = n, true
	case idContentType:
		p.ContentType = text
	case idResponseTopic:
		p.ResponseTopic = text
	case idCorrelation:
		p.Correlation = raw
	case idSubscription:
		p.SubscriptionID = int(n)
	case idSessionExpiry:
		p.SessionExpiry, p.HasSessionExpiry = n, true
	case idAuthMethod:
		p.AuthMethod = text
	case idWillDelay:
		p.WillDelay = n
	case idReceiveMaximum:
		p.ReceiveMaximum = uint16(n)
	case idMaxPacket:
		p.MaxPacket = n
	case idTopicAlias:
		p.TopicAlias, p.HasTopicAlias = uint16(n), true
	}
	if n == 0 && (id == idReceiveMaximum || id == idMaxPacket || id == idSubscription) {
		c.fail(violation("property 0x%02X is 0", id))
	}
}

func appendString(b []byte, s string) []byte {
	s = s[:min(len(s), maxString)]
	return append(binary.BigEndian.AppendUint16(b, uint16(len(s))), s...)
}
