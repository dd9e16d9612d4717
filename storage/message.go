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
func appendMessage(b []byte, src *source, id, stamp string, r *Record) ([]byte, int) {
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
	b = append(append(b, headerStart...), id...)
	b = append(append(b, "\r\n"+HeaderTime+": "...), stamp...)
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

// messageSize is an upper bound of what appendMessage adds.
func messageSize(src *source, r *Record) int {
	n := 1 + len(src.stream.name()) + 1 + len(r.Mark) + 2 + len(src.subject) + 1 + len(r.Tail) + 4 + len(headerStart) + len(HeaderTime) + 256 + len(r.Data)
	for k, v := range r.Header {
		n += len(k) + len(v) + len(": \r\n")
	}
	return n
}

var errNoMessage = errors.New("not a record of this program")

// parseMessage reads what appendMessage writes. The parts are those of b.
func parseMessage(b []byte) (m message, err error) {
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
	m.stream = string(take(number(1)))
	m.mark = take(number(1))
	m.subject = string(take(number(2)))
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

// msg makes what is published: it is stored behind the position given or not at all.
func (m *message) msg(behind Position) *nats.Msg {
	out := &nats.Msg{Subject: m.subject, Data: m.data, Header: make(nats.Header, 4)}
	lines := string(m.header[len("NATS/1.0\r\n"):])
	for lines != "" {
		var line string
		line, lines, _ = strings.Cut(lines, "\r\n")
		if k, v, ok := strings.Cut(line, ": "); ok {
			out.Header[k] = []string{v}
		}
	}
	order(out, behind)
	return out
}

// order makes the server refuse a message unless it comes to lie right behind a position.
func order(m *nats.Msg, behind Position) {
	m.Header[jetstream.ExpectedLastSeqHeader] = []string{strconv.FormatUint(uint64(behind), 10)}
}
