package parcel

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"time"
)

var header = Header{Kind: Export, Leaf: "pump-07", Store: "0123456789", Epoch: 3, Part: 2, Streams: []Stream{{Name: "S", Mode: "source", HubStream: "FIELD", After: 9}}}

// sample writes three records.
func sample(t testing.TB) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := NewWriter(&b, header)
	if err != nil {
		t.Fatal(err)
	}
	for i, data := range []string{"one", "", strings.Repeat("x", 100_000)} {
		if err := w.Write(Record{Stream: "S", Seq: uint64(10 + 2*i), Time: time.Unix(5, 6), Subject: "data.pump-07.S.gps", Header: []byte("NATS/1.0\r\n\r\n"), Data: []byte(data)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Write(Record{Stream: "S", Seq: 14}); err == nil {
		t.Error("a sequence that does not grow was taken")
	}
	if end, err := w.Close(true); err != nil || end.Records != 3 || end.Last["S"] != 14 {
		t.Errorf("Close = %+v, %v", end, err)
	}
	return b.Bytes()
}

func readAll(b []byte) (h Header, all []Record, end End, err error) {
	r, err := NewReader(bytes.NewReader(b))
	if err != nil {
		return h, nil, end, err
	}
	for {
		rec, err := r.Next()
		if err == io.EOF {
			return r.Header, all, r.End, nil
		}
		if err != nil {
			return r.Header, all, end, err
		}
		rec.Data, rec.Header = bytes.Clone(rec.Data), bytes.Clone(rec.Header)
		all = append(all, rec)
	}
}

func TestReadWhatWasWritten(t *testing.T) {
	h, all, end, err := readAll(sample(t))
	if err != nil || h.Leaf != "pump-07" || h.Part != 2 || h.Streams[0].After != 9 || len(all) != 3 || !end.Full || end.Last["S"] != 14 {
		t.Fatalf("read %+v, %d records, %+v, %v", h, len(all), end, err)
	}
	r := all[0]
	if r.Seq != 10 || r.Stream != "S" || r.Subject != "data.pump-07.S.gps" || string(r.Data) != "one" || !r.Time.Equal(time.Unix(5, 6)) || string(r.Header) != "NATS/1.0\r\n\r\n" {
		t.Errorf("record = %+v", r)
	}
}

func TestDamageIsSeen(t *testing.T) {
	whole := sample(t)
	for at := range whole {
		if at > 1000 && at < len(whole)-300 && at%997 != 0 {
			continue
		}
		bad := bytes.Clone(whole)
		bad[at] ^= 0x5a
		if _, _, _, err := readAll(bad); !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrFormat) {
			t.Fatalf("byte %d flipped: %v", at, err)
		}
		if _, _, _, err := readAll(whole[:at]); !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrFormat) {
			t.Fatalf("cut at %d: %v", at, err)
		}
	}
}

func TestNewerFormatIsRefused(t *testing.T) {
	var b bytes.Buffer
	b.WriteString(magic)
	body, err := json.Marshal(Header{Format: format + 1})
	if err != nil {
		t.Fatal(err)
	}
	w, err := NewWriter(&b, header)
	if err != nil {
		t.Fatal(err)
	}
	b.Reset()
	w.w.Reset(&b)
	_, _ = w.w.WriteString(magic)
	if err := errors.Join(w.chunk('h', body), w.w.Flush()); err != nil {
		t.Fatal(err)
	}
	if _, err := NewReader(&b); !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), "version 2") {
		t.Errorf("NewReader = %v", err)
	}
}

func FuzzRead(f *testing.F) {
	f.Add(sample(f))
	f.Fuzz(func(_ *testing.T, b []byte) {
		_, _, _, _ = readAll(b) // must end, without a panic
		_, _ = parse(b)
	})
}
