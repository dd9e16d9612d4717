package decode

import (
	"fmt"
	"slices"
	"strings"
)

// Formats of messages.
const (
	FormatJSON      = "json"
	FormatCSV       = "csv"
	FormatKeyValue  = "key-value"
	FormatCBOR      = "cbor"
	FormatNMEA      = "nmea"      // NMEA 0183 and AIS sentences
	FormatOBIS      = "obis"      // P1 telegrams and other readouts of meters
	FormatSDI12     = "sdi12"     // values of an SDI-12 sensor
	FormatRegisters = "registers" // fields at fixed places
)

// What becomes of numbers that are none.
const (
	NaNReject = "reject" // the message is not decoded
	NaNNull   = "null"   // they are null
)

// Config is the decode section of a source: how its messages are read.
type Config struct {
	Format    string   `yaml:"format,scalar" enum:"json,csv,key-value,cbor,nmea,obis,sdi12,registers" doc:"how a message is written"`
	NaN       string   `yaml:"nan" enum:"reject,null" doc:"json, cbor: whether a message with nan or inf in it is rejected, or they become null"`
	Columns   []string `yaml:"columns" doc:"csv: names of the columns, - for one that is left out; without names the values are a list"`
	Separator string   `yaml:"separator" doc:"csv: between columns, a comma when empty; key-value: between pairs, blanks and commas and semicolons and line ends when empty; \\t is a TAB, \\r\\n a line end"`
	Assign    string   `yaml:"assign" doc:"key-value: between key and value; = when empty"`
	Fields    []Field  `yaml:"fields" doc:"registers: the fields of a message"`
	Time      Time     `yaml:"time" doc:"where the time of measurement is, when the message has one"`
}

// SetDefaults sets what is rejected rather than guessed.
func (c *Config) SetDefaults() { c.NaN = NaNReject }

// Validate reports what cannot work.
func (c Config) Validate(fault func(key, problem, remedy string)) {
	formats := []string{FormatJSON, FormatCSV, FormatKeyValue, FormatCBOR, FormatNMEA, FormatOBIS, FormatSDI12, FormatRegisters}
	if !slices.Contains(formats, c.Format) {
		problem := fmt.Sprintf("%q is unknown", c.Format)
		if c.Format == "" {
			problem = "is missing"
		}
		fault("format", problem, "use one of "+strings.Join(formats, ", "))
		return
	}
	if !slices.Contains([]string{"", NaNReject, NaNNull}, c.NaN) {
		fault("nan", fmt.Sprintf("%q is unknown", c.NaN), "use reject or null")
	}
	for _, use := range []struct {
		key string
		set bool
		by  []string
	}{
		{"columns", len(c.Columns) > 0, []string{FormatCSV}},
		{"separator", c.Separator != "", []string{FormatCSV, FormatKeyValue}},
		{"assign", c.Assign != "", []string{FormatKeyValue}},
		{"fields", len(c.Fields) > 0, []string{FormatRegisters}},
	} {
		if use.set && !slices.Contains(use.by, c.Format) {
			fault(use.key, "is not used with format "+c.Format, "remove it, or set format to one of "+strings.Join(use.by, ", "))
		}
	}
	switch c.Format {
	case FormatCSV:
		c.validateCSV(fault)
	case FormatKeyValue:
		if _, err := newKeyValue(c.Separator, c.Assign); err != nil {
			fault("separator", err.Error(), "give separator and assign different characters")
		}
	case FormatRegisters:
		c.validateFields(fault)
	}
	c.Time.validate(c.Format, func(key, problem, remedy string) { fault("time."+key, problem, remedy) })
}

func (c Config) validateCSV(fault func(key, problem, remedy string)) {
	if r := []rune(unescape(c.Separator)); len(r) > 1 || len(r) == 1 && (r[0] == '"' || r[0] == '\r' || r[0] == '\n' || r[0] == 0xfffd) {
		fault("separator", fmt.Sprintf("%q cannot separate columns", c.Separator), `give one character, such as ; or \t`)
	}
	seen := map[string]bool{skipColumn: false}
	for i, name := range c.Columns {
		key := fmt.Sprintf("columns[%d]", i)
		if name == "" {
			fault(key, "is empty", "give a name, or - to leave the column out")
		}
		if seen[name] {
			fault(key, fmt.Sprintf("%q is there twice", name), "give every column a name of its own")
		}
		seen[name] = name != skipColumn
	}
}

func (c Config) validateFields(fault func(key, problem, remedy string)) {
	if len(c.Fields) == 0 {
		fault("fields", "is missing", "name the fields of a message, each with its place and type")
	}
	seen := map[string]bool{}
	for i, f := range c.Fields {
		key := fmt.Sprintf("fields[%d]", i)
		if seen[f.Name] {
			fault(key+".name", fmt.Sprintf("%q is there twice", f.Name), "give every field a name of its own")
		}
		seen[f.Name] = true
		f.check(func(k, problem, remedy string) { fault(key+"."+k, problem, remedy) })
	}
}

// unescape reads the escapes of a separator.
func unescape(s string) string {
	return strings.NewReplacer(`\\`, `\`, `\t`, "\t", `\r`, "\r", `\n`, "\n").Replace(s)
}

// firstFault returns the first fault as an error.
func firstFault(section string, validate func(func(key, problem, remedy string))) error {
	var err error
	validate(func(key, problem, remedy string) {
		if err == nil {
			err = fmt.Errorf("%s: %s: %s: %s", section, key, problem, remedy)
		}
	})
	return err
}
