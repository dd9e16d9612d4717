package configs

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Fault is one thing that is wrong with a configuration.
type Fault struct {
	File    string // as it was named to Load, empty when there is none
	Line    int    // from 1: the line of the key, or of the nearest section around a key that is missing
	Path    string // key from the top, such as streams[0].max_bytes; empty for the file itself
	Problem string // what is wrong, without the value of a secret
	Remedy  string // what to do about it
}

// String returns the fault in two lines, the remedy indented.
func (f Fault) String() string {
	var b strings.Builder
	if f.File != "" {
		fmt.Fprintf(&b, "%s:%d: ", f.File, f.Line)
	} else {
		fmt.Fprintf(&b, "line %d: ", f.Line)
	}
	if f.Path != "" {
		b.WriteString(f.Path + ": ")
	}
	b.WriteString(f.Problem)
	if f.Remedy != "" {
		b.WriteString("\n    " + f.Remedy)
	}
	return b.String()
}

// Format renders faults for a person, in the order given, each ending in a newline. It returns "" for none.
func Format(faults []Fault) string {
	var b strings.Builder
	for _, f := range faults {
		b.WriteString(f.String() + "\n")
	}
	return b.String()
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// sortFaults orders faults by line, those of one line by path, and drops repetitions.
func sortFaults(faults []Fault) []Fault {
	slices.SortStableFunc(faults, func(a, b Fault) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Path, b.Path))
	})
	return slices.CompactFunc(faults, func(a, b Fault) bool { return a == b })
}

// What may stand in front of the host of an address, perhaps with a password: behind the slashes, or in an address without them.
var (
	userinfo      = regexp.MustCompile(`//[^\s"']*@`)
	plainUserinfo = regexp.MustCompile(`[^\s"'/:]+:[^\s"'/]+@`)
)

// seed is an nkey seed, which somebody may paste where the name of its file belongs.
var seed = regexp.MustCompile(`\bS[A-Z][A-Z2-7]{56}\b`)

// hide replaces user names and passwords inside addresses, nkey seeds, and every given secret, in a text that a person will see.
func hide(text string, secrets []string) string {
	text = plainUserinfo.ReplaceAllString(userinfo.ReplaceAllString(text, "//…@"), "…@")
	text = seed.ReplaceAllString(text, "S…")
	for _, secret := range secrets {
		text = strings.ReplaceAll(text, secret, "…")
	}
	return text
}
