package topic

import (
	"errors"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

func TestMapTopic(t *testing.T) {
	long := strings.Repeat("x", 511)
	for _, tt := range []struct{ name, topic, tail string }{
		{"plain", "zigbee2mqtt/bath/humidity", "zigbee2mqtt.bath.humidity"},
		{"ING-094 blank", "zigbee2mqtt/Living Room", "zigbee2mqtt.Living%20Room"},
		{"ING-095 dot", "spBv1.0/G/DDATA/E", "spBv1%2E0.G.DDATA.E"},
		{"ING-097 empty levels", "/a//b/", "%00.a.%00.b.%00"},
		{"ING-099 system", "$JS/API/STREAM/DELETE/DEVS", "%24JS.API.STREAM.DELETE.DEVS"},
		{"dollar further on", "a/$b/c$", "a.$b.c$"},
		{"only a slash", "/", "%00.%00"},
		{"empty", "", "%00"},
		{"NUL as a level", "\x00/a", "%00%.a"},
		{"NULs in a level", "\x00\x00/a\x00", "%00%00.a%00"},
		{"wildcards of subjects", "a/*/>", "a.%2A.%3E"},
		{"wildcards of topics", "#/+", "#.+"},
		{"percent", "100%/%20", "100%25.%2520"},
		{"looks like a hash", "%23/00", "%2523.00"},
		{"case and accents", "Grün/ÄÖ", "Grün.ÄÖ"},
		{"decomposed accent stays", "u\u0308", "u\u0308"},
		{"emoji", "a/🌡", "a.🌡"},
		{"line separators", "a\u2028\u2029", "a%E2%80%A8%E2%80%A9"},
		{"wide blank", "a\u3000", "a%E3%80%80"},
		{"byte order mark", "\uFEFFa", "%EF%BB%BFa"},
		{"controls", "\r\n\t\x7f\u0085", "%0D%0A%09%7F%C2%85"},
		{"not UTF-8", "a\xff\xc3", "a%FF%C3"},
		{"surrogate half", "\xed\xa0\x80", "%ED%A0%80"},
		{"just too long", long + "/", ""},
		{"longest that fits", long + "y", long + "y"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tail, reversible := Map(tt.topic)
			if hashed := strings.HasPrefix(tail, hashMark+"."); hashed == reversible {
				t.Errorf("Map(%q) = %q, %v", tt.topic, tail, reversible)
			}
			if !reversible {
				if _, err := Unmap(tail); !errors.Is(err, ErrHashed) || len(tail) != 36 {
					t.Errorf("Unmap(%q) = %v, want ErrHashed, tail of 36 bytes", tail, err)
				}
				return
			}
			if tail != tt.tail {
				t.Errorf("Map(%q) = %q, want %q", tt.topic, tail, tt.tail)
			}
			if topic, err := Unmap(tail); err != nil || topic != tt.topic {
				t.Errorf("Unmap(%q) = %q, %v, want %q", tail, topic, err, tt.topic)
			}
		})
	}
}

// TestMapTopicLong is ING-098: a topic longer than a server's control line.
func TestMapTopicLong(t *testing.T) {
	a, b := "x/"+strings.Repeat("y", 4200), "x/"+strings.Repeat("y", 4201)
	tailA, reversible := Map(a)
	tailB, _ := Map(b)
	if reversible || len(tailA) > MaxTail || tailA == tailB {
		t.Errorf("Map of two long topics = %q, %q, reversible %v", tailA, tailB, reversible)
	}
	if back, err := Unescape(Escape(a)); err != nil || back != a {
		t.Errorf("the header gives %d bytes back, %v, want %d", len(back), err, len(a))
	}
}

func TestUnmapRefuses(t *testing.T) {
	for _, tail := range []string{
		"",           // no level at all
		"a..b",       // empty token
		"a.%2",       // cut off
		"a.%zz",      // not hex
		"%61",        // 'a' is never escaped
		"%2e",        // lower case is never written
		"a b",        // a blank is always escaped
		"$SYS",       // the first dollar is always escaped
		"a.%00b%00%", // cut off
	} {
		if topic, err := Unmap(tail); err == nil {
			t.Errorf("Unmap(%q) = %q, want an error", tail, topic)
		}
	}
	if _, err := Unmap("commands/pump-1"); err == nil || !strings.HasSuffix(err.Error(), "is written commands.pump-1") {
		t.Errorf("Unmap of a topic: %v, want how it is written", err)
	}
}

func FuzzMapTopic(f *testing.F) {
	for _, s := range []string{"a/b", "/", "", "\x00", "%00", "%00%", "a.b/c d", "$SYS/x", "a/\xff", "#", "%23.00", "ü/\u2028", strings.Repeat(".", 200)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, topic string) {
		tail, reversible := Map(topic)
		if len(tail) == 0 || len(tail) > MaxTail || !utf8.ValidString(tail) {
			t.Fatalf("Map(%q) = %q: %d bytes", topic, tail, len(tail))
		}
		for _, token := range strings.Split(tail, ".") {
			if token == "" || strings.ContainsAny(token, "*>") || strings.ContainsFunc(token, unicode.IsSpace) || strings.ContainsFunc(token, unicode.IsControl) {
				t.Fatalf("Map(%q) = %q: token %q is not allowed", topic, tail, token)
			}
		}
		if strings.HasPrefix(tail, "$") {
			t.Fatalf("Map(%q) = %q: begins with a dollar", topic, tail)
		}
		back, err := Unmap(tail)
		if reversible && (err != nil || back != topic) || !reversible && !errors.Is(err, ErrHashed) {
			t.Fatalf("Unmap(Map(%q)) = %q, %v", topic, back, err)
		}
		header := Escape(topic)
		if strings.ContainsFunc(header, unicode.IsControl) || strings.TrimSpace(header) != header {
			t.Fatalf("Escape(%q) = %q", topic, header)
		}
		if back, err := Unescape(header); err != nil || back != topic {
			t.Fatalf("Unescape(%q) = %q, %v, want %q", header, back, err, topic)
		}
		// What is not ours is refused or comes from exactly this tail.
		if back, err := Unmap(topic); err == nil {
			if again, _ := Map(back); again != topic {
				t.Fatalf("Unmap(%q) = %q, which maps to %q", topic, back, again)
			}
		}
	})
}
