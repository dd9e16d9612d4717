package configs

import (
	"bytes"
	"errors"
	"io"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxFile is how large a configuration file may be, in bytes: far more than anybody writes by hand.
const maxFile = 1 << 20

// decode reads data into the struct that into points to, whose defaults are set first. It returns the decoder with all faults so far, and
// tells whether there was a document to read. Nothing is validated yet.
func decode(data []byte, into any) (d *decoder, read bool) {
	v := reflect.ValueOf(into).Elem()
	d = newDecoder(v.Type())
	setDefaults(v, true)
	root := d.parse(data)
	if root != nil {
		d.value(root, place{line: root.Line}, v)
	}
	return d, root != nil
}

// parse reads the one YAML document of a file. It returns nil when there is nothing to go on with; an empty file is an empty section.
func (d *decoder) parse(data []byte) *yaml.Node {
	top := place{line: 1}
	if len(data) > maxFile {
		d.fault(top, "the file has "+formatSize(int64(len(data)))+" bytes, which is more than "+formatSize(maxFile), "is it the right file?")
		return nil
	}
	reader := yaml.NewDecoder(bytes.NewReader(data))
	var doc, more yaml.Node
	switch err := reader.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Line: 1}
	case err != nil:
		d.syntax(err)
		return nil
	}
	switch err := reader.Decode(&more); {
	case err == nil:
		d.fault(place{line: more.Line}, "a second document begins here", "keep one, and remove the line with ---")
		return nil
	case !errors.Is(err, io.EOF):
		d.syntax(err)
		return nil
	}
	if len(doc.Content) != 1 { // a document has one root
		return &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Line: 1}
	}
	return doc.Content[0]
}

var (
	syntaxLine   = regexp.MustCompile(`line (\d+): `)
	syntaxQuoted = regexp.MustCompile(`'[^']*'`)
)

// syntax reports a file that is not YAML. The module's messages may quote a name that is a password with an unlucky first letter.
func (d *decoder) syntax(err error) {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	p := place{line: 1}
	if m := syntaxLine.FindStringSubmatch(text); m != nil {
		if line, err := strconv.Atoi(m[1]); err == nil {
			p.line = max(line, 1)
		}
		text = strings.Replace(text, m[0], "", 1)
	}
	remedy := "look at this line and the one above it: indentation in blanks, a blank after each colon, quotes closed"
	switch {
	case strings.Contains(text, "tab"), strings.Contains(text, "cannot start any token"):
		remedy = "indent with blanks, not tabs, and put a text that begins with a sign in quotes"
	case strings.Contains(text, "anchor"):
		remedy = "put a text that begins with * or & in quotes"
	case strings.Contains(text, "mapping values are not allowed"):
		remedy = "put a text that contains a colon and a blank in quotes, and look at the indentation"
	}
	d.fault(p, "this is not YAML: "+syntaxQuoted.ReplaceAllString(text, "…"), remedy)
}
