package configs

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"
)

// The types below stand for the sections of the packages.

type Limits struct {
	Name     string        `yaml:"name"`
	MaxBytes int64         `yaml:"max_bytes" unit:"bytes"`
	MsgSize  int32         `yaml:"max_msg_size" unit:"bytes"`
	Keep     time.Duration `yaml:"keep"`
	Full     string        `yaml:"when_full" enum:"drop-oldest,refuse"`
}

func (l *Limits) SetDefaults() { l.MaxBytes, l.Full = 1<<30, "drop-oldest" }

func (l Limits) Validate(fault func(key, problem, remedy string)) {
	if l.Name == "" {
		fault("name", "is missing", "give it a name")
	}
}

type route struct {
	Mode string `yaml:"mode,scalar" enum:"source,mirror,none"`
	Peer string `yaml:"peer"`
}

func (r *route) SetDefaults() { r.Mode = "source" }

type stream struct {
	Limits `yaml:",inline"`
	Route  route `yaml:"route"`
}

type parity struct{ letter string }

func (p *parity) UnmarshalText(b []byte) error {
	if p.letter = string(b); p.letter != "none" && p.letter != "even" {
		return errors.New("no such parity")
	}
	return nil
}

type line struct {
	Port   string  `yaml:"port"`
	Baud   int     `yaml:"baud"`
	Bits   uint8   `yaml:"bits"`
	Parity parity  `yaml:"parity"`
	Share  float64 `yaml:"share"`
	Lock   bool    `yaml:"lock"`
}

func (l *line) SetDefaults() { l.Baud, l.Bits, l.Lock = 9600, 8, true }

type sample struct {
	Streams  []stream          `yaml:"streams"`
	Line     *line             `yaml:"line"`
	Topics   []string          `yaml:"topics"`
	Labels   map[string]string `yaml:"labels"`
	Password string            `yaml:"password"`
	URL      string            `yaml:"url"`
	Inner    struct {
		Delay time.Duration `yaml:"delay"`
	} `yaml:"inner"`
	Hidden int
}

// read decodes and validates, as parse does with the whole configuration.
func read(text string, into *sample) *decoder {
	d, ok := decode([]byte(text), into)
	if ok {
		d.validate(reflect.ValueOf(into).Elem(), "", true)
	}
	return d
}

func TestDecodeEverything(t *testing.T) {
	var got sample
	d := read(`
streams:
  - {name: A, max_bytes: 64MiB, max_msg_size: 1MB, keep: 30d, when_full: refuse, route: mirror}
  - name: B
    route: {peer: x}
line: {port: /dev/x, baud: 4800, parity: even, share: 0.5, lock: false}
topics: [a/#, "b"]
labels: {site: north, "a.b": c}
password: 1234
inner: {delay: 5ms}
`, &got)
	if len(d.faults) > 0 {
		t.Fatalf("faults:\n%s", Format(d.faults))
	}
	want := sample{
		Streams: []stream{
			{Limits{"A", 64 << 20, 1e6, 30 * 24 * time.Hour, "refuse"}, route{"mirror", ""}},
			{Limits{"B", 1 << 30, 0, 0, "drop-oldest"}, route{"source", "x"}},
		},
		Line:     &line{"/dev/x", 4800, 8, parity{"even"}, 0.5, false},
		Topics:   []string{"a/#", "b"},
		Labels:   map[string]string{"site": "north", "a.b": "c"},
		Password: "1234",
	}
	want.Inner.Delay = 5 * time.Millisecond
	if !reflect.DeepEqual(got, want) {
		t.Errorf("decode = %+v\nwant     %+v", got, want)
	}
}

func TestDecodeEmpty(t *testing.T) {
	for _, text := range []string{"", "# nothing\n", "---\n", "{}", "inner:\n  # delay: 5ms\n"} {
		var got sample
		if d := read(text, &got); len(d.faults) > 0 || !reflect.DeepEqual(got, sample{}) {
			t.Errorf("decode(%q) = %+v, faults %v, want the defaults", text, got, d.faults)
		}
	}
}

