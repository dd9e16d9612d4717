package configs

import (
	"reflect"
	"slices"
	"strings"
	"time"
)

// field is one key of a section: a struct field with a yaml tag, or one that came in by an inlined struct.
type field struct {
	key    string
	doc    string   // one line for the example file and the schema
	bytes  bool     // an integer that is a size
	enum   []string // the only texts allowed, nil for any
	scalar bool     // a lone scalar in the place of the section sets this field
	secret bool     // its value is never shown
	index  []int    // for reflect.Value.FieldByIndex
	typ    reflect.Type
}

// secretWords are parts of a key that make its value a secret even without a tag.
var secretWords = []string{"password", "passphrase", "secret", "token", "seed", "pin"}

// secretKey tells whether a key promises a secret. A key that ends in _file names a file, which is no secret.
func secretKey(key string) bool {
	key = strings.ToLower(key)
	if strings.HasSuffix(key, "_file") {
		return false
	}
	return slices.ContainsFunc(secretWords, func(w string) bool {
		return key == w || strings.HasPrefix(key, w+"_") || strings.HasSuffix(key, "_"+w) || len(w) > 4 && strings.Contains(key, w)
	})
}

// fieldsOf returns the keys of a struct type in the order of its fields, those of inlined structs in their place.
// A field without a yaml tag, or with "-", is not part of the configuration.
func fieldsOf(t reflect.Type) []field {
	var all []field
	for i := range t.NumField() {
		sf := t.Field(i)
		tag, tagged := sf.Tag.Lookup("yaml")
		if !tagged || tag == "-" || !sf.IsExported() {
			continue
		}
		options := strings.Split(tag, ",")
		if slices.Contains(options[1:], "inline") {
			for _, f := range fieldsOf(sf.Type) {
				f.index = append([]int{i}, f.index...)
				all = append(all, f)
			}
			continue
		}
		f := field{
			key:    options[0],
			doc:    sf.Tag.Get("doc"),
			bytes:  sf.Tag.Get("unit") == "bytes",
			scalar: slices.Contains(options[1:], "scalar"),
			secret: sf.Tag.Get("secret") == "true" || secretKey(options[0]),
			index:  []int{i},
			typ:    sf.Type,
		}
		if enum := sf.Tag.Get("enum"); enum != "" {
			f.enum = strings.Split(enum, ",")
		}
		all = append(all, f)
	}
	return all
}

func keysOf(fields []field) []string {
	keys := make([]string, len(fields))
	for i, f := range fields {
		keys[i] = f.key
	}
	return keys
}

// defaulter is a section that knows its defaults.
type defaulter interface{ SetDefaults() }

// validator is a section that knows what is impossible in it. Keys are relative to the section, "" is the section itself.
type validator interface {
	Validate(fault func(key, problem, remedy string))
}

var durationType = reflect.TypeFor[time.Duration]()

// setDefaults sets the defaults of a section and of all sections inside it that always exist, the inner ones first. own is false for
// an embedded section whose method the outer one has, promoted or shadowed: that one calls it.
func setDefaults(v reflect.Value, own bool) {
	d, ok := v.Addr().Interface().(defaulter)
	eachSection(v, func(inner reflect.Value, sf reflect.StructField) {
		setDefaults(inner, !ok || !sf.Anonymous)
	})
	if ok && own {
		d.SetDefaults()
	}
}

// eachSection calls visit for every struct field of v that is part of the configuration and always there.
func eachSection(v reflect.Value, visit func(inner reflect.Value, sf reflect.StructField)) {
	for i := range v.NumField() {
		sf := v.Type().Field(i)
		if tag, tagged := sf.Tag.Lookup("yaml"); tagged && tag != "-" && sf.IsExported() && sf.Type.Kind() == reflect.Struct {
			visit(v.Field(i), sf)
		}
	}
}
