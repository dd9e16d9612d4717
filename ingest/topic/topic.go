// Package topic turns MQTT topics into tokens of a NATS subject and back, and compares topics with topic filters.
package topic

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxTail is the longest subject tail that Map returns, in bytes. A server closes a connection on a control line of more than
// 4096 bytes, so a device must not be able to make a subject as long as it likes.
const MaxTail = 512

// Header carries the topic, escaped by Escape, of a record whose subject does not tell it: see Map.
const Header = "Holdfast-Topic"

// hashMark is the first token of a hashed topic. No other topic maps to it: a '#' is never escaped.
const hashMark = "%23"

// emptyLevel stands for a topic level without characters. U+0000 is not allowed in topics (MQTT 3.1.1 section 1.5.3); should
// a broker pass it on nevertheless, it is told apart as nulLevel.
const (
	emptyLevel = "%00"
	nulLevel   = "%00%"
)

// ErrHashed says that a subject tail holds only the hash of its topic: the topic is in the record's header Header.
var ErrHashed = errors.New("the topic was too long for a subject and is only in the header " + Header)

// Map turns an MQTT topic into the tokens of a NATS subject: one token per level, with what is not allowed or not safe in a
// token written as %XX per byte. It maps every string, different topics never to the same tail, and leaves case and Unicode
// form as they are. The result is 1 to MaxTail bytes, without wildcards, blanks, control characters and empty tokens.
//
// When the mapping would be longer than MaxTail, the result is made of a hash instead and reversible is false: the topic must
// then travel in Header.
func Map(topic string) (tail string, reversible bool) {
	var b strings.Builder
	b.Grow(len(topic) + 16)
	for i, level := range strings.Split(topic, "/") {
		if i > 0 {
			b.WriteByte('.')
		}
		switch level {
		case "":
			b.WriteString(emptyLevel)
		case "\x00":
			b.WriteString(nulLevel)
		default:
			escape(&b, level, func(at int, r rune) bool {
				return r == '.' || r == '*' || r == '>' || r == '$' && i == 0 && at == 0
			})
		}
		if b.Len() > MaxTail {
			sum := sha256.Sum256([]byte(topic))
			return hashMark + "." + hex.EncodeToString(sum[:16]), false
		}
	}
	return b.String(), true
}

// Unmap returns the topic that Map turned into this tail. It fails with ErrHashed when only the header knows it, and with
// another error when the tail does not come from Map.
func Unmap(tail string) (string, error) {
	if strings.HasPrefix(tail, hashMark+".") {
		return "", ErrHashed
	}
	levels := strings.Split(tail, ".")
	for i, level := range levels {
		var err error
		switch level {
		case emptyLevel:
			levels[i] = ""
		case nulLevel:
			levels[i] = "\x00"
		default:
			levels[i], err = unescape(level)
		}
		if err != nil {
			return "", fmt.Errorf("subject tail %q: %w", tail, err)
		}
	}
	topic := strings.Join(levels, "/")
	if again, _ := Map(topic); again != tail {
		as, _ := Map(tail)
		return "", fmt.Errorf("subject tail %q: no topic maps to it; the topic %q is written %s", tail, tail, as)
	}
	return topic, nil
}

// Escape writes a topic as a header value: like in a subject, but with '/' between the levels.
func Escape(topic string) string {
	var b strings.Builder
	b.Grow(len(topic))
	escape(&b, topic, func(int, rune) bool { return false })
	return b.String()
}

// Unescape reads what Escape wrote.
func Unescape(value string) (string, error) {
	text, err := unescape(value)
	if err != nil {
		return "", fmt.Errorf("header %s: %w", Header, err)
	}
	return text, nil
}

// escape appends s to b with %XX for each byte of the percent sign, of white space, control and separator characters, of
// bytes that are not UTF-8, and of what also asks for, given its offset.
func escape(b *strings.Builder, s string, also func(at int, r rune) bool) {
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && n == 1 || r == '%' || r == '\uFEFF' || unicode.IsSpace(r) || unicode.IsControl(r) || also(i, r) {
			for _, c := range []byte(s[i : i+n]) {
				fmt.Fprintf(b, "%%%02X", c)
			}
		} else {
			b.WriteString(s[i : i+n])
		}
		i += n
	}
}

func unescape(s string) (string, error) {
	if !strings.Contains(s, "%") {
		return s, nil
	}
	out := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			out = append(out, s[i])
			continue
		}
		if i+2 >= len(s) {
			return "", fmt.Errorf("escape %q is cut off", s[i:])
		}
		c, err := hex.DecodeString(s[i+1 : i+3])
		if err != nil {
			return "", fmt.Errorf("escape %q: %w", s[i:i+3], err)
		}
		out = append(out, c...)
		i += 2
	}
	return string(out), nil
}

// OfCommand returns the topic to which a command is published: the one that the tail is mapped from, or that the value of Header holds
// when it is not empty. The error says why it is not one.
func OfCommand(tail, header string) (string, error) {
	name, err := Unmap(tail)
	if header != "" {
		name, err = Unescape(header)
	}
	switch {
	case err != nil:
		return "", err
	case CheckFilter(name) != nil || HasWildcard(name):
		return "", fmt.Errorf("%q is not a topic that can be published to", name)
	}
	return name, nil
}
