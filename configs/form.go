package configs

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// former is a section in a JSON form that is not ours: Form returns a pointer to the struct whose json tags are its keys. Durations may be written with a
// unit, and so may sizes, where JSON has nanoseconds and bytes.
type former interface{ Form() any }

var formType = reflect.TypeFor[former]()

// form decodes a section in a JSON form.
func (d *decoder) form(n *yaml.Node, p place, f former) {
	into := f.Form()
	before := len(d.faults)
	var out bytes.Buffer
	d.json(&out, n, p, reflect.TypeOf(into).Elem())
	if len(d.faults) > before {
		d.settled[p.path] = true
		return
	}
	if err := json.Unmarshal(out.Bytes(), into); err != nil {
		d.fault(p, "does not fit: "+err.Error(), "see docs/JETSTREAM.md")
	}
}

// jsonFields returns the keys of a struct and their types, those of embedded structs among them.
func jsonFields(t reflect.Type) map[string]reflect.Type {
	all := map[string]reflect.Type{}
	for i := range t.NumField() {
		sf := t.Field(i)
		key, _, _ := strings.Cut(sf.Tag.Get("json"), ",")
		switch {
		case sf.Anonymous && key == "":
			for k, v := range jsonFields(sf.Type) {
				if _, outer := all[k]; !outer {
					all[k] = v
				}
			}
		case key != "" && key != "-":
			all[key] = sf.Type
		}
	}
	return all
}

// json writes a node as the JSON that fits t.
func (d *decoder) json(out *bytes.Buffer, n *yaml.Node, p place, t reflect.Type) {
	if _, known := d.lines[p.path]; !known {
		d.lines[p.path] = p.line
	}
	if !d.plain(n, p) {
		return
	}
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	object := t.Kind() == reflect.Struct && len(jsonFields(t)) > 0
	switch {
	case object && n.Kind == yaml.MappingNode:
		d.jsonObject(out, n, p, jsonFields(t))
	case t.Kind() == reflect.Map && n.Kind == yaml.MappingNode:
		d.jsonObject(out, n, p, nil)
	case t.Kind() == reflect.Slice && n.Kind == yaml.SequenceNode:
		sep := byte('[')
		for i, entry := range n.Content {
			out.WriteByte(sep)
			sep = ','
			d.json(out, entry, place{path: fmt.Sprintf("%s[%d]", p.path, i), line: entry.Line}, t.Elem())
		}
		if len(n.Content) == 0 {
			out.WriteByte('[')
		}
		out.WriteByte(']')
	case n.Kind != yaml.ScalarNode:
		d.fault(p, "is "+describe(n)+", which does not fit", "see docs/JETSTREAM.md")
	case object || t.Kind() == reflect.Map || t.Kind() == reflect.Slice:
		d.fault(p, "is "+describe(n)+" where a section or list is wanted", "see docs/JETSTREAM.md")
	default:
		d.jsonScalar(out, n, p, t)
	}
}

// jsonObject writes a mapping. With nil fields every key is taken, and every value is a text.
func (d *decoder) jsonObject(out *bytes.Buffer, n *yaml.Node, p place, fields map[string]reflect.Type) {
	sep := byte('{')
	d.entries(n, p, func(key string, at place, value *yaml.Node) {
		t, known := fields[key]
		if fields == nil {
			t, known = reflect.TypeFor[string](), true
		}
		if !known {
			var keys []string
			for k := range fields {
				keys = append(keys, k)
			}
			slices.Sort(keys)
			remedy := "keys here: " + strings.Join(keys, ", ")
			if near := nearest(key, keys); near != "" {
				remedy = "did you mean " + near + "?"
			}
			d.fault(at, "unknown key", remedy)
			return
		}
		out.WriteByte(sep)
		sep = ','
		out.WriteString(strconv.Quote(key) + ":")
		d.json(out, value, at, t)
	})
	if sep == '{' {
		out.WriteByte(sep)
	}
	out.WriteByte('}')
}

func (d *decoder) jsonScalar(out *bytes.Buffer, n *yaml.Node, p place, t reflect.Type) {
	whole := t.Kind() >= reflect.Int && t.Kind() <= reflect.Uint64
	_, decodes := reflect.New(t).Interface().(json.Unmarshaler)
	switch {
	case t == durationType && n.Tag == "!!str":
		x, err := parseDuration(n.Value)
		if err != nil {
			d.fault(p, d.shown(n, p)+" "+err.Error(), "write a number with a unit, such as 10s or 30d, or nanoseconds")
		}
		fmt.Fprint(out, int64(x))
	case whole && !decodes && n.Tag == "!!str":
		x, err := parseSize(n.Value)
		if err != nil {
			d.fault(p, d.shown(n, p)+" "+err.Error(), "write a whole number, or a size such as 64MiB")
		}
		fmt.Fprint(out, x)
	case whole && !decodes && n.Tag == "!!int", t.Kind() == reflect.Bool && n.Tag == "!!bool", t.Kind() == reflect.Float64 && (n.Tag == "!!int" || n.Tag == "!!float"):
		out.WriteString(strings.ToLower(n.Value))
	case n.Tag == "!!null":
		out.WriteString("null")
	case t.Kind() == reflect.String, decodes, t == reflect.TypeFor[time.Time]():
		text, err := json.Marshal(n.Value)
		if err != nil {
			d.fault(p, "cannot be written as JSON", "write plain text")
		}
		out.Write(text)
	default:
		d.fault(p, d.shown(n, p)+" does not fit: "+t.Kind().String()+" is wanted", "see docs/JETSTREAM.md")
	}
}
