package decode

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/expr-lang/expr"
	"github.com/expr-lang/expr/types"
	"github.com/expr-lang/expr/vm"
)

// maxParts is how many records one message may become.
const maxParts = 10_000

// maxTail is how long a subject tail may be, in bytes.
const maxTail = 512

// Transform is the transform section of a source: what becomes of a decoded message. The expressions know value (the message), tail
// (subject tokens), time (of measurement, else of receipt) and index (of a part). Numbers they return are computed with 64 bits; all
// else keeps its digits.
type Transform struct {
	Rename  []string `yaml:"rename" doc:"names of values that change, each as old=new; done first"`
	Drop    string   `yaml:"drop" doc:"expression that is true for a message that is not wanted, such as value.battery == nil"`
	Split   string   `yaml:"split" doc:"expression that makes a list of which every entry becomes a record, such as value.sensors"`
	Payload string   `yaml:"payload" doc:"expression that makes the record's content, such as {t: value.temp * 0.1}"`
	Tail    string   `yaml:"tail" doc:"expression that makes the tokens behind the source in the subject, such as value.room"`
}

// Validate reports what cannot work.
func (c Transform) Validate(fault func(key, problem, remedy string)) {
	if _, err := newRenames(c.Rename); err != nil {
		fault("rename", err.Error(), "write each as old=new")
	}
	for _, e := range c.expressions() {
		if _, err := compile(e.text, e.bool); err != nil {
			fault(e.key, err.Error(), "see the expr language; value, tail, time and index are known")
		}
	}
}

// Empty says whether nothing is configured.
func (c Transform) Empty() bool {
	return len(c.Rename) == 0 && c.Drop == "" && c.Split == "" && c.Payload == "" && c.Tail == ""
}

// expression is one of the expressions of a Transform.
type expression struct {
	key, text string
	bool      bool
}

func (c Transform) expressions() []expression {
	var all []expression
	for _, e := range []expression{{"drop", c.Drop, true}, {"split", c.Split, false}, {"payload", c.Payload, false}, {"tail", c.Tail, false}} {
		if e.text != "" {
			all = append(all, e)
		}
	}
	return all
}

// env is what expressions know. now is not among it: the same message always becomes the same record.
func env(p Part, index int) map[string]any {
	return map[string]any{"value": loosen(p.Value), "tail": p.Tail, "time": p.Time, "index": index}
}

// program is an expression, ready for use.
type program struct {
	code *vm.Program
	path string // of the value it is, when it is nothing but value.a.b: that keeps the digits of numbers
	bare bool   // it is value itself
}

var barePath = regexp.MustCompile(`^value((?:\.[A-Za-z_][A-Za-z0-9_]*)*)$`)

// compile checks an expression, whose mistakes are told on one line.
func compile(text string, wantBool bool) (*program, error) {
	options := []expr.Option{
		expr.Env(types.Map{"value": types.Any, "tail": types.String, "time": types.TypeOf(time.Time{}), "index": types.Int}),
		expr.DisableBuiltin("now"),
	}
	if wantBool {
		options = append(options, expr.AsBool())
	}
	code, err := expr.Compile(text, options...)
	if err != nil {
		first, _, _ := strings.Cut(err.Error(), "\n")
		return nil, errors.New(first)
	}
	p := &program{code: code}
	if m := barePath.FindStringSubmatch(strings.TrimSpace(text)); m != nil {
		p.bare, p.path = m[1] == "", strings.TrimPrefix(m[1], ".")
	}
	return p, nil
}

// run evaluates an expression over a part.
func (p *program) run(part Part, index int) (any, error) {
	if p.bare {
		return part.Value, nil
	}
	if v, ok := lookup(part.Value, p.path); p.path != "" && ok {
		return v, nil
	}
	v, err := expr.Run(p.code, env(part, index))
	if err != nil {
		return nil, err
	}
	return tighten(v, 0)
}

// Part is a decoded message, or what a transform made of it.
type Part struct {
	Value any       // as in Result
	Tail  string    // subject tokens behind the source
	Time  time.Time // of measurement, else of receipt
}

// Transformer transforms the decoded messages of one source. It is safe for concurrent use.
type Transformer struct {
	renames                    [][2]string
	drop, split, payload, tail *program // nil: none
}

// NewTransformer returns the transformer of a valid configuration, else the first fault.
func NewTransformer(cfg Transform) (*Transformer, error) {
	if err := firstFault("transform", cfg.Validate); err != nil {
		return nil, err
	}
	t := &Transformer{}
	var err error
	if t.renames, err = newRenames(cfg.Rename); err != nil {
		return nil, err
	}
	for _, e := range cfg.expressions() {
		p, err := compile(e.text, e.bool)
		if err != nil {
			return nil, err
		}
		switch e.key {
		case "drop":
			t.drop = p
		case "split":
			t.split = p
		case "payload":
			t.payload = p
		case "tail":
			t.tail = p
		}
	}
	return t, nil
}

func newRenames(pairs []string) ([][2]string, error) {
	var all [][2]string
	for _, p := range pairs {
		from, to, ok := strings.Cut(p, "=")
		if !ok || from == "" || to == "" {
			return nil, fmt.Errorf("%q is not old=new", p)
		}
		all = append(all, [2]string{from, to})
	}
	return all, nil
}

