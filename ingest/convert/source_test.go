package convert

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-edge/holdfast/ingest"
	"github.com/holdfast-edge/holdfast/ingest/decode"
	"github.com/holdfast-edge/holdfast/storage"
)

var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// script is a source that delivers its batch until the store takes it.
type script struct {
	batch []ingest.Reading
	tally ingest.Tally
}

func (s *script) Name() string          { return "script" }
func (s *script) State() ingest.State   { return ingest.State{Kind: ingest.Silent, Cause: "asleep"} }
func (s *script) Counts() ingest.Counts { return s.tally.Counts() }

func (s *script) Run(ctx context.Context, deliver ingest.Deliver) error {
	for {
		if err := deliver(ctx, s.batch...); err == nil {
			s.tally.Deliver(len(s.batch))
			return nil
		}
	}
}

// open returns a source that decodes JSON.
func open(t *testing.T, inner ingest.Source, change func(*Options)) *Source {
	t.Helper()
	opt := Options{Decode: decode.Config{Format: decode.FormatJSON}, Keep: KeepBoth, MaxSize: 100, Log: slog.New(slog.DiscardHandler)}
	if change != nil {
		change(&opt)
	}
	s, err := New(inner, opt)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// stored runs a source and returns what it delivers, as text: tail, header, data, and N where a note is.
func stored(t *testing.T, s *Source) []string {
	t.Helper()
	var out []string
	err := s.Run(t.Context(), func(_ context.Context, batch ...ingest.Reading) error {
		for _, r := range batch {
			text := fmt.Sprintf("%s %v %s", r.Tail, r.Header, r.Data)
			if r.Note != nil {
				text += " N"
			}
			if !r.Time.Equal(noon) {
				text += " at " + r.Time.String()
			}
			out = append(out, text)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestKeep(t *testing.T) {
	note := func(storage.ID) ([]byte, error) { return nil, nil }
	read := func(data string) ingest.Reading {
		return ingest.Reading{Time: noon, Tail: "a.b", Data: []byte(data), Header: map[string]string{"H": "1"}, Note: note}
	}
	const none = "decode json: empty: 0 bytes of nothing"
	both := func(*Options) {}
	keep := func(k string) func(*Options) { return func(o *Options) { o.Keep = k } }
	for _, tc := range []struct {
		name   string
		change func(*Options)
		in     []string
		want   []string
	}{
		{"both", both, []string{`{"a": 1.50}`}, []string{`a.b map[H:1] {"a": 1.50}`, `a.b.decoded map[H:1 Holdfast-Decoded:json] {"a":1.50} N`}},
		{"decoded", keep(KeepDecoded), []string{`{"a": 1.50}`}, []string{`a.b map[H:1 Holdfast-Decoded:json] {"a":1.50} N`}},
		{"raw", keep(KeepRaw), []string{`{"a": 1.50}`}, []string{`a.b map[H:1] {"a": 1.50} N`}},
		{"both, not decodable", both, []string{``, `1`}, []string{`a.b map[H:1 Holdfast-Reject:` + none + `]  N`, `a.b map[H:1] 1`, `a.b.decoded map[H:1 Holdfast-Decoded:json] 1 N`}},
		{"decoded, not decodable", keep(KeepDecoded), []string{``}, []string{`a.b map[H:1 Holdfast-Reject:` + none + `]  N`}},
		{"raw, not decodable", keep(KeepRaw), []string{``}, []string{`a.b map[H:1 Holdfast-Reject:` + none + `]  N`}},
		{"the note is on the last part", func(o *Options) { o.Transform.Split = "value" }, []string{`[1,2]`},
			[]string{`a.b map[H:1] [1,2]`, `a.b.decoded map[H:1 Holdfast-Decoded:json] 1`, `a.b.decoded map[H:1 Holdfast-Decoded:json] 2 N`}},
		{"split into nothing", func(o *Options) { o.Transform.Split = "value" }, []string{`[]`}, []string{`a.b map[H:1] [] N`}},
		{"tail of the transform", func(o *Options) { o.Transform.Tail = `"x"` }, []string{`1`}, []string{`a.b map[H:1] 1`, `x map[H:1 Holdfast-Decoded:json] 1 N`}},
		{"dropped", func(o *Options) { o.Transform.Drop = "value == 1" }, []string{`1`, `2`}, []string{`a.b map[H:1] 2`, `a.b.decoded map[H:1 Holdfast-Decoded:json] 2 N`}},
		{"all dropped", func(o *Options) { o.Transform.Drop = "true" }, []string{`1`, `2`}, nil},
		{"transform fails", func(o *Options) { o.Transform.Payload = "value + 1" }, []string{`"x"`}, []string{`a.b map[H:1 Holdfast-Reject:decode transform: expression failed: `}},
		{"decoded form too large", func(o *Options) { o.Transform.Payload = `repeat("x", 200)` }, []string{`1`}, []string{
			`a.b map[H:1 Holdfast-Reject:decode json: decoded form too large: 202 bytes, the stream takes 100] 1 N`}},
		{"device time", func(o *Options) { o.Decode.Time = decode.Time{Field: "t"}; o.Keep = KeepDecoded }, []string{`{"t":"2026-01-01T01:00:00+01:00"}`},
			[]string{`a.b map[H:1 Holdfast-Decoded:json Holdfast-Device-Time:2026-01-01T00:00:00Z] {"t":"2026-01-01T01:00:00+01:00"} N`}},
		{"device time missing", func(o *Options) { o.Decode.Time = decode.Time{Field: "t"}; o.Keep = KeepDecoded }, []string{`{}`},
			[]string{`a.b map[H:1 Holdfast-Decoded:json Holdfast-Device-Time-Note:no device time] {} N`}},
		{"time of receipt in expressions", func(o *Options) { o.Transform.Payload = "time"; o.Keep = KeepDecoded }, []string{`1`},
			[]string{`a.b map[H:1 Holdfast-Decoded:json] "2026-11-30T12:00:00Z" N`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inner := &script{}
			for _, in := range tc.in {
				inner.batch = append(inner.batch, read(in))
			}
			got := stored(t, open(t, inner, tc.change))
			if len(got) != len(tc.want) {
				t.Fatalf("stored %q\nwant %q", got, tc.want)
			}
			for i := range got {
				if got[i] != tc.want[i] && (!strings.HasSuffix(tc.want[i], ": ") || !strings.HasPrefix(got[i], tc.want[i])) {
					t.Errorf("record %d is\n %s\nwant\n %s", i, got[i], tc.want[i])
				}
			}
			if !reflect.DeepEqual(inner.batch[0].Header, map[string]string{"H": "1"}) {
				t.Errorf("the source's own header became %v", inner.batch[0].Header)
			}
		})
	}
}

// TestTailOfLineSources gives decoded records of sources without a tail one of their own.
func TestTailOfLineSources(t *testing.T) {
	got := stored(t, open(t, &script{batch: []ingest.Reading{{Time: noon, Data: []byte("1")}}}, nil))
	if want := []string{" map[] 1", "decoded map[Holdfast-Decoded:json] 1"}; !reflect.DeepEqual(got, want) {
		t.Errorf("stored %q, want %q", got, want)
	}
}

// TestHeaderTextIsSafe makes sure that no message can make a record that the store refuses: that would lose it.
func TestHeaderTextIsSafe(t *testing.T) {
	for _, in := range []string{"\r\n x: y\r\n", strings.Repeat("long ", 100), "ü\x00\xff", ""} {
		got := ingest.HeaderText(in)
		if len(got) > 200 || strings.TrimSpace(got) != got || strings.ContainsFunc(got, func(r rune) bool { return r < ' ' || r > '~' }) {
			t.Errorf("ingest.HeaderText(%q) = %q", in, got)
		}
	}
}

// TestFailedDeliver lets the store fail first: the same batch makes the same records again, and drops count once.
func TestFailedDeliver(t *testing.T) {
	inner := &script{batch: []ingest.Reading{{Time: noon, Data: []byte("1")}, {Time: noon, Data: []byte(`"x"`)}, {Time: noon, Data: []byte("{")}}}
	s := open(t, inner, func(o *Options) { o.Transform.Drop = "value == 1" })
	var batches [][]ingest.Reading
	err := s.Run(t.Context(), func(_ context.Context, batch ...ingest.Reading) error {
		batches = append(batches, batch)
		if len(batches) < 3 {
			return errors.New("store does not answer")
		}
		return nil
	})
	if err != nil || len(batches) != 3 || len(batches[0]) != 3 || !reflect.DeepEqual(batches[0], batches[2]) {
		t.Fatalf("%v, batches %v", err, batches)
	}
	c := s.Counts()
	if c.Received != 3 || c.Rejected[ReasonDropped] != 1 || len(c.Rejected) != 1 || c.RejectedBytes[ReasonDropped] != 1 {
		t.Errorf("counts %+v, want 3 received and 1 dropped", c)
	}
	if got := s.State(); got != inner.State() || s.Name() != "script" {
		t.Errorf("state %+v of %s, want that of the inner source", got, s.Name())
	}
	if n := s.failed.Load(); n != 1 {
		t.Errorf("%d messages not decodable, want 1", n)
	}
}

func TestNewFaults(t *testing.T) {
	for name, opt := range map[string]Options{
		"decode":    {Keep: KeepRaw},
		"transform": {Keep: KeepRaw, Decode: decode.Config{Format: decode.FormatJSON}, Transform: decode.Transform{Drop: "("}},
		"keep":      {Keep: "some", Decode: decode.Config{Format: decode.FormatJSON}},
	} {
		if s, err := New(&script{}, opt); err == nil || s != nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: New() = %v, %v", name, s, err)
		}
	}
}

// TestImplausibleDeviceTime decodes messages whose device has a wrong clock: the time is given as it is, and marked.
func TestImplausibleDeviceTime(t *testing.T) {
	for _, tc := range []struct {
		at      string
		trusted bool
		want    string
	}{
		{"2026-11-30T11:00:00Z", true, ""},
		{"2026-12-01T13:00:00+00:00", true, ""}, // a wrong zone, or a little more
		{"2026-12-02T13:00:00Z", true, NoteImplausible},
		{"2026-12-02T13:00:00Z", false, ""}, // it may be ours that is wrong
		{"1980-01-06T00:00:00Z", false, NoteImplausible},
		{"2099-01-01T00:00:00Z", true, NoteImplausible},
	} {
		inner := &script{batch: []ingest.Reading{{Time: noon, Data: []byte(`{"at":"` + tc.at + `"}`)}}}
		s := open(t, inner, func(o *Options) {
			o.Decode.Time, o.Keep, o.Trusted = decode.Time{Field: "at"}, KeepDecoded, func() bool { return tc.trusted }
		})
		err := s.Run(t.Context(), func(_ context.Context, batch ...ingest.Reading) error {
			if got := batch[0].Header[HeaderNote]; got != tc.want || batch[0].Header[HeaderTime] == "" {
				t.Errorf("%s, trusted %t: header %v, want the note %q", tc.at, tc.trusted, batch[0].Header, tc.want)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}