func TestDecodeFaults(t *testing.T) {
	const name = "streams: [{name: A, "
	for _, tt := range []struct {
		name, text string
		want       []string // "line path: problem / remedy", shortened to what matters
	}{
		{"misspelt key", "strems: []", []string{`1 strems: unknown key / did you mean streams?`}},
		{"swapped letters", "tpoics: []", []string{`1 tpoics: unknown key / did you mean topics?`}},
		{"dashes for underscores", name + "max-bytes: 1MB}]", []string{`1 streams[0].max-bytes: unknown key / did you mean max_bytes?`}},
		{"key of another section", "baud: 4800", []string{`1 baud: unknown key here / baud belongs below line`}},
		{"key of a list's entries", "inner: {max_bytes: 1}", []string{`1 inner.max_bytes: unknown key here / max_bytes belongs to an entry of streams`}},
		{"key of the top", "inner: {topics: 1}", []string{`1 inner.topics: unknown key here / topics belongs at the top of the file`}},
		{"key of nobody", "inner: {colour: 1}", []string{`1 inner.colour: unknown key / keys here: delay`}},
		{"untagged field", "Hidden: 1", []string{`1 Hidden: unknown key / keys here: streams, line, topics, labels, password, url, inner`}},
		{"misspelt and therefore missing", "streams: [{nmae: A}]", []string{`1 streams[0].nmae: unknown key / did you mean name?`}},
		{"missing", "streams:\n  - route: none\n", []string{`2 streams[0].name: is missing / give it a name`}},
		{"twice", "topics: []\ntopics: [a]", []string{`2 topics: the key stands here again, after line 1 / keep one of the two`}},
		{"size", name + "max_bytes: 64 megs}]", []string{`1 streams[0].max_bytes: "64 megs" is not a size / write a number with a unit, such as 64MiB or 2GB`}},
		{"size negative", name + "max_bytes: -1}]", []string{`1 streams[0].max_bytes: "-1" is negative / write a number with a unit, such as 64MiB or 2GB`}},
		{"size too large", name + "max_msg_size: 3GiB}]", []string{`1 streams[0].max_msg_size: "3GiB" is too large / the most is 2147483647`}},
		{"duration without unit", "inner: {delay: 5}", []string{`1 inner.delay: "5" has no unit / write 5s for seconds, 5ms for milliseconds`}},
		{"duration", "inner: {delay: soon}", []string{`1 inner.delay: "soon" is not a duration / write a number with a unit, such as 5ms, 10s, 12h or 30d`}},
		{"choice", name + "when_full: drop-oldst}]", []string{`1 streams[0].when_full: "drop-oldst" is not a choice / did you mean drop-oldest? The choice is drop-oldest, refuse`}},
		{"choice of a scalar form", name + "route: mirorr}]", []string{`1 streams[0].route.mode: "mirorr" is not a choice / did you mean mirror? The choice is source, mirror, none`}},
		{"number", "line: {baud: fast}", []string{`1 line.baud: "fast" is not a whole number / write a whole number, such as 1024`}},
		{"number in quotes", `line: {baud: "9600"}`, []string{`1 line.baud: "9600" is a text / write 9600 without quotes`}},
		{"octal", "line: {baud: 09600}", []string{`1 line.baud: "09600" has a leading zero / write it without: numbers are decimal`}},
		{"hexadecimal", "line: {baud: 0x10}", []string{`1 line.baud: "0x10" has a leading zero / write it without: numbers are decimal`}},
		{"fraction", "line: {baud: 1.5}", []string{`1 line.baud: "1.5" is not a whole number / write a whole number, such as 1024`}},
		{"small number", "line: {bits: 256}", []string{`1 line.bits: "256" is too large / the most is 255`}},
		{"negative number", "line: {bits: -1}", []string{`1 line.bits: "-1" is negative / write 0 or more`}},
		{"float", "line: {share: .inf}", []string{`1 line.share: ".inf" is not a number / write a number, such as 0.5`}},
		{"yes for true", "line: {lock: yes}", []string{`1 line.lock: "yes" is not true or false / write true or false`}},
		{"text that reads itself", "line: {parity: odd}", []string{`1 line.parity: "odd": no such parity / write a text, or "" for none`}},
		{"no value", "line: {baud: }", []string{`1 line.baud: has no value / write a whole number, such as 1024, or remove the key for its default`}},
		{"section for a value", "line: {baud: {a: 1}}", []string{`1 line.baud: is a section of keys where a whole number is wanted / write a whole number, such as 1024`}},
		{"list for a section", "line: [a]", []string{`1 line: is a list where a section is wanted / write keys below it: port, baud, bits, parity, share, lock`}},
		{"text for a section", "line: /dev/x", []string{`1 line: is a text where a section is wanted / write keys below it: port, baud, bits, parity, share, lock`}},
		{"text for a list", "topics: a/b", []string{`1 topics: is a text where a list is wanted / write it in brackets: ["a/b"]`}},
		{"section for a list", "streams: {name: A}", []string{`1 streams: is a section of keys where a list is wanted / write its entries below it, each after a dash`}},
		{"list for a table", "labels: [a]", []string{`1 labels: is a list where keys and values are wanted / write entries below it, such as "name: value"`}},
		{"entry without value", "topics: [a, ]\n", nil},
		{"empty entry", "topics:\n  - a\n  -\n", []string{`3 topics[1]: has no value / write a text, or "" for none, or remove the key for its default`}},
		{"alias", "url: &a x\ntopics: [*a]", []string{
			`1 url: & names a value for use elsewhere, which is not supported / remove the name; a text that begins with such a sign stands in quotes`,
			`2 topics[0]: * refers to another place, which is not supported / write the value here; a text that begins with such a sign stands in quotes`}},
		{"merge key", "<<: {a: 1}", []string{`1 "<<": << takes over keys from another place, which is not supported / write the keys here`}},
		{"tag", "url: !!binary aGk=", []string{`1 url: ! gives a value a type, which is not supported / remove the type; a text that begins with such a sign stands in quotes`}},
		{"list as key", "? [a]\n: 1\n", []string{`1 : a key is a list / write a plain word in front of the colon`}},
		{"dotted key", "inner.delay: 5ms", []string{`1 "inner.delay": unknown key / keys here: streams, line, topics, labels, password, url, inner`}},
		{"two documents", "url: a\n---\nurl: b\n", []string{`2 : a second document begins here / keep one, and remove the line with ---`}},
		{"list at the top", "- a", []string{`1 : is a list where a section is wanted / write keys below it: streams, line, topics, labels, password, url, inner`}},
		{"tab", "inner:\n\tdelay: 5ms", []string{`2 : this is not YAML: found character that cannot start any token / indent with blanks, not tabs, and put a text that begins with a sign in quotes`}},
		{"three at once, sorted", "line: {baud: x, bits: y}\nurls: 1\n", []string{
			`1 line.baud: "x" is not a whole number / write a whole number, such as 1024`,
			`1 line.bits: "y" is not a whole number / write a whole number, such as 1024`,
			`2 urls: unknown key / did you mean url?`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var into sample
			d := read(tt.text, &into)
			var got []string
			for _, f := range sortFaults(d.faults) {
				f.Remedy = " / " + f.Remedy
				got = append(got, strings.TrimPrefix(strings.ReplaceAll(f.String(), "\n    ", ""), "line "))
			}
			for i := range got { // "line 1: path: problem" without a path reads "1: problem"
				number, rest, _ := strings.Cut(got[i], ": ")
				if !strings.Contains(tt.want[min(i, len(tt.want)-1)], " : ") {
					got[i] = number + " " + rest
				} else {
					got[i] = number + " : " + rest
				}
			}
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("decode(%q) =\n%s\nwant\n%s", tt.text, strings.Join(got, "\n"), strings.Join(tt.want, "\n"))
			}
		})
	}
}

