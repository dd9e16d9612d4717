package packet

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"
)

func str(s string) []byte { return appendString(nil, s) }

func join(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

func TestReadHeader(t *testing.T) {
	for _, tt := range []struct {
		name string
		raw  []byte
		want Header
		bad  bool
	}{
		{"ping", []byte{0xC0, 0}, Header{PINGREQ, 0, 0}, false},
		{"message", []byte{0x3B, 0x80, 0x01}, Header{PUBLISH, 0xB, 128}, false},
		{"longest", []byte{0x30, 0xff, 0xff, 0xff, 0x7f}, Header{PUBLISH, 0, 268435455}, false},
		{"five bytes", []byte{0x30, 0xff, 0xff, 0xff, 0xff, 0}, Header{}, true},
		{"QoS 3", []byte{0x36, 0}, Header{}, true},
		{"SUBSCRIBE without flags", []byte{0x80, 0}, Header{}, true},
		{"PUBACK with flags", []byte{0x42, 0}, Header{}, true},
		{"type 0", []byte{0, 0}, Header{}, true},
		{"cut off", []byte{0x30, 0x80}, Header{}, true},
	} {
		h, err := ReadHeader(bytes.NewReader(tt.raw))
		if (err != nil) != tt.bad || !tt.bad && h != tt.want {
			t.Errorf("%s: ReadHeader = %+v, %v", tt.name, h, err)
		}
	}
}

func TestConnect(t *testing.T) {
	props := join([]byte{0x11}, []byte{0, 0, 0, 9}, []byte{0x21, 0, 7}, []byte{0x26}, str("k"), str("v"), []byte{0x26}, str("k"), str("w"))
	will := join([]byte{0x18, 0, 0, 0, 5, 0x03}, str("text"))
	body := join(str("MQTT"), []byte{5, 0xC6 | 0x28, 0, 30, byte(len(props))}, props, str("id"), []byte{byte(len(will))}, will, str("w/t"), str("gone"), str("u"), str("p"))
	c, err := DecodeConnect(body)
	if err != nil {
		t.Fatal(err)
	}
	w := c.Will
	if c.Version != V5 || !c.Clean || c.KeepAlive != 30 || c.ClientID != "id" || c.User != "u" || string(c.Password) != "p" || c.Properties.SessionExpiry != 9 ||
		c.Properties.ReceiveMaximum != 7 || len(c.Properties.User) != 2 || w == nil || w.QoS != 1 || !w.Retain || w.Topic != "w/t" || string(w.Payload) != "gone" ||
		w.Properties.WillDelay != 5 || !bytes.Equal(w.Properties.Forward, will[5:]) {
		t.Errorf("DecodeConnect = %+v, will %+v", c, w)
	}
	for i := range body {
		if _, err := DecodeConnect(body[:i]); err == nil {
			t.Errorf("a CONNECT of %d of %d bytes is taken", i, len(body))
		}
	}
	for _, tt := range []struct {
		name   string
		body   []byte
		reason Reason
	}{
		{"MQTT 3.1", join(str("MQIsdp"), []byte{3, 2, 0, 0}, str("x")), UnsupportedVersion},
		{"MQTT 6", join(str("MQTT"), []byte{6, 2, 0, 0}, str("x")), UnsupportedVersion},
		{"another protocol", join(str("AMQP"), []byte{4, 2, 0, 0}, str("x")), ProtocolError},
		{"property twice", join(str("MQTT"), []byte{5, 2, 0, 0, 6, 0x21, 0, 1, 0x21, 0, 1}, str("x")), ProtocolError},
		{"property of another packet", join(str("MQTT"), []byte{5, 2, 0, 0, 3, 0x23, 0, 1}, str("x")), ProtocolError},
		{"window of 0", join(str("MQTT"), []byte{5, 2, 0, 0, 3, 0x21, 0, 0}, str("x")), ProtocolError},
		{"properties beyond the end", join(str("MQTT"), []byte{5, 2, 0, 0, 99, 0x21, 0, 1}, str("x")), MalformedPacket},
		{"id that is no text", join(str("MQTT"), []byte{4, 2, 0, 0}, str("\xff")), MalformedPacket},
		{"password without user", join(str("MQTT"), []byte{4, 0x42, 0, 0}, str("x"), str("p")), MalformedPacket},
		{"many user properties", func() []byte {
			p := bytes.Repeat(join([]byte{0x26}, str(""), str("")), maxUserProperties+1)
			return join(str("MQTT"), []byte{5, 2, 0, 0, byte(len(p)) | 0x80, byte(len(p) >> 7)}, p, str("x"))
		}(), PacketTooLarge},
	} {
		var bad *Error
		if _, err := DecodeConnect(tt.body); !errors.As(err, &bad) || bad.Reason != tt.reason {
			t.Errorf("%s: %v, want reason %#x", tt.name, err, byte(tt.reason))
		}
	}
}

func TestPublishThereAndBack(t *testing.T) {
	for _, version := range []byte{V311, V5} {
		for _, p := range []Publish{
			{Topic: "a", Payload: []byte{}},
			{Topic: "a/b", Payload: []byte("x"), QoS: 1, ID: 7, Dup: true, Retain: true},
			{Topic: strings.Repeat("t", 65535), Payload: make([]byte, 100_000), QoS: 2, ID: 65535},
		} {
			if version == V5 {
				p.Properties = Properties{Forward: join([]byte{1, 1, 8}, str("r/t"), []byte{0x26}, str("k"), str("v")), Text: true, ResponseTopic: "r/t",
					User: []UserProperty{{"k", "v"}}, HasExpiry: true, Expiry: 60}
			}
			raw := p.Append(nil, version)
			r := bytes.NewReader(raw)
			h, err := ReadHeader(r)
			if err != nil || h.Length != r.Len() {
				t.Fatalf("ReadHeader = %+v, %v with %d bytes left", h, err, r.Len())
			}
			got, err := DecodePublish(h, version, raw[len(raw)-h.Length:])
			if err != nil || !reflect.DeepEqual(got, p) {
				t.Errorf("a message came back as %+v, %v, want %+v", got, err, p)
			}
		}
	}
}

func TestAnswers(t *testing.T) {
	for _, tt := range []struct {
		name string
		got  []byte
		want []byte
	}{
		{"CONNACK", Connack{Present: true, Receive: 5}.Append(nil, V311), []byte{0x20, 2, 1, 0}},
		{"CONNACK, MQTT 5", Connack{Receive: 5, MaxPacket: 256}.Append(nil, V5), []byte{0x20, 15, 0, 0, 12, 0x21, 0, 5, 0x27, 0, 0, 1, 0, 0x29, 0, 0x2A, 0}},
		{"refused", Connack{Present: true, Reason: BadUserOrPassword, Text: "no"}.Append(nil, V311), []byte{0x20, 2, 0, 4}},
		{"refused, MQTT 5", Connack{Reason: BadUserOrPassword, Text: "no"}.Append(nil, V5), []byte{0x20, 8, 0, 0x86, 5, 0x1F, 0, 2, 'n', 'o'}},
		{"PUBACK", AppendAck(nil, PUBACK, V311, 258, NotAuthorized), []byte{0x40, 2, 1, 2}},
		{"PUBACK, MQTT 5", AppendAck(nil, PUBACK, V5, 258, NotAuthorized), []byte{0x40, 3, 1, 2, 0x87}},
		{"PUBREL", AppendAck(nil, PUBREL, V5, 1, Success), []byte{0x62, 2, 0, 1}},
		{"SUBACK", AppendSuback(nil, V311, 1, []Reason{1, NotAuthorized}), []byte{0x90, 4, 0, 1, 1, 0x80}},
		{"SUBACK, MQTT 5", AppendSuback(nil, V5, 1, []Reason{1, NotAuthorized}), []byte{0x90, 5, 0, 1, 0, 1, 0x87}},
		{"UNSUBACK", AppendUnsuback(nil, V311, 1, []Reason{0}), []byte{0xB0, 2, 0, 1}},
		{"UNSUBACK, MQTT 5", AppendUnsuback(nil, V5, 1, []Reason{0x11}), []byte{0xB0, 4, 0, 1, 0, 0x11}},
		{"DISCONNECT", AppendDisconnect(nil, V311, ServerBusy), nil},
		{"DISCONNECT, MQTT 5", AppendDisconnect(nil, V5, ServerBusy), []byte{0xE0, 2, 0x89, 0}},
	} {
		if !bytes.Equal(tt.got, tt.want) {
			t.Errorf("%s: % x, want % x", tt.name, tt.got, tt.want)
		}
	}
}

// FuzzDecode decodes any bytes as any packet: nothing panics, and nothing is longer than what came.
func FuzzDecode(f *testing.F) {
	f.Add(byte(0x10), byte(5), join(str("MQTT"), []byte{5, 2, 0, 0, 3, 0x21, 0, 1}, str("x")))
	f.Add(byte(0x32), byte(4), join(str("a"), []byte{0, 1}, []byte("x")))
	f.Add(byte(0x32), byte(5), join(str("a"), []byte{0, 1, 2, 1, 1}, []byte("x")))
	f.Add(byte(0x82), byte(5), join([]byte{0, 1, 0}, str("a/#"), []byte{0x2d}))
	f.Add(byte(0xE0), byte(5), []byte{4, 5, 0x11, 0, 0, 0, 1})
	f.Fuzz(func(t *testing.T, first, version byte, body []byte) {
		h := Header{Type: Type(first >> 4), Flags: first & 0xf, Length: len(body)}
		if c, err := DecodeConnect(body); err == nil && (!ValidText(c.ClientID) || c.Version != V311 && c.Version != V5) {
			t.Errorf("DecodeConnect = %+v", c)
		}
		if h.Type == PUBLISH && h.QoS() < 3 {
			p, err := DecodePublish(h, version, body)
			if err == nil && (p.QoS > 0) != (p.ID > 0) {
				t.Errorf("DecodePublish = %+v", p)
			}
			if err == nil && len(p.Topic)+len(p.Payload)+len(p.Properties.Forward) > len(body) {
				t.Errorf("DecodePublish of %d bytes = %+v", len(body), p)
			}
			if err == nil && len(p.Topic) < 65536 {
				p.Append(nil, version)
			}
		}
		if s, err := DecodeSubscribe(version, body); err == nil && (len(s.Filters) == 0 || len(s.Filters) > len(body)) {
			t.Errorf("DecodeSubscribe = %+v", s)
		}
		_, _ = DecodeUnsubscribe(version, body)
		_, _ = DecodeAck(version, body)
		_, _ = DecodeDisconnect(version, body)
		_, _ = ReadHeader(bytes.NewReader(body))
	})
}
