package configs

import (
	"encoding"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// isText tells whether a value reads itself from a text.
func isText(v reflect.Value) bool {
	_, ok := v.Addr().Interface().(encoding.TextUnmarshaler)
	return ok
}

// describe names what a node is, in words for a person.
func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a section of keys"
	case yaml.SequenceNode:
		return "a list"
	case yaml.AliasNode:
		return "a reference"
	}
	switch {
	case n.Tag == "!!null":
		return "empty"
	case n.Tag == "!!int", n.Tag == "!!float":
		return "a number"
	case n.Tag == "!!bool":
		return "true or false"
	}
	return "a text"
}

// shown returns the value of a scalar for a message: quoted, short, without secrets.
func (d *decoder) shown(n *yaml.Node, p place) string {
	if p.secret {
		return "the value"
	}
	s := n.Value
	if r := []rune(s); len(r) > 60 {
		s = string(r[:60]) + "…"
	}
	return strconv.Quote(s)
}

// wanted says what a value of this kind looks like: a noun, and what to write.
func wanted(v reflect.Value, f field) (noun, remedy string) {
	switch {
	case len(f.enum) > 0:
		return "one word", "write one of " + choices(f.enum)
	case v.Type() == durationType:
		return "a duration", "write a number with a unit, such as 5ms, 10s, 12h or 30d"
	case f.bytes:
		return "a size", "write a number with a unit, such as 64MiB or 2GB"
	case v.Kind() == reflect.Bool:
		return "true or false", "write true or false"
	case v.CanInt(), v.CanUint():
		return "a whole number", "write a whole number, such as 1024"
	case v.CanFloat():
		return "a number", "write a number, such as 0.5"
	}
	return "a text", `write a text, or "" for none`
}

func choices(words []string) string {
	var list []string
	for _, w := range words {
		if w == "" {
			w = `""`
		}
		list = append(list, w)
	}
	return strings.Join(list, ", ")
}

// text decodes a scalar.
func (d *decoder) text(n *yaml.Node, p place, v reflect.Value) {
	noun, remedy := wanted(v, p.field)
	switch {
	case n.Kind != yaml.ScalarNode:
		d.fault(p, "is "+describe(n)+" where "+noun+" is wanted", remedy)
		return
	case n.Tag == "!!null":
		if p.secret {
			remedy = "write it in quotes; a # outside quotes begins a comment"
		}
		d.fault(p, "has no value", remedy+", or remove the key for its default")
		return
	}
	if p.secret && len(n.Value) >= 4 {
		d.secrets = append(d.secrets, n.Value)
	}
	if len(p.enum) > 0 && !slices.Contains(p.enum, n.Value) {
		if near := nearest(n.Value, p.enum); near != "" {
			remedy = "did you mean " + near + "? The choice is " + choices(p.enum)
		}
		d.fault(p, d.shown(n, p)+" is not a choice", remedy)
		return
	}
	if u, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		if err := u.UnmarshalText([]byte(n.Value)); err != nil {
			problem := d.shown(n, p) + ": " + err.Error()
			if p.secret {
				problem = "cannot be read"
			}
			d.fault(p, problem, remedy)
		}
		return
	}
	if problem, better := set(n, p, v); problem != "" {
		if better != "" {
			remedy = better
		}
		d.fault(p, d.shown(n, p)+" "+problem, remedy)
	}
}

// set parses a scalar into v. problem is "" when it worked; remedy may be "" for the usual one.
func set(n *yaml.Node, p place, v reflect.Value) (problem, remedy string) {
	switch {
	case v.Type() == durationType:
		x, err := parseDuration(n.Value)
		if errors.Is(err, errNoUnit) && !p.secret {
			return err.Error(), fmt.Sprintf("write %ss for seconds, %sms for milliseconds", n.Value, n.Value)
		}
		if err != nil {
			return err.Error(), ""
		}
		v.SetInt(int64(x))
	case p.bytes && v.CanInt():
		x, err := parseSize(n.Value)
		if err != nil {
			return err.Error(), ""
		}
		if v.OverflowInt(x) {
			return errTooLarge.Error(), "the most is " + formatSize(maxInt(v))
		}
		v.SetInt(x)
	case v.Kind() == reflect.Bool:
		if n.Tag != "!!bool" {
			return "is not true or false", ""
		}
		v.SetBool(strings.EqualFold(n.Value, "true"))
	case v.CanInt(), v.CanUint():
		return setWhole(n, v)
	case v.CanFloat():
		x, err := strconv.ParseFloat(n.Value, 64)
		if err != nil || n.Tag != "!!int" && n.Tag != "!!float" || math.IsInf(x, 0) || math.IsNaN(x) || v.OverflowFloat(x) {
			return "is not a number", ""
		}
		v.SetFloat(x)
	case v.Kind() == reflect.String:
		v.SetString(n.Value)
	default:
		panic("configs: a configuration holds a " + v.Type().String() + ", which no file can set")
	}
	return "", ""
}

func setWhole(n *yaml.Node, v reflect.Value) (problem, remedy string) {
	s := n.Value
	if n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) != 0 {
		if _, err := strconv.ParseInt(s, 10, 64); err == nil {
			return "is a text", "write " + s + " without quotes"
		}
	}
	if hasLeadingZero(s) {
		return "has a leading zero", "write it without: numbers are decimal"
	}
	if v.CanUint() {
		x, err := strconv.ParseUint(s, 10, 64)
		if errors.Is(err, strconv.ErrRange) || err == nil && v.OverflowUint(x) {
			return errTooLarge.Error(), fmt.Sprintf("the most is %d", uint64(math.MaxUint64)>>(64-v.Type().Bits()))
		}
		if err != nil {
			if _, err := strconv.ParseInt(s, 10, 64); err == nil {
				return errNegative.Error(), "write 0 or more"
			}
			return "is not a whole number", ""
		}
		v.SetUint(x)
		return "", ""
	}
	x, err := strconv.ParseInt(s, 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange), err == nil && v.OverflowInt(x):
		return "is out of range", fmt.Sprintf("the range is %d to %d", -maxInt(v)-1, maxInt(v))
	case err != nil || strings.HasPrefix(s, "+"):
		return "is not a whole number", ""
	}
	v.SetInt(x)
	return "", ""
}

// maxInt returns the largest value that fits into a signed integer of v's size.
func maxInt(v reflect.Value) int64 { return math.MaxInt64 >> (64 - v.Type().Bits()) }
