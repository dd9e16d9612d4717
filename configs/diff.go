package configs

import (
	"fmt"
	"reflect"
	"strings"
	"time"
)

// Difference is a key that two configurations disagree about.
type Difference struct {
	Path     string // key from the top; an entry of a list that has names is named, as in streams[SENSORS].max_bytes
	From, To string // as a file would say it; empty for what is not there, … for a secret
}

// String returns the difference in one line.
func (d Difference) String() string {
	switch {
	case d.From == "" && d.To == "":
		return d.Path + ": changed"
	case d.From == "":
		return d.Path + ": added"
	case d.To == "":
		return d.Path + ": removed"
	}
	return fmt.Sprintf("%s: %s -> %s", d.Path, d.From, d.To)
}

// Diff returns the keys in which b differs from a, in the order of the sections. An entry that only one of them has is one difference.
func Diff(a, b Config) []Difference {
	var list []Difference
	diff(&list, reflect.ValueOf(a), reflect.ValueOf(b), field{}, "")
	return list
}

func diff(list *[]Difference, a, b reflect.Value, f field, path string) {
	if reflect.DeepEqual(a.Interface(), b.Interface()) {
		return
	}
	switch a.Kind() {
	case reflect.Pointer:
		switch {
		case a.IsNil():
			*list = append(*list, Difference{Path: path, To: "there"})
		case b.IsNil():
			*list = append(*list, Difference{Path: path, From: "there"})
		default:
			diff(list, a.Elem(), b.Elem(), f, path)
		}
	case reflect.Struct:
		fields := fieldsOf(a.Type())
		if len(fields) == 0 { // a JSON form
			*list = append(*list, Difference{Path: path})
		}
		for _, f := range fields {
			diff(list, a.FieldByIndex(f.index), b.FieldByIndex(f.index), f, join(path, f.key))
		}
	case reflect.Slice:
		if a.Type().Elem().Kind() == reflect.Struct {
			diffEntries(list, a, b, path)
			return
		}
		fallthrough
	default:
		*list = append(*list, Difference{Path: path, From: shownValue(a, f), To: shownValue(b, f)})
	}
}

// diffEntries compares lists of sections: by name where entries have one, otherwise by position.
func diffEntries(list *[]Difference, a, b reflect.Value, path string) {
	name := func(v reflect.Value, i int) string {
		for _, key := range []string{"Name", "NKey", "Stream"} {
			if n := v.Index(i).FieldByName(key); n.IsValid() && n.Kind() == reflect.String && n.String() != "" {
				return fmt.Sprintf("%s[%s]", path, n.String())
			}
		}
		return fmt.Sprintf("%s[%d]", path, i)
	}
	there := map[string]int{}
	for i := range a.Len() {
		there[name(a, i)] = i
	}
	seen := map[string]bool{}
	for i := range b.Len() {
		entry := name(b, i)
		seen[entry] = true
		if j, both := there[entry]; both {
			diff(list, a.Index(j), b.Index(i), field{}, entry)
		} else {
			*list = append(*list, Difference{Path: entry, To: "there"})
		}
	}
	for i := range a.Len() {
		if entry := name(a, i); !seen[entry] {
			*list = append(*list, Difference{Path: entry, From: "there"})
		}
	}
}

// shownValue returns a value as a person would write it, and never a secret.
func shownValue(v reflect.Value, f field) string {
	switch {
	case f.secret:
		return "…"
	case v.Kind() == reflect.Slice:
		var words []string
		for i := range v.Len() {
			words = append(words, shownValue(v.Index(i), f))
		}
		return "[" + strings.Join(words, ", ") + "]"
	case v.Type() == durationType:
		return formatDuration(time.Duration(v.Int()))
	case f.bytes && v.CanInt():
		return formatSize(v.Int())
	case v.Kind() == reflect.String && v.Len() == 0:
		return `""`
	}
	return hide(fmt.Sprint(v.Interface()), nil)
}
