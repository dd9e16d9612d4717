package packet

// Publish is a message.
type Publish struct {
	Dup, Retain bool
	QoS         byte
	Topic       string // as it came: it may be no valid text
	ID          uint16 // 0 with QoS 0
	Payload     []byte
	Properties  Properties
}

// Connect is a CONNECT packet.
type Connect struct {
	Version     byte // V311 or V5
	Clean       bool // clean session, or clean start
	KeepAlive   uint16
	ClientID    string
	Will        *Publish // nil: none; WillDelay is in its properties
	User        string
	HasUser     bool
	Password    []byte
	HasPassword bool
	Properties  Properties
}

// DecodeConnect reads the body of a CONNECT. With an *Error, Version says in which form it can be answered; 0: not at all.
func DecodeConnect(body []byte) (Connect, error) {
	c := cursor{b: body}
	var p Connect
	name, version := string(c.bytes()), c.u8()
	switch {
	case c.err != nil:
		return p, c.err
	case name == "MQIsdp" && version == 3:
		return Connect{Version: V311}, &Error{UnsupportedVersion, "the client speaks MQTT 3.1"}
	case name != "MQTT":
		return p, &Error{ProtocolError, "this is not MQTT"}
	case version != V311 && version != V5:
		return Connect{Version: V311}, &Error{UnsupportedVersion, "the client speaks a version of MQTT that is neither 3.1.1 nor 5"}
	}
	p.Version = version
	flags := c.u8()
	p.Clean, p.HasUser, p.HasPassword = flags&2 != 0, flags&0x80 != 0, flags&0x40 != 0
	will, qos := flags&4 != 0, flags>>3&3
	switch {
	case c.err != nil:
	case flags&1 != 0:
		c.fail(malformed("the reserved flag of CONNECT is set"))
	case qos == 3 || !will && flags&0x38 != 0:
		c.fail(malformed("the flags of the will are wrong"))
	case p.HasPassword && !p.HasUser && version == V311:
		c.fail(malformed("a password without a user"))
	}
	p.KeepAlive = c.u16()
	if version == V5 {
		p.Properties = c.properties(inConnect)
	}
	p.ClientID = c.text()
	if will && c.err == nil {
		w := &Publish{QoS: qos, Retain: flags&0x20 != 0}
		if version == V5 {
			w.Properties = c.properties(inWill)
		}
		w.Topic, w.Payload = string(c.bytes()), c.bytes()
		p.Will = w
	}
	if p.HasUser {
		p.User = c.text()
	}
	if p.HasPassword {
		p.Password = c.bytes()
	}
	return p, c.end()
}

// DecodePublish reads the body of a PUBLISH. Payload is a part of body. Whether the topic is one is for the caller to judge.
func DecodePublish(h Header, version byte, body []byte) (Publish, error) {
	c := cursor{b: body}
	p := Publish{Dup: h.Flags&8 != 0, QoS: h.QoS(), Retain: h.Flags&1 != 0, Topic: string(c.bytes())}
	if p.QoS > 0 {
		if p.ID = c.u16(); p.ID == 0 {
			c.fail(violation("message with packet id 0"))
		}
	} else if p.Dup {
		c.fail(violation("repeated message with QoS 0"))
	}
	if version == V5 {
		p.Properties = c.properties(inPublish)
	}
	p.Payload = c.b
	return p, c.err
}

// Ack is a PUBACK, PUBREC, PUBREL or PUBCOMP.
type Ack struct {
	ID     uint16
	Reason Reason
}

// DecodeAck reads the body of one.
func DecodeAck(version byte, body []byte) (Ack, error) {
	c := cursor{b: body}
	a := Ack{ID: c.u16()}
	if version == V5 && len(c.b) > 0 {
		a.Reason = Reason(c.u8())
		if len(c.b) > 0 {
			c.properties(inAck)
		}
	}
	if c.err == nil && a.ID == 0 {
		c.fail(violation("acknowledgement of packet id 0"))
	}
	return a, c.end()
}

// Filter is one entry of a SUBSCRIBE.
type Filter struct {
	Filter         string
	QoS            byte
	NoLocal        bool // not what this client published
	AsPublished    bool // the retain flag stays as it was published
	RetainHandling byte // 0: send retained messages, 1: only when the subscription is new, 2: never
}

// Subscribe is a SUBSCRIBE, or an UNSUBSCRIBE, of which only the filters count.
type Subscribe struct {
	ID             uint16
	Filters        []Filter
	SubscriptionID int
}

// DecodeSubscribe reads the body of a SUBSCRIBE.
func DecodeSubscribe(version byte, body []byte) (Subscribe, error) {
	return decodeFilters(version, body, inSubscribe)
}

// DecodeUnsubscribe reads the body of an UNSUBSCRIBE.
func DecodeUnsubscribe(version byte, body []byte) (Subscribe, error) {
	return decodeFilters(version, body, inUnsubscribe)
}

func decodeFilters(version byte, body []byte, where place) (Subscribe, error) {
	c := cursor{b: body}
	s := Subscribe{ID: c.u16()}
	if c.err == nil && s.ID == 0 {
		c.fail(violation("subscription with packet id 0"))
	}
	if version == V5 {
		s.SubscriptionID = c.properties(where).SubscriptionID
	}
	for len(c.b) > 0 {
		f := Filter{Filter: c.text()}
		if where == inSubscribe {
			o := c.u8()
			f.QoS, f.NoLocal, f.AsPublished, f.RetainHandling = o&3, o&4 != 0, o&8 != 0, o>>4&3
			if f.QoS == 3 || version == V311 && o > 2 || o > 0x3f || f.RetainHandling == 3 {
				c.fail(malformed("subscription with options %#x", o))
			}
		}
		s.Filters = append(s.Filters, f)
	}
	if c.err == nil && len(s.Filters) == 0 {
		c.fail(violation("subscription without a filter"))
	}
	return s, c.end()
}

// Disconnect is a DISCONNECT of a client.
type Disconnect struct {
	Reason     Reason
	Properties Properties
}

// DecodeDisconnect reads the body of one.
func DecodeDisconnect(version byte, body []byte) (Disconnect, error) {
	c := cursor{b: body}
	var d Disconnect
	if version == V5 && len(c.b) > 0 {
		d.Reason = Reason(c.u8())
		if len(c.b) > 0 {
			d.Properties = c.properties(inDisconnect)
		}
	}
	return d, c.end()
}