func TestDecodeHidesSecrets(t *testing.T) {
	for _, text := range []string{
		"password: [hunter2]", "password: {hunter2: 1}", "password: *hunter2", "password: &hunter2", "password: !hunter2 x",
		"password: 'hunter2", "password: hunter2: x", "password: #hunter2", "password: hunter2\nurl: {hunter2: 1}\ntopics: hunter2",
		"url: [tcp://me:hunter2@host]", "topics: tcp://me:hunter2@host", "- password: hunter2\n- hunter2", "labels: {token: [hunter2]}",
		"line: {baud: 'tcp://me:hunter2@host'}",
	} {
		var into sample
		d := read(text, &into)
		if len(d.faults) == 0 {
			t.Errorf("decode(%q) has no fault", text)
		}
		if shown := hide(Format(d.faults), d.secrets); strings.Contains(shown, "hunter2") {
			t.Errorf("decode(%q) shows the secret:\n%s", text, shown)
		}
	}
	const pasted = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"
	if got := hide("open "+pasted+": no such file", nil); strings.Contains(got, pasted[2:]) {
		t.Errorf("hide = %q, shows an nkey seed", got)
	}
}

func TestSecretKey(t *testing.T) {
	for key, want := range map[string]bool{
		"password": true, "password_file": false, "token": true, "api_token": true, "pin": true, "seed": true, "mypassword": true,
		"spin": false, "ping": false, "pin_code": true, "topics": false, "keep": false, "seeded": false,
	} {
		if got := secretKey(key); got != want {
			t.Errorf("secretKey(%q) = %v, want %v", key, got, want)
		}
	}
}

