package configs

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// decoder walks a tree of YAML nodes along a struct, and goes on after every fault.
type decoder struct {
	faults  []Fault
	lines   map[string]int  // path -> line of its key
	settled map[string]bool // paths that have a fault already: a validation has nothing to add
	secrets []string        // values that no text may contain
	owners  []owner         // all keys of the configuration, to say where a misplaced one belongs
}

// owner is a key and the section it belongs to, with list positions left out: streams[].
type owner struct{ key, section string }

// place is where in the configuration a value stands.
type place struct {
	path string
	line int
	field
}

// in returns the place of one of the keys of the section at p.
func (p place) in(f field, line int) place {
	return place{path: join(p.path, f.key), line: line, field: f}
}

// at returns the place of an entry of the list at p.
func (p place) at(i, line int) place {
	f := p.field
	if f.typ != nil {
		f.typ = f.typ.Elem()
	}
	return place{path: fmt.Sprintf("%s[%d]", p.path, i), line: line, field: f}
}

func join(section, key string) string {
	if section == "" || key == "" || strings.HasPrefix(key, "[") {
		return section + key
	}
	return section + "." + key
}

func newDecoder(t reflect.Type) *decoder {
	d := &decoder{lines: map[string]int{}, settled: map[string]bool{}}
	d.index(t, "", 0)
	return d
}

// index collects all keys below a type.
func (d *decoder) index(t reflect.Type, section string, depth int) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		if t.Kind() == reflect.Slice {
			section += "[]"
		}
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || depth > 8 { // no section contains itself; were one to, this still ends
		return
	}
	for _, f := range fieldsOf(t) {
		d.owners = append(d.owners, owner{f.key, section})
		d.index(f.typ, join(section, f.key), depth+1)
	}
}

// fault notes a fault and settles its path.
func (d *decoder) fault(p place, problem, remedy string) {
	d.settled[p.path] = true
	d.faults = append(d.faults, Fault{Line: p.line, Path: p.path, Problem: problem, Remedy: remedy})
}

// lineOf returns the line of a path, or of the nearest section around it.
func (d *decoder) lineOf(path string) int {
	for path != "" {
		if line, ok := d.lines[path]; ok {
			return line
		}
		path = around(path)
	}
	return 1
}

// value decodes a node into v, whatever v is.
func (d *decoder) value(n *yaml.Node, p place, v reflect.Value) {
	if _, known := d.lines[p.path]; !known {
		d.lines[p.path] = p.line
	}
	if !d.plain(n, p) {
		return
	}
	if f, ok := v.Addr().Interface().(former); ok {
		d.form(n, p, f)
		return
	}
	switch {
	case v.Kind() == reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		if v.Elem().Kind() == reflect.Struct {
			setDefaults(v.Elem(), true)
		}
		p.typ = v.Type().Elem()
		d.value(n, p, v.Elem())
	case isText(v):
		d.text(n, p, v)
	case v.Kind() == reflect.Struct:
		d.section(n, p, v)
	case v.Kind() == reflect.Slice:
		d.list(n, p, v)
	case v.Kind() == reflect.Map:
		d.table(n, p, v)
	default:
		d.text(n, p, v)
	}
}

// plain refuses what YAML has beyond sections, lists and values: an anchor, an alias or a tag would surprise in a file edited by hand.
// The texts name no value: a password that begins with &, * or ! ends here.
func (d *decoder) plain(n *yaml.Node, p place) bool {
	const quote = "a text that begins with such a sign stands in quotes"
	switch {
	case n.Kind == yaml.AliasNode:
		d.fault(p, "* refers to another place, which is not supported", "write the value here; "+quote)
	case n.Anchor != "":
		d.fault(p, "& names a value for use elsewhere, which is not supported", "remove the name; "+quote)
	case n.Style&yaml.TaggedStyle != 0:
		d.fault(p, "! gives a value a type, which is not supported", "remove the type; "+quote)
	default:
		return true
	}
	return false
}

// section decodes a mapping into a struct, whose defaults are already set.
func (d *decoder) section(n *yaml.Node, p place, v reflect.Value) {
	fields := fieldsOf(v.Type())
	if n.Kind == yaml.ScalarNode {
		if n.Tag == "!!null" { // a key with everything below it commented out
			return
		}
		for _, f := range fields {
			if f.scalar {
				d.value(n, p.in(f, p.line), v.FieldByIndex(f.index))
				return
			}
		}
	}
	if n.Kind != yaml.MappingNode {
		d.fault(p, "is "+describe(n)+" where a section is wanted", "write keys below it: "+strings.Join(keysOf(fields), ", "))
		return
	}
	d.entries(n, p, func(key string, at place, value *yaml.Node) {
		for _, f := range fields {
			if f.key == key {
				d.value(value, p.in(f, at.line), v.FieldByIndex(f.index))
				return
			}
		}
		d.unknown(key, at, fields, p)
	})
}

// entries calls visit for every key of a mapping, once, with its line.
func (d *decoder) entries(n *yaml.Node, p place, visit func(key string, at place, value *yaml.Node)) {
	first := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, value := n.Content[i], n.Content[i+1]
		if k.Kind != yaml.ScalarNode || k.Anchor != "" || k.Style&yaml.TaggedStyle != 0 && k.Tag != "!!merge" {
			d.fault(place{path: p.path, line: k.Line}, "a key is "+describe(k), "write a plain word in front of the colon")
			continue
		}
		at := place{path: join(p.path, shownKey(k.Value)), line: k.Line}
		if line, twice := first[k.Value]; twice {
			d.fault(at, fmt.Sprintf("the key stands here again, after line %d", line), "keep one of the two")
			continue
		}
		first[k.Value] = k.Line
		visit(k.Value, at, value)
	}
}

