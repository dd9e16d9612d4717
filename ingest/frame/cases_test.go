package frame

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"
)

// fieldCase returns the input bytes of a field case of ../testdata/cases.jsonl.
func fieldCase(t *testing.T, id string) []byte {
	t.Helper()
	f, err := os.Open("../testdata/cases.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }() // only read
	for sc := bufio.NewScanner(f); sc.Scan(); {
		var c struct{ ID, Input string }
		if err := json.Unmarshal(sc.Bytes(), &c); err != nil {
			t.Fatal(err)
		}
		if c.ID != id {
			continue
		}
		if digits, ok := strings.CutPrefix(c.Input, "hex:"); ok {
			b, err := hex.DecodeString(strings.ReplaceAll(digits, " ", ""))
			if err != nil {
				t.Fatal(err)
			}
			return b
		}
		b, err := Unescape(strings.ReplaceAll(strings.TrimPrefix(c.Input, "txt:"), " | ", ""))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	t.Fatalf("case %s is not in the file", id)
	return nil
}

func TestFieldCases(t *testing.T) {
	line := Config{Type: TypeLine, TrimNUL: true}
	short := Config{Type: TypeLine, TrimNUL: true, MaxBytes: 16}
	sentence := Config{Type: TypeNMEA, Checksum: ChecksumRequired}
	for _, tc := range []struct {
		id, name string
		cfg      Config
		want     []string // as brief writes them
	}{
		{"ING-011", "halves of lines are still frames", line, []string{"id=1,value=4it=9f", "unitid=1,value=4000,unit=9f"}},
		{"ING-014", "CR LF leaves no CR", line, []string{"temp=21.5", "hum=40"}},
		{"ING-015", "CR alone", line, []string{"A,1", "B,2", "C,3"}},
		{"ING-019", "NULs of an idle line", short, []string{"noise/32", "OK"}},
		{"ING-021", "overlong line drops its tail too", short, []string{"overlong/20", "ok"}},
		{"ING-027", "right checksum, wrong fields", sentence, []string{"$GPRMC,120000.000,A,5000.79K,D*3D"}},
		{"ING-030", "bad checksum digits", sentence, []string{"bad checksum digits/45"}},
		{"ING-036", "TAG block", sentence, []string{`\g:1-2-1234*5A\ !AIVDM,2,2,3,B,1@0000000000000,2*55`}},
		{"ING-110", "chunks split anywhere", line, []string{`{"a":1}`, `{"b":2}`}},
	} {
		t.Run(tc.id+" "+tc.name, func(t *testing.T) {
			in := fieldCase(t, tc.id)
			got := brief(everySplit(t, tc.cfg, in))
			if !reflect.DeepEqual(got, tc.want) {
				t.Errorf("frames of %q\n got %q\nwant %q", in, got, tc.want)
			}
		})
	}
}

// TestStreamGoesOnAfterBadSentence is the second half of ING-030: a rejected sentence costs nothing but itself.
func TestStreamGoesOnAfterBadSentence(t *testing.T) {
	bad := fieldCase(t, "ING-030")
	in := append(append(append([]byte(gga), bad...), gga...), gga...)
	want := []string{strings.TrimSpace(gga), "bad checksum digits/45", strings.TrimSpace(gga), strings.TrimSpace(gga)}
	if got := brief(everySplit(t, Config{Type: TypeNMEA}, in)); !reflect.DeepEqual(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
}
