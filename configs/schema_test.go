package configs

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"testing"

	"go.yaml.in/yaml/v3"
)

type object = map[string]any

const (
	sizePattern     = `^[0-9]+(\.[0-9]+)? *([kKmMgGtT][iI]?)?[bB]?$`
	durationPattern = `^(0|([0-9]+w)?([0-9]+d)?([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))*)$`
)

func schemaOf(t reflect.Type, f field, def reflect.Value) object {
	if t.Kind() == reflect.Pointer {
		section := reflect.New(t.Elem())
		if t.Elem().Kind() == reflect.Struct {
			setDefaults(section.Elem(), true)
		}
		return schemaOf(t.Elem(), f, section.Elem())
	}
	s := object{}
	switch {
	case reflect.PointerTo(t).Implements(formType): // see the documentation of NATS
		s["type"] = "object"
		return s
	case t.Kind() == reflect.Struct:
		return schemaOfSection(t, def)
	case t == durationType:
		s["type"], s["pattern"] = "string", durationPattern
	case f.bytes:
		s["anyOf"] = []any{object{"type": "integer", "minimum": 0}, object{"type": "string", "pattern": sizePattern}}
	case t.Kind() == reflect.Slice:
		entry := reflect.New(t.Elem()).Elem()
		if t.Elem().Kind() == reflect.Struct {
			setDefaults(entry, true)
		}
		s["type"], s["items"] = "array", schemaOf(t.Elem(), field{enum: f.enum}, entry)
		return s
	case t.Kind() == reflect.Map:
		s["type"], s["additionalProperties"] = "object", schemaOf(t.Elem(), field{}, reflect.New(t.Elem()).Elem())
		return s
	case t.Kind() == reflect.Bool:
		s["type"] = "boolean"
	case t.Kind() == reflect.String && len(f.enum) > 0:
		s["enum"] = f.enum
	case t.Kind() == reflect.String:
		s["type"] = []string{"string", "number", "boolean"} // a scalar is taken as it is written
	case def.CanFloat():
		s["type"] = "number"
	case def.CanUint():
		s["type"], s["minimum"] = "integer", 0
	default:
		s["type"] = "integer"
	}
	switch {
	case t == durationType, f.bytes:
		s["default"] = scalar(def, f)
	case !def.IsZero():
		s["default"] = def.Interface()
	}
	return s
}

func schemaOfSection(t reflect.Type, def reflect.Value) object {
	properties := object{}
	var short object
	for _, f := range fieldsOf(t) {
		s := schemaOf(f.typ, f, def.FieldByIndex(f.index))
		if f.scalar {
			short = schemaOf(f.typ, f, def.FieldByIndex(f.index))
		}
		if f.doc != "" {
			s["description"] = f.doc
		}
		properties[f.key] = s
	}
	section := object{"type": []string{"object", "null"}, "additionalProperties": false, "properties": properties}
	if short != nil {
		return object{"anyOf": []any{section, short}}
	}
	return section
}

func generateSchema(t *testing.T) []byte {
	t.Helper()
	cfg := Defaults()
	s := schemaOfSection(reflect.TypeFor[Config](), reflect.ValueOf(&cfg).Elem())
	s["$schema"], s["title"] = "https://json-schema.org/draft/2020-12/schema", "Holdfast configuration"
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(s); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestSchemaFile(t *testing.T) { golden(t, "schema.json", string(generateSchema(t))) }

// conforms holds a value against a schema, as far as ours use the language. It returns what is wrong, or "".
func conforms(v any, s object) string {
	if any, ok := s["anyOf"].([]any); ok {
		for _, one := range any {
			if conforms(v, one.(object)) == "" {
				return ""
			}
		}
		return fmt.Sprintf("%v fits none of the forms", v)
	}
	if words, ok := s["enum"].([]any); ok {
		if !slices.Contains(words, v) {
			return fmt.Sprintf("%v is not one of %v", v, words)
		}
		return ""
	}
	kind := map[reflect.Kind]string{reflect.Map: "object", reflect.Slice: "array", reflect.String: "string", reflect.Int: "integer", reflect.Float64: "number", reflect.Bool: "boolean"}[reflect.ValueOf(v).Kind()]
	if v == nil {
		kind = "null"
	}
	types, _ := s["type"].([]any)
	if one, ok := s["type"].(string); ok {
		types = []any{one}
	}
	if !slices.Contains(types, any(kind)) && !(kind == "integer" && slices.Contains(types, any("number"))) {
		return fmt.Sprintf("%v is a %s, want %v", v, kind, types)
	}
	if pattern, ok := s["pattern"].(string); ok && !regexp.MustCompile(pattern).MatchString(v.(string)) {
		return fmt.Sprintf("%v does not match %s", v, pattern)
	}
	if least, ok := s["minimum"].(float64); ok && float64(v.(int)) < least {
		return fmt.Sprintf("%v is below %v", v, least)
	}
	switch v := v.(type) {
	case []any:
		for i, entry := range v {
			if problem := conforms(entry, s["items"].(object)); problem != "" {
				return fmt.Sprintf("[%d] %s", i, problem)
			}
		}
	case object:
		properties, _ := s["properties"].(object)
		for key, value := range v {
			inner, ok := properties[key].(object)
			if !ok {
				return key + " is unknown"
			}
			if problem := conforms(value, inner); problem != "" {
				return key + " " + problem
			}
		}
	}
	return ""
}

func TestSchemaAgreesWithDecoder(t *testing.T) {
	var schema object
	if err := json.Unmarshal(Schema, &schema); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, text string
		fits       bool
	}{
		{"the example", string(Example), true},
		{"nothing below a section", "storage:\n", true},
		{"scalar for a section", "sources: [{name: a, into: B, frame: nmea}]", true},
		{"wrong scalar for a section", "sources: [{name: a, into: B, frame: nnea}]", false},
		{"unknown key", "leaf: {nmae: a}", false},
		{"list for a section", "leaf: [a]", false},
		{"text for a list", "streams: a", false},
		{"size without unit", "storage: {budget: 1073741824}", true},
		{"wrong size", "storage: {budget: 64 megs}", false},
		{"days", "streams: [{name: A, keep_forwarded: 1w2d}]", true},
		{"duration without unit", "streams: [{name: A, keep_forwarded: 5}]", false},
		{"wrong duration", "streams: [{name: A, keep_forwarded: 5 days}]", false},
		{"number as a name", "leaf: {name: 7}", true},
		{"fraction", "storage: {commit: {max_records: 1.5}}", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var v any
			if err := yaml.Unmarshal([]byte(tt.text), &v); err != nil {
				t.Fatal(err)
			}
			if problem := conforms(v, schema); (problem == "") != tt.fits {
				t.Errorf("schema says %q, want it to fit: %v", problem, tt.fits)
			}
			var cfg Config // the sections' own rules aside, the decoder says the same
			d := newDecoder(reflect.TypeFor[Config]())
			d.value(d.parse([]byte(tt.text)), place{}, reflect.ValueOf(&cfg).Elem())
			if (len(d.faults) == 0) != tt.fits {
				t.Errorf("decoder says %v, want it to fit: %v", d.faults, tt.fits)
			}
		})
	}
}
