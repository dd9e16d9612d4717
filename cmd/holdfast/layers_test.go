package main_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const (
	module   = "github.com/holdfast-edge/holdfast"
	repoRoot = "../.."
)

// allowed is the import table of docs/ARCHITECTURE.md: package folder -> folders of ours that its shipped files may import.
// A folder ending in /... stands for itself and all below it. A folder that is missing here may import nothing of ours.
var allowed = map[string][]string{
	"ingest":            {"storage"},
	"ingest/ingesttest": {"ingest", "storage", "rig/..."}, // test equipment itself
	"ingest/serial":     {"ingest", "ingest/frame", "ingest/decode", "storage"},
	"ingest/convert":    {"ingest", "ingest/decode"},
	"ingest/seen":       {"storage"},
	"ingest/mqtt":       {"ingest", "ingest/frame", "ingest/decode", "ingest/seen", "ingest/topic", "storage"},
	"ingest/command":    {"ingest", "storage"},
	"ingest/reject":     {"ingest"},
	"ingest/probe":      {"ingest/frame", "ingest/serial"}, // listens to a port as a source would
	"ingest/modbus":     {"ingest", "ingest/frame", "ingest/decode", "ingest/serial", "storage"},
	"ingest/request":    {"ingest"},
	"ingest/mqttserver": {"ingest", "ingest/mqttserver/packet", "ingest/seen", "ingest/topic", "storage"},
	"forward":           {"forward/hub", "storage", "leaf"},
	"forward/hub":       {"storage"},
	"storage":           {"storage/journal", "storage/blocks"},
	"configs": {"leaf", "storage", "systemd", "ingest", "ingest/frame", "ingest/decode", "ingest/convert", "ingest/serial", "ingest/mqtt", "ingest/reject",
		"ingest/modbus", "ingest/mqttserver", "ingest/request", "forward"},
	"cmd/holdfast/apps":   {"cmd/holdfast/status", "leaf", "storage"},
	"cmd/holdfast/carry":  {"leaf", "storage", "storage/blocks", "storage/parcel", "forward"},
	"cmd/holdfast":        {"cmd/holdfast/...", "leaf", "storage", "storage/parcel", "systemd", "ingest/...", "forward/...", "configs"},
	"cmd/holdfast/status": {"leaf", "storage", "systemd", "ingest/...", "forward/...", "configs"},
	"cmd/holdfast/web":    {"cmd/holdfast/status", "leaf", "storage", "systemd", "ingest/...", "forward/...", "configs"},
	"cmd/holdfast/demo":   {"cmd/holdfast/status", "leaf", "storage", "systemd", "ingest/...", "forward/...", "configs", "rig/..."},
}

// homes lists the third-party modules that are named in one place only, with the folders whose shipped files may do so.
// Test files and the rigs may use all of them.
var homes = map[string][]string{
	"go.bug.st/serial":                    {"ingest/serial"},
	"github.com/eclipse/paho.mqtt.golang": {"ingest/mqtt"},
	"github.com/coreos/go-systemd/v22":    {"systemd"},
	"golang.org/x/crypto":                 {"leaf", "ingest/mqttserver", "storage/blocks"}, // bcrypt: users of NATS and of MQTT; the ciphers of encrypted blocks
	"github.com/expr-lang/expr":           {"ingest/decode"},
	"github.com/fxamacker/cbor/v2":        {"ingest/decode"},
	"github.com/nats-io/nats-server/v2":   {"leaf", "rig/..."},
	"github.com/nats-io/jwt/v2":           {"forward/hub"},
	"go.yaml.in/yaml/v3":                  {"configs"},
	"github.com/klauspost/compress":       {"storage/blocks"},
	"github.com/minio/highwayhash":        {"storage/blocks"},
	"github.com/hanwen/go-fuse/v2":        {"rig/..."},
	"github.com/creack/pty":               {"rig/...", "cmd/holdfast/demo"},
	"github.com/at-wat/mqtt-go":           {}, // tests only: a client of another author
	"github.com/simonvetter/modbus":       {}, // tests only: a slave that is not ours
}

// source is one Go file of the module.
type source struct {
	path    string // from the repository's root
	folder  string
	test    bool
	imports []string
}

