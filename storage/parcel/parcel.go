// Package parcel writes records into a file that carries them to another machine, and reads it: exports on their way to the hub, and backups.
//
// A file is the magic line and chunks: one with the header, one for each record, one with the end. A chunk is its kind (1 byte: h, r, e), the length of its
// body (4, little-endian), the body, and a CRC-32C (4) of all three. Header and end are JSON. The body of a record is, with little-endian
// numbers: sequence (8), time in unix nanoseconds (8), length of the stream's name (1) and the name, length of the subject (2) and the subject, length of
// the headers (4) and the headers as on the wire, and the data. A file without its end was not written to its end.
package parcel

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"time"
)

// format is the version that this program writes and the newest that it reads.
const format = 1

// magic begins every file.
const magic = "HOLDFAST PARCEL\n"

// maxChunk is the longest body: above any record with its headers.
const maxChunk = 16 << 20

// Errors of a Reader.
var (
	// ErrDamaged means that a file is not as it was written, or was not written to its end. What was read before is good.
	ErrDamaged = errors.New("file is damaged")
	// ErrFormat means that a file is none of ours, or of a newer version.
	ErrFormat = errors.New("file has another format")
)

// The kinds of files.
const (
	Export = "export" // what waits for the hub
	Backup = "backup" // everything
)

// Header says what is in a file.
type Header struct {
	Format  int       `json:"format"` // set by NewWriter
	Kind    string    `json:"kind"`
	Leaf    string    `json:"leaf"`
	Store   string    `json:"store"`
	Known   []string  `json:"known,omitempty"` // other stores whose records may be among these
	Epoch   uint64    `json:"epoch"`           // of the store when this was written
	Part    int       `json:"part,omitempty"`  // of an export, from 1: they are imported in order
	Made    time.Time `json:"made"`            // by a clock that may be wrong: for people only
	Version string    `json:"version"`
	Streams []Stream  `json:"streams"`
	Apps    []App     `json:"apps,omitempty"` // of a backup
}

// App is a stream of local applications in a backup; buckets and object stores are streams, too.
type App struct {
	Name   string          `json:"name"`
	Config json.RawMessage `json:"config"` // as the API has it
	Last   uint64          `json:"last"`   // its last sequence, whether that is there or was removed

	Consumers []Consumer `json:"consumers,omitempty"` // durable ones
}

// Consumer is a durable consumer of a stream of local applications in a backup.
type Consumer struct {
	Name   string          `json:"name"`
	Config json.RawMessage `json:"config"` // as the API has it
	Floor  uint64          `json:"floor"`  // sequence of the stream up to which everything was acknowledged
}

// AppRecords is what the name of such a stream has in front of it in the records, so that it is none of a captured stream.
const AppRecords = "APP/"

// Stream is a stream whose records are in a file.
type Stream struct {
	Name      string `json:"name"`
	Mode      string `json:"mode"` // of the uplink: source, mirror, none
	HubStream string `json:"hub_stream,omitempty"`
	After     uint64 `json:"after"` // what is there up to this sequence is at the hub, or in an earlier part
}

// Record is one record in a file. A Reader's slices are valid until the next call.
type Record struct {
	Stream  string
	Seq     uint64
	Time    time.Time
	Subject string
	Header  []byte // NATS/1.0 and what follows; empty for none
	Data    []byte
}

