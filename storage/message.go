package storage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// message is a record as the journal keeps it: all that a replay needs to store it without a configuration.
//
// Its form in the journal, numbers little-endian: length of the stream's name (1 byte), the name, length of the mark (1), the mark, length of the
// subject (2), the subject, length of the headers (4), the headers as they are on the wire without the empty line behind them, the ID first, and the data.
type message struct {
	stream  string
	mark    []byte // see Record
	subject string
	header  []byte
	data    []byte
}

// headerStart begins the headers of every record of ours; the ID follows.
const headerStart = "NATS/1.0\r\n" + HeaderID + ": "

// orderSize is what the header takes that the publisher adds to each message, see order.
const orderSize = len(jetstream.ExpectedLastSeqHeader) + len(": \r\n") + 16

// appendMessage adds the form of a record in the journal to b, and returns how much its headers take.
func appendMessage(b []byte, src *source, id ID, stamp Stamp, r *Record) ([]byte, int) {
	tail := r.Tail
	b = append(b, byte(len(src.stream.name())))
	b = append(b, src.stream.name()...)
	b = append(b, byte(len(r.Mark)))
	b = append(b, r.Mark...)
	n := len(src.subject)
	if tail != "" {
		n += 1 + len(tail)
	}
	b = binary.LittleEndian.AppendUint16(b, uint16(n))
	b = append(b, src.subject...)
	if tail != "" {
		b = append(append(b, '.'), tail...)
	}
	at := len(b)
	b = append(b, 0, 0, 0, 0)
	b = id.append(append(b, headerStart...))
	b = stamp.append(append(b, "\r\n"+HeaderTime+": "...))
	b = append(b, '\r', '\n')
	for k, v := range r.Header {
		b = append(append(b, k...), ": "...)
		b = append(append(b, v...), '\r', '\n')
	}
	encoded := len(b) - at - 4
	binary.LittleEndian.PutUint32(b[at:], uint32(encoded))
	return append(b, r.Data...), encoded
}

// encode returns the form of a message in the journal.
func (m message) encode() []byte {
	b := make([]byte, 0, 1+len(m.stream)+1+len(m.mark)+2+len(m.subject)+4+len(m.header)+len(m.data))
	b = append(append(b, byte(len(m.stream))), m.stream...)
	b = append(append(b, byte(len(m.mark))), m.mark...)
	b = append(binary.LittleEndian.AppendUint16(b, uint16(len(m.subject))), m.subject...)
	b = append(binary.LittleEndian.AppendUint32(b, uint32(len(m.header))), m.header...)
	return append(b, m.data...)
}

// messageSize is an upper bound of what appendMessage adds, and not far above: records wait in memory in as much.
func messageSize(src *source, r *Record) int {
	const lengths, numbers, stamp, signs = 1 + 1 + 2 + 4, 10 + 20 + 20, 30 + 21 + 9, 16
	n := lengths + len(src.stream.name()) + len(r.Mark) + 2*len(src.subject) + 1 + len(r.Tail) + // leaf and source are in the ID, too
		len(headerStart) + numbers + len(HeaderTime) + stamp + signs + len(r.Data)
	for k, v := range r.Header {
		n += len(k) + len(v) + len(": \r\n")
	}
	return n
}

var errNoMessage = errors.New("not a record of this program")

// parseMessage reads what appendMessage writes. Header, mark and data are those of b.
func parseMessage(b []byte) (message, error) {
	p, err := splitMessage(b)
	return message{stream: string(p.stream), mark: p.mark, subject: string(p.subject), header: p.header, data: p.data}, err
}

// parts are those of a message as the journal keeps it.
type parts struct{ stream, mark, subject, header, data []byte }

// splitMessage finds the parts of what appendMessage writes.
func splitMessage(b []byte) (m parts, err error) {
	take := func(n int) []byte {
		if err != nil || n > len(b) || n < 0 {
			err = errNoMessage
			return nil
		}
		part := b[:n]
		b = b[n:]
		return part
	}
	number := func(n int) int {
		var wide [8]byte
		copy(wide[:], take(n))
		return int(binary.LittleEndian.Uint64(wide[:]))
	}
	m.stream = take(number(1))
	m.mark = take(number(1))
	m.subject = take(number(2))
	m.header = take(number(4))
	m.data = b
	if err == nil && !bytes.HasPrefix(m.header, []byte(headerStart)) {
		err = errNoMessage
	}
	return m, err
}

// header1 returns the value that follows the first occurrence of a text in the headers, up to the end of its line.
func (m *message) header1(text string) string {
	_, rest, _ := bytes.Cut(m.header, []byte(text))
	value, _, _ := bytes.Cut(rest, []byte("\r"))
	return string(value)
}

// carrier is what records are published in, one after the other: the client has copied it when it returns.
type carrier struct {
	msg    nats.Msg
	values []string // of the headers
}

// load makes the carrier's message that of a record, which is stored behind the position given or not at all. It is good until the next call.
func (c *carrier) load(payload []byte, behind Position) (*nats.Msg, error) {
	p, err := splitMessage(payload)
	if err != nil {
		return nil, err
	}
	if c.msg.Header == nil {
		c.msg.Header = nats.Header{}
	}
	if string(p.subject) != c.msg.Subject {
		c.msg.Subject = string(p.subject)
	}
	c.msg.Data, c.msg.Reply, c.values = p.data, "", c.values[:0]
	clear(c.msg.Header)
	lines := string(p.header[len("NATS/1.0\r\n"):])
	for lines != "" {
		var line string
		line, lines, _ = strings.Cut(lines, "\r\n")
		if k, v, ok := strings.Cut(line, ": "); ok {
			c.set(k, v)
		}
	}
	c.set(jetstream.ExpectedLastSeqHeader, strconv.FormatUint(uint64(behind), 10))
	return &c.msg, nil
}

// set sets a header.
func (c *carrier) set(key, value string) {
	c.values = append(c.values, value)
	n := len(c.values)
	c.msg.Header[key] = c.values[n-1 : n : n]
}

// order makes the server refuse a message unless it comes to lie right behind a position.
func order(m *nats.Msg, behind Position) {
	m.Header[jetstream.ExpectedLastSeqHeader] = []string{strconv.FormatUint(uint64(behind), 10)}
}
