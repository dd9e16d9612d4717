package configs

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// writer writes a configuration as YAML: every key, in the order of the structs. With docs, each key of a kind of section is explained where
// it stands first.
type writer struct {
	strings.Builder
	docs bool
	seen map[string]bool
}

func write(cfg Config, docs bool) string {
	w := writer{docs: docs, seen: map[string]bool{}}
	w.section(reflect.ValueOf(cfg), "")
	return w.String()
}

// section writes the keys of v, each line behind indent; a dash in indent is for the first line only.
func (w *writer) section(v reflect.Value, indent string) {
	blank := strings.ReplaceAll(indent, "-", " ")
	for _, f := range fieldsOf(v.Type()) {
		inner := v.FieldByIndex(f.index)
		if inner.Kind() == reflect.Pointer {
			if inner.IsNil() {
				continue
			}
			inner = inner.Elem()
		}
		if w.docs && indent == "" && w.Len() > 0 {
			w.WriteString("\n")
		}
		if key := v.Type().String() + "." + f.key; w.docs && !w.seen[key] {
			w.seen[key] = true
			w.comment(f, blank)
		}
		w.WriteString(indent + f.key + ":")
		w.value(inner, f, blank)
		indent = blank
	}
}

// comment writes what a key means, in lines of 100 columns.
func (w *writer) comment(f field, indent string) {
	text := f.doc
	if len(f.enum) > 0 {
		text += " (" + choices(f.enum) + ")"
	}
	if text == "" {
		return
	}
	line := indent + "#"
	for _, word := range strings.Fields(text) {
		if len(line)+1+len(word) > 100 {
			w.WriteString(line + "\n")
			line = indent + "#"
		}
		line += " " + word
	}
	w.WriteString(line + "\n")
}

func (w *writer) value(v reflect.Value, f field, indent string) {
	switch {
	case v.Kind() == reflect.Struct:
		w.WriteString("\n")
		w.section(v, indent+"  ")
	case v.Kind() == reflect.Slice && v.Len() == 0:
		w.WriteString(" []\n")
	case v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Struct:
		w.WriteString("\n")
		for i := range v.Len() {
			w.section(v.Index(i), indent+"  - ")
		}
	case v.Kind() == reflect.Slice:
		var list []string
		for i := range v.Len() {
			list = append(list, scalar(v.Index(i), f))
		}
		w.WriteString(" [" + strings.Join(list, ", ") + "]\n")
	case v.Kind() == reflect.Map:
		var list []string
		for _, key := range v.MapKeys() {
			list = append(list, strconv.QuoteToASCII(key.String())+": "+scalar(v.MapIndex(key), f))
		}
		slices.Sort(list)
		w.WriteString(" {" + strings.Join(list, ", ") + "}\n")
	default:
		w.WriteString(" " + scalar(v, f) + "\n")
	}
}

func scalar(v reflect.Value, f field) string {
	switch {
	case v.Type() == durationType:
		return formatDuration(time.Duration(v.Int()))
	case f.bytes:
		return formatSize(v.Int())
	case v.Kind() == reflect.String && plainWord(v.String()):
		return v.String()
	case v.Kind() == reflect.String:
		return strconv.QuoteToASCII(v.String())
	case v.CanInt(), v.CanUint(), v.CanFloat(), v.Kind() == reflect.Bool:
		return fmt.Sprint(v)
	}
	panic("no text for a " + v.Type().String())
}

// plainWord tells whether a text needs no quotes, even inside brackets.
func plainWord(s string) bool {
	if s == "" || strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./") != "" {
		return false
	}
	var v any
	return yaml.Unmarshal([]byte(s), &v) == nil && v == any(s)
}
