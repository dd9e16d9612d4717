package topic

import (
	"errors"
	"strings"
	"unicode/utf8"
)

// CheckFilter says what is wrong with a topic filter (MQTT 3.1.1 section 4.7).
func CheckFilter(f string) error {
	switch {
	case f == "":
		return errors.New("it is empty")
	case len(f) > 65535:
		return errors.New("it is longer than 65535 bytes")
	case !utf8.ValidString(f) || strings.Contains(f, "\x00"):
		return errors.New("it is not valid text")
	}
	levels := strings.Split(f, "/")
	for i, l := range levels {
		switch {
		case l == "#" && i < len(levels)-1:
			return errors.New("'#' may only be the last level")
		case l != "#" && strings.Contains(l, "#"), l != "+" && strings.Contains(l, "+"):
			return errors.New("'#' and '+' must be a whole level")
		}
	}
	return nil
}

// Matches says whether a topic belongs to a filter. A wildcard at the start does not match topics that begin with '$'
// (MQTT 3.1.1 section 4.7.2).
func Matches(filter, topic string) bool {
	if strings.HasPrefix(topic, "$") && !strings.HasPrefix(filter, "$") {
		return false
	}
	for {
		f, moreF, hasF := strings.Cut(filter, "/")
		t, moreT, hasT := strings.Cut(topic, "/")
		switch {
		case f == "#":
			return true
		case f != "+" && f != t:
			return false
		case !hasF && !hasT:
			return true
		case !hasT: // "a/#" also matches "a"
			return moreF == "#"
		case !hasF:
			return false
		}
		filter, topic = moreF, moreT
	}
}

// Covers says whether filter a matches every topic that filter b matches.
func Covers(a, b string) bool {
	if strings.HasPrefix(b, "$") != strings.HasPrefix(a, "$") {
		return false
	}
	for {
		f, moreA, hasA := strings.Cut(a, "/")
		t, moreB, hasB := strings.Cut(b, "/")
		switch {
		case f == "#":
			return true
		case t == "#", f != "+" && f != t:
			return false
		case !hasA && !hasB:
			return true
		case !hasB:
			return moreA == "#"
		case !hasA:
			return false
		}
		a, b = moreA, moreB
	}
}

// HasWildcard says whether a topic holds a character that only a filter may have.
func HasWildcard(name string) bool { return strings.ContainsAny(name, "+#") }