// End is the last chunk.
type End struct {
	Records uint64            `json:"records"`
	Last    map[string]uint64 `json:"last"` // newest sequence of every stream that has records in the file
	Full    bool              `json:"full"` // the medium had no room for the rest, which goes into the next part
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Writer writes one file. Not safe for concurrent use.
type Writer struct {
	w       *bufio.Writer
	end     End
	written int64
	body    []byte
}

// NewWriter begins a file.
func NewWriter(w io.Writer, h Header) (*Writer, error) {
	p := &Writer{w: bufio.NewWriterSize(w, 256<<10), end: End{Last: map[string]uint64{}}}
	h.Format = format
	body, err := json.Marshal(h)
	if err != nil {
		return nil, fmt.Errorf("begin file: %w", err)
	}
	if _, err := p.w.WriteString(magic); err != nil {
		return nil, fmt.Errorf("begin file: %w", err)
	}
	p.written = int64(len(magic))
	return p, p.chunk('h', body)
}

func (p *Writer) chunk(kind byte, body []byte) error {
	head := make([]byte, 5, 5+4)
	head[0] = kind
	binary.LittleEndian.PutUint32(head[1:], uint32(len(body)))
	sum := crc32.Update(crc32.Checksum(head, castagnoli), castagnoli, body)
	for _, part := range [][]byte{head, body, binary.LittleEndian.AppendUint32(nil, sum)} {
		if _, err := p.w.Write(part); err != nil {
			return fmt.Errorf("write file: %w", err)
		}
		p.written += int64(len(part))
	}
	return nil
}

// Write adds a record. Sequences of a stream must grow.
func (p *Writer) Write(r Record) error {
	if len(r.Stream) > 255 || len(r.Subject) > 1<<16-1 {
		return fmt.Errorf("write file: record %d of %s: its names are too long", r.Seq, r.Stream)
	}
	if last, ok := p.end.Last[r.Stream]; ok && r.Seq <= last {
		return fmt.Errorf("write file: record %d of %s comes behind %d", r.Seq, r.Stream, last)
	}
	b := p.body[:0]
	b = binary.LittleEndian.AppendUint64(b, r.Seq)
	b = binary.LittleEndian.AppendUint64(b, uint64(r.Time.UnixNano()))
	b = append(append(b, byte(len(r.Stream))), r.Stream...)
	b = append(binary.LittleEndian.AppendUint16(b, uint16(len(r.Subject))), r.Subject...)
	b = append(binary.LittleEndian.AppendUint32(b, uint32(len(r.Header))), r.Header...)
	p.body = append(b, r.Data...)
	if err := p.chunk('r', p.body); err != nil {
		return err
	}
	p.end.Records++
	p.end.Last[r.Stream] = r.Seq
	return nil
}

// Written returns how many bytes the file has so far, without its end.
func (p *Writer) Written() int64 { return p.written }

// Close writes the end; full says that not everything had room. The caller makes the file durable.
func (p *Writer) Close(full bool) (End, error) {
	p.end.Full = full
	body, err := json.Marshal(p.end)
	if err == nil {
		err = p.chunk('e', body)
	}
	if err == nil {
		err = p.w.Flush()
	}
	if err != nil {
		return p.end, fmt.Errorf("end file: %w", err)
	}
	return p.end, nil
}

// Reader reads one file. Not safe for concurrent use.
type Reader struct {
	Header Header
	End    End // set when Next has returned io.EOF

	r    *bufio.Reader
	body []byte
	n    uint64
}

// NewReader reads the header.
func NewReader(r io.Reader) (*Reader, error) {
	p := &Reader{r: bufio.NewReaderSize(r, 256<<10)}
	head := make([]byte, len(magic))
	if _, err := io.ReadFull(p.r, head); err != nil || string(head) != magic {
		return nil, fmt.Errorf("%w: it is no export or backup of holdfast", ErrFormat)
	}
	kind, body, err := p.chunk()
	if err != nil {
		return nil, err
	}
	if kind != 'h' || json.Unmarshal(body, &p.Header) != nil {
		return nil, fmt.Errorf("%w: no header", ErrDamaged)
	}
	if p.Header.Format > format {
		return nil, fmt.Errorf("%w: version %d, this program knows up to %d: use the newer version", ErrFormat, p.Header.Format, format)
	}
	return p, nil
}

func (p *Reader) chunk() (kind byte, body []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(p.r, head[:]); err != nil {
		return 0, nil, p.short(err)
	}
	n := binary.LittleEndian.Uint32(head[1:])
	if n > maxChunk {
		return 0, nil, fmt.Errorf("%w behind record %d: a length of %d", ErrDamaged, p.n, n)
	}
	if uint32(cap(p.body)) < n+4 {
		p.body = make([]byte, n+4)
	}
	p.body = p.body[:n+4]
	if _, err := io.ReadFull(p.r, p.body); err != nil {
		return 0, nil, p.short(err)
	}
	body = p.body[:n]
	sum := crc32.Update(crc32.Checksum(head[:], castagnoli), castagnoli, body)
	if sum != binary.LittleEndian.Uint32(p.body[n:]) {
		return 0, nil, fmt.Errorf("%w behind record %d: a checksum does not fit", ErrDamaged, p.n)
	}
	return head[0], body, nil
}

// short says that a file ends too early, or why it cannot be read.
func (p *Reader) short(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: it ends behind record %d and was not written to its end", ErrDamaged, p.n)
	}
	return fmt.Errorf("read file: %w", err)
}

// Next returns the next record, io.EOF behind the last.
func (p *Reader) Next() (Record, error) {
	kind, body, err := p.chunk()
	if err != nil {
		return Record{}, err
	}
	switch kind {
	case 'e':
		if json.Unmarshal(body, &p.End) != nil || p.End.Records != p.n {
			return Record{}, fmt.Errorf("%w: its end does not fit", ErrDamaged)
		}
		return Record{}, io.EOF
	case 'r':
		r, ok := parse(body)
		if !ok {
			return Record{}, fmt.Errorf("%w: record %d", ErrDamaged, p.n+1)
		}
		p.n++
		return r, nil
	}
	return Record{}, fmt.Errorf("%w behind record %d: a part of kind %q", ErrDamaged, p.n, kind)
}

func parse(b []byte) (r Record, ok bool) {
	le := binary.LittleEndian
	if len(b) < 17 {
		return r, false
	}
	r.Seq, r.Time = le.Uint64(b), time.Unix(0, int64(le.Uint64(b[8:])))
	take := func(n int) []byte {
		if n < 0 || n > len(b) {
			ok = false
			return nil
		}
		part := b[:n]
		b = b[n:]
		return part
	}
	ok = true
	b = b[16:]
	n := int(take(1)[0])
	r.Stream = string(take(n))
	if l := take(2); ok {
		r.Subject = string(take(int(le.Uint16(l))))
	}
	if l := take(4); ok {
		r.Header = take(int(le.Uint32(l)))
	}
	r.Data = b
	return r, ok && r.Stream != "" && r.Seq > 0
}
