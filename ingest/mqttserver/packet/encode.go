package packet

import "encoding/binary"

// Connack is the answer to a CONNECT. What follows Reason is said in MQTT 5 only, and zero values are not said.
type Connack struct {
	Present       bool // the session was there
	Reason        Reason
	SessionExpiry uint32 // seconds, said when HasExpiry
	HasExpiry     bool
	Receive       uint16 // how many messages with QoS 1 and 2 may be under way
	MaxPacket     uint32 // bytes
	ClientID      string // that the server has given the client
	KeepAlive     uint16 // seconds, in place of what the client asked for
	Text          string // why not
}

// Append writes a CONNACK behind b.
func (a Connack) Append(b []byte, version byte) []byte {
	flags := byte(0)
	if a.Present && a.Reason == Success {
		flags = 1
	}
	if version != V5 {
		return append(b, byte(CONNACK)<<4, 2, flags, codeV311(a.Reason))
	}
	var p []byte
	if a.HasExpiry {
		p = binary.BigEndian.AppendUint32(append(p, idSessionExpiry), a.SessionExpiry)
	}
	if a.Receive > 0 {
		p = binary.BigEndian.AppendUint16(append(p, idReceiveMaximum), a.Receive)
	}
	if a.MaxPacket > 0 {
		p = binary.BigEndian.AppendUint32(append(p, idMaxPacket), a.MaxPacket)
	}
	if a.ClientID != "" {
		p = appendString(append(p, idAssignedClient), a.ClientID)
	}
	if a.KeepAlive > 0 {
		p = binary.BigEndian.AppendUint16(append(p, idServerKeepAlive), a.KeepAlive)
	}
	if a.Text != "" {
		p = appendString(append(p, idReasonString), a.Text)
	}
	if a.Reason == Success {
		p = append(p, idSubIDAvailable, 0, idSharedAvailable, 0)
	}
	return appendWhole(b, byte(CONNACK)<<4, []byte{flags, byte(a.Reason)}, p)
}

// codeV311 returns the return code of MQTT 3.1.1 (section 3.2.2.3) that says most nearly the same.
func codeV311(r Reason) byte {
	switch r {
	case Success:
		return 0
	case UnsupportedVersion:
		return 1
	case ClientIDNotValid:
		return 2
	case BadUserOrPassword:
		return 4
	case NotAuthorized, BadAuthMethod:
		return 5
	}
	return 3
}

// AppendAck writes a PUBACK, PUBREC, PUBREL or PUBCOMP behind b. A failure can only be said in MQTT 5.
func AppendAck(b []byte, t Type, version byte, id uint16, r Reason) []byte {
	first := byte(t) << 4
	if t == PUBREL {
		first |= requiredFlags
	}
	if version == V5 && r != Success {
		return append(b, first, 3, byte(id>>8), byte(id), byte(r))
	}
	return append(b, first, 2, byte(id>>8), byte(id))
}

// AppendSuback writes a SUBACK behind b: for each filter the granted QoS or why not.
func AppendSuback(b []byte, version byte, id uint16, codes []Reason) []byte {
	return appendCodes(b, SUBACK, version, id, codes)
}

// AppendUnsuback writes an UNSUBACK behind b.
func AppendUnsuback(b []byte, version byte, id uint16, codes []Reason) []byte {
	if version != V5 {
		codes = nil
	}
	return appendCodes(b, UNSUBACK, version, id, codes)
}

func appendCodes(b []byte, t Type, version byte, id uint16, codes []Reason) []byte {
	body := []byte{byte(id >> 8), byte(id)}
	if version == V5 {
		body = append(body, 0) // no properties
	}
	for _, c := range codes {
		if version != V5 && c >= refusedV311 {
			c = refusedV311
		}
		body = append(body, byte(c))
	}
	b = append(b, byte(t)<<4)
	b = binary.AppendUvarint(b, uint64(len(body))) // the same form as MQTT's remaining length
	return append(b, body...)
}

// AppendPingresp writes a PINGRESP behind b.
func AppendPingresp(b []byte) []byte { return append(b, byte(PINGRESP)<<4, 0) }

// AppendDisconnect writes a DISCONNECT behind b. A server sends none in MQTT 3.1.1.
func AppendDisconnect(b []byte, version byte, r Reason) []byte {
	if version != V5 {
		return b
	}
	return append(b, byte(DISCONNECT)<<4, 2, byte(r), 0)
}

// Append writes a PUBLISH behind b. Of the properties, Forward and Expiry are sent, in MQTT 5 only.
func (p Publish) Append(b []byte, version byte) []byte {
	first := byte(PUBLISH)<<4 | p.QoS<<1
	if p.Dup {
		first |= 8
	}
	if p.Retain {
		first |= 1
	}
	head := appendString(make([]byte, 0, len(p.Topic)+8), p.Topic)
	if p.QoS > 0 {
		head = binary.BigEndian.AppendUint16(head, p.ID)
	}
	if version == V5 {
		props := p.Properties.Forward
		if p.Properties.HasExpiry {
			props = binary.BigEndian.AppendUint32(append(props[:len(props):len(props)], idMessageExpiry), p.Properties.Expiry)
		}
		head = append(binary.AppendUvarint(head, uint64(len(props))), props...)
	}
	b = append(b, first)
	b = binary.AppendUvarint(b, uint64(len(head)+len(p.Payload)))
	return append(append(b, head...), p.Payload...)
}

// appendWhole writes a packet of a head, properties, and their length.
func appendWhole(b []byte, first byte, head, props []byte) []byte {
	list := append(binary.AppendUvarint(nil, uint64(len(props))), props...)
	b = append(b, first)
	b = binary.AppendUvarint(b, uint64(len(head)+len(list)))
	return append(append(b, head...), list...)
}