// Apply returns the records that a decoded message becomes; nil, without an error, when it is dropped, and an empty list when split
// makes nothing of it. The error is an *Error. p is not changed, and the records may share parts of it.
func (t *Transformer) Apply(p Part) (out []Part, err error) {
	defer func() {
		if r := recover(); r != nil {
			out, err = nil, &Error{Format: "transform", Reason: ReasonFault, Detail: fmt.Sprint(r)}
		}
	}()
	if out, err = t.apply(p); err != nil {
		var e *Error
		if !errors.As(err, &e) {
			first, _, _ := strings.Cut(err.Error(), "\n")
			e = &Error{Reason: ReasonExpression, Detail: first}
		}
		e.Format = "transform"
		return nil, e
	}
	return out, nil
}

func (t *Transformer) apply(p Part) ([]Part, error) {
	p.Value = t.rename(p.Value)
	if t.drop != nil {
		drop, err := t.drop.run(p, 0)
		if err != nil {
			return nil, err
		}
		switch drop {
		case true:
			return nil, nil
		case false, nil: // nil: a value that is not there
		default:
			return nil, reject(ReasonValue, "drop makes %v, which is neither true nor false", drop)
		}
	}
	parts := []Part{p}
	if t.split != nil {
		v, err := t.split.run(p, 0)
		if err != nil {
			return nil, err
		}
		list, ok := v.([]any)
		if !ok {
			return nil, reject(ReasonValue, "split makes no list")
		}
		if len(list) > maxParts {
			return nil, reject(ReasonParts, "split makes %d, %d are allowed", len(list), maxParts)
		}
		parts = parts[:0]
		for _, v := range list {
			parts = append(parts, Part{v, p.Tail, p.Time})
		}
	}
	for i := range parts {
		if err := t.finish(&parts[i], i); err != nil {
			return nil, err
		}
	}
	return parts, nil
}

// finish applies the expressions for one record.
func (t *Transformer) finish(p *Part, index int) error {
	known := *p // both expressions see the part as it was
	if t.payload != nil {
		v, err := t.payload.run(known, index)
		if err != nil {
			return err
		}
		p.Value = v
	}
	if t.tail != nil {
		v, err := t.tail.run(known, index)
		if err != nil {
			return err
		}
		switch v := v.(type) {
		case string:
			p.Tail = v
		case json.Number:
			p.Tail = v.String()
		default:
			return reject(ReasonTail, "it is no text")
		}
		if !soundTail(p.Tail) {
			return reject(ReasonTail, "%.60q is no tokens with dots between", p.Tail)
		}
	}
	return nil
}

// rename returns value with other names for what is in it.
func (t *Transformer) rename(value any) any {
	m, ok := value.(map[string]any)
	if !ok || len(t.renames) == 0 {
		return value
	}
	out := make(map[string]any, len(m))
	for k, v := range m {
		out[k] = v
	}
	for _, r := range t.renames {
		if v, ok := out[r[0]]; ok {
			delete(out, r[0])
			out[r[1]] = v
		}
	}
	return out
}

// soundTail says whether a tail is tokens that may stand in a subject, or empty.
func soundTail(s string) bool {
	if s == "" {
		return true
	}
	if len(s) > maxTail || !utf8.ValidString(s) || strings.ContainsAny(s, "*>") || strings.ContainsFunc(s, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }) {
		return false
	}
	for _, token := range strings.Split(s, ".") {
		if token == "" {
			return false
		}
	}
	return true
}

// loosen makes numbers of the kind that expressions compute with: int where any machine's holds it, else float64.
func loosen(value any) any {
	switch v := value.(type) {
	case json.Number:
		if n, err := strconv.ParseInt(v.String(), 10, 32); err == nil {
			return int(n)
		}
		f, err := v.Float64()
		if err != nil {
			return v.String() // above what 64 bits hold: a text, which arithmetic refuses
		}
		return f
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = loosen(v[i])
		}
		return out
	case map[string]any:
		out := make(map[string]any, len(v))
		for k := range v {
			out[k] = loosen(v[k])
		}
		return out
	}
	return value
}

// tighten makes a value of what an expression returned.
func tighten(value any, depth int) (any, error) {
	if depth > cborNesting {
		return nil, reject(ReasonValue, "it is nested too deep")
	}
	switch v := value.(type) {
	case nil, bool, string, json.Number:
		return v, nil
	case int:
		return integer(int64(v)), nil
	case int64:
		return integer(v), nil
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return nil, reject(ReasonNumber, "an expression made %v", v)
		}
		return float(v, 64), nil
	case time.Time:
		return v.Format(time.RFC3339Nano), nil
	case []any:
		out := make([]any, len(v))
		for i := range v {
			var err error
			if out[i], err = tighten(v[i], depth+1); err != nil {
				return nil, err
			}
		}
		return out, nil
	case map[string]any:
		out := make(map[string]any, len(v))
		for k := range v {
			var err error
			if out[k], err = tighten(v[k], depth+1); err != nil {
				return nil, err
			}
		}
		return out, nil
	}
	return nil, reject(ReasonValue, "an expression made a %T, which is no value", value)
}