// sources reads the imports of all Go files of the module. It reads files itself, because a test that runs `go list` is cached wrongly.
func sources(t *testing.T) []source {
	t.Helper()
	var all []source
	walkGo(t, func(path, file string) {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		s := source{path: path, folder: filepath.ToSlash(filepath.Dir(path)), test: strings.HasSuffix(path, "_test.go")}
		for _, spec := range f.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatalf("%s: import %s: %v", path, spec.Path.Value, err)
			}
			s.imports = append(s.imports, imported)
		}
		all = append(all, s)
	})
	if len(all) < 4 {
		t.Fatalf("found %d Go files, so the walk looks in the wrong place", len(all))
	}
	return all
}

// walkGo calls visit for every Go file of the module, with its path from the repository's root and the path to open.
func walkGo(t *testing.T, visit func(path, file string)) {
	t.Helper()
	err := filepath.WalkDir(repoRoot, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if file != repoRoot && (strings.HasPrefix(name, ".") || name == "testdata" || name == "bin" || name == "dist") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		path, err := filepath.Rel(repoRoot, file)
		if err != nil {
			return err
		}
		visit(filepath.ToSlash(path), file)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// covers tells whether one of the entries names the folder, itself or by a trailing /...
func covers(entries []string, folder string) bool {
	return slices.ContainsFunc(entries, func(entry string) bool {
		if tree, ok := strings.CutSuffix(entry, "/..."); ok {
			return folder == tree || strings.HasPrefix(folder, tree+"/")
		}
		return folder == entry
	})
}

// ours returns the folder of an imported package of this module.
func ours(imported string) (folder string, ok bool) {
	if imported == module {
		return ".", true
	}
	return strings.CutPrefix(imported, module+"/")
}

func inRig(folder string) bool { return covers([]string{"rig/..."}, folder) }

func TestLayersOfOurPackages(t *testing.T) {
	for _, s := range sources(t) {
		for _, imported := range s.imports {
			folder, ok := ours(imported)
			if !ok {
				continue
			}
			if inRig(s.folder) { // the rigs stand outside, so that they can be used on anything
				if !inRig(folder) {
					t.Errorf("%s imports %s: the rigs import nothing of ours", s.path, folder)
				}
				continue
			}
			if s.test { // tests may look at anything but a command
				if strings.HasPrefix(folder, "cmd/") && !strings.HasPrefix(s.folder, "cmd/") {
					t.Errorf("%s imports %s: no test of a library looks at a command", s.path, folder)
				}
				continue
			}
			if s.folder == folder || !covers(allowed[s.folder], folder) {
				t.Errorf("%s imports %s, which the import table does not allow: see docs/ARCHITECTURE.md", s.path, folder)
			}
		}
	}
}

func TestLayersOfModules(t *testing.T) {
	used := map[string]bool{}
	for _, s := range sources(t) {
		if s.test || inRig(s.folder) {
			continue
		}
		for _, imported := range s.imports {
			for home, folders := range homes {
				if imported != home && !strings.HasPrefix(imported, home+"/") {
					continue
				}
				used[home] = true
				if !covers(folders, s.folder) {
					t.Errorf("%s imports %s, which is named in %v only", s.path, imported, folders)
				}
			}
		}
	}
	if len(used) == 0 {
		t.Log("no shipped file names a listed module yet")
	}
}

// TestLayersCatch makes sure that the rules above can fail.
func TestLayersCatch(t *testing.T) {
	for _, tt := range []struct {
		name, from, to string
		want           bool
	}{
		{"forward may use storage", "forward", "storage", true},
		{"forward may not use ingest", "forward", "ingest", false},
		{"storage may not use leaf", "storage", "leaf", false},
		{"forward/hub may not use leaf", "forward/hub", "leaf", false},
		{"command may use a package below ingest", "cmd/holdfast", "ingest/mqtt", true},
		{"command may not use a rig", "cmd/holdfast", "rig/hub", false},
		{"demo may use a rig", "cmd/holdfast/demo", "rig/hub", true},
		{"a name that only begins alike is another", "cmd/holdfast", "ingestion", false},
	} {
		if got := covers(allowed[tt.from], tt.to); got != tt.want {
			t.Errorf("%s: covers(allowed[%q], %q) = %v, want %v", tt.name, tt.from, tt.to, got, tt.want)
		}
	}
}