// shownKey returns a key as it stands in a path: quoted unless it is a plain word, and short.
func shownKey(key string) string {
	if r := []rune(key); len(r) > 40 {
		key = string(r[:40]) + "…"
	}
	if key == "" || strings.ContainsFunc(key, func(r rune) bool {
		return r != '_' && r != '-' && r != '…' && !('0' <= r && r <= '9') && !('a' <= r && r <= 'z') && !('A' <= r && r <= 'Z')
	}) {
		return strconv.Quote(key)
	}
	return key
}

// unknown reports a key that the section does not have, and what was meant.
func (d *decoder) unknown(key string, at place, fields []field, p place) {
	problem := "unknown key"
	if key == "<<" {
		d.fault(at, "<< takes over keys from another place, which is not supported", "write the keys here")
		return
	}
	if near := nearest(key, keysOf(fields)); near != "" {
		d.settled[join(p.path, near)] = true // not missing, but misspelt
		d.fault(at, problem, "did you mean "+near+"?")
		return
	}
	var sections []string
	for _, o := range d.owners {
		if o.key == key && len(sections) < 3 {
			sections = append(sections, sectionName(o.section))
		}
	}
	if len(sections) > 0 {
		d.fault(at, problem+" here", key+" belongs "+strings.Join(sections, " or "))
		return
	}
	d.fault(at, problem, "keys here: "+strings.Join(keysOf(fields), ", "))
}

func sectionName(section string) string {
	switch {
	case section == "":
		return "at the top of the file"
	case strings.HasSuffix(section, "[]"):
		return "to an entry of " + strings.TrimSuffix(section, "[]")
	}
	return "below " + section
}

// list decodes a sequence into a slice. What stood there by default is replaced.
func (d *decoder) list(n *yaml.Node, p place, v reflect.Value) {
	if n.Tag == "!!null" {
		v.SetZero()
		return
	}
	if n.Kind != yaml.SequenceNode {
		remedy := "write its entries below it, each after a dash"
		if n.Kind == yaml.ScalarNode && !p.secret {
			remedy = "write it in brackets: [" + d.shown(n, p) + "]"
		}
		d.fault(p, "is "+describe(n)+" where a list is wanted", remedy)
		return
	}
	v.SetZero() // an empty list is nil
	if len(n.Content) > 0 {
		v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
	}
	for i, entry := range n.Content {
		if v.Index(i).Kind() == reflect.Struct {
			setDefaults(v.Index(i), true)
		}
		d.value(entry, p.at(i, entry.Line), v.Index(i))
	}
}

// table decodes a mapping into a map from text.
func (d *decoder) table(n *yaml.Node, p place, v reflect.Value) {
	if n.Tag == "!!null" {
		v.SetZero()
		return
	}
	if n.Kind != yaml.MappingNode {
		d.fault(p, "is "+describe(n)+" where keys and values are wanted", "write entries below it, such as \"name: value\"")
		return
	}
	v.SetZero() // an empty table is nil
	if len(n.Content) > 0 {
		v.Set(reflect.MakeMap(v.Type()))
	}
	d.entries(n, p, func(key string, at place, value *yaml.Node) {
		entry := reflect.New(v.Type().Elem()).Elem()
		at.field = p.field
		at.secret = p.secret || secretKey(key)
		at.typ = v.Type().Elem()
		d.value(value, at, entry)
		v.SetMapIndex(reflect.ValueOf(key).Convert(v.Type().Key()), entry)
	})
}

// validate asks every section what is impossible in it, the inner ones first.
func (d *decoder) validate(v reflect.Value, path string, own bool) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			d.validate(v.Elem(), path, true)
		}
	case reflect.Slice:
		for i := range v.Len() {
			d.validate(v.Index(i), fmt.Sprintf("%s[%d]", path, i), true)
		}
	case reflect.Struct:
		section, ok := v.Addr().Interface().(validator)
		for i := range v.NumField() {
			sf := v.Type().Field(i)
			tag, tagged := sf.Tag.Lookup("yaml")
			if !tagged || tag == "-" || !sf.IsExported() {
				continue
			}
			key, options, _ := strings.Cut(tag, ",")
			if strings.Contains(options, "inline") {
				d.validate(v.Field(i), path, !ok || !sf.Anonymous)
				continue
			}
			d.validate(v.Field(i), join(path, key), true)
		}
		if ok && own {
			section.Validate(func(key, problem, remedy string) { d.report(join(path, key), problem, remedy) })
		}
	}
}

// settle marks the paths of all faults so far, so that rules applied afterwards do not repeat what was said.
func (d *decoder) settle() {
	for _, f := range d.faults {
		d.settled[f.Path] = true
	}
}

// doubtful tells whether a path, or a section around it, has a fault already, so that what it says does not count.
func (d *decoder) doubtful(path string) bool {
	for !d.settled[path] {
		if path == "" {
			return false
		}
		path = around(path)
	}
	return true
}

// around returns the section or list that a path stands in.
func around(path string) string {
	return path[:max(strings.LastIndexByte(path, '.'), strings.LastIndexByte(path, '['), 0)]
}

// report notes a fault found after decoding, unless its path is doubtful already.
func (d *decoder) report(path, problem, remedy string) {
	if !d.doubtful(path) {
		d.faults = append(d.faults, Fault{Line: d.lineOf(path), Path: path, Problem: problem, Remedy: remedy})
	}
}