func TestParseSize(t *testing.T) {
	for _, tt := range []struct {
		text string
		want int64
		err  error
	}{
		{"0", 0, nil}, {"1", 1, nil}, {"17B", 17, nil}, {"64MiB", 64 << 20, nil}, {"64 mib", 64 << 20, nil}, {"2GB", 2e9, nil},
		{"1.5KiB", 1536, nil}, {"0.5TiB", 1 << 39, nil}, {"1.0001KB", 1000, nil}, {"9223372036854775807", 1<<63 - 1, nil},
		{"9223372036854775808", 0, errTooLarge}, {"8388608TiB", 0, errTooLarge}, {"-1", 0, errNegative},
		{"", 0, errNotSize}, {"MiB", 0, errNotSize}, {"64M", 0, errNotSize}, {"1e9", 0, errNotSize}, {"1.2.3MB", 0, errNotSize},
		{".5MB", 0, errNotSize}, {"5.MB", 0, errNotSize}, {"0x10", 0, errNotSize}, {"1/2", 0, errNotSize}, {"１MB", 0, errNotSize},
		{strings.Repeat("9", 40), 0, errNotSize},
	} {
		got, err := parseSize(tt.text)
		if got != tt.want || !errors.Is(err, tt.err) {
			t.Errorf("parseSize(%q) = %d, %v, want %d, %v", tt.text, got, err, tt.want, tt.err)
		}
		if err == nil {
			if back, err := parseSize(formatSize(got)); back != got || err != nil {
				t.Errorf("parseSize(formatSize(%d)) = %d, %v", got, back, err)
			}
		}
	}
}

func TestParseDuration(t *testing.T) {
	const day = 24 * time.Hour
	for _, tt := range []struct {
		text string
		want time.Duration
		err  error
	}{
		{"0", 0, nil}, {"0s", 0, nil}, {"5ms", 5 * time.Millisecond, nil}, {"1.5h", 90 * time.Minute, nil}, {"30d", 30 * day, nil},
		{"1w2d", 9 * day, nil}, {"1d12h", 36 * time.Hour, nil}, {" 10s ", 10 * time.Second, nil}, {"1h2m3s", time.Hour + 2*time.Minute + 3*time.Second, nil},
		{"5", 0, errNoUnit}, {"1.5", 0, errNoUnit}, {"-5s", 0, errNegative}, {"", 0, errNotDuration}, {"d", 0, errNotDuration},
		{"1.5d", 0, errNotDuration}, {"1d2w", 0, errNotDuration}, {"1d-5s", 0, errNotDuration}, {"1month", 0, errNotDuration},
		{"200000d", 0, errTooLarge}, {"106751d24h", 0, errTooLarge}, {"15250w1d", 0, nil},
	} {
		got, err := parseDuration(tt.text)
		if tt.text == "15250w1d" {
			tt.want = 106751 * day
		}
		if got != tt.want || !errors.Is(err, tt.err) {
			t.Errorf("parseDuration(%q) = %v, %v, want %v, %v", tt.text, got, err, tt.want, tt.err)
		}
		if err == nil {
			if back, err := parseDuration(formatDuration(got)); back != got || err != nil {
				t.Errorf("parseDuration(%q) = %v, %v, want %v", formatDuration(got), back, err, got)
			}
		}
	}
}

func TestNearest(t *testing.T) {
	keys := []string{"name", "max_bytes", "max_msgs", "when_full", "url"}
	for word, want := range map[string]string{
		"nmae": "name", "Name": "name", "maxbytes": "max_bytes", "max_byte": "max_bytes", "max-msgs": "max_msgs", "whenfull": "when_full",
		"urls": "url", "name_of_it": "name", "when": "when_full", "colour": "", "x": "", "": "", strings.Repeat("name", 100): "",
	} {
		if got := nearest(word, keys); got != want {
			t.Errorf("nearest(%q) = %q, want %q", word, got, want)
		}
	}
}

func TestSortFaultsDropsRepetitions(t *testing.T) {
	a, b, c := Fault{Line: 2, Path: "a"}, Fault{Line: 1, Path: "z"}, Fault{Line: 1, Path: "b"}
	if got, want := sortFaults([]Fault{a, b, c, b, a}), []Fault{c, b, a}; !reflect.DeepEqual(got, want) {
		t.Errorf("sortFaults = %v, want %v", got, want)
	}
}
