// Package configs reads the one configuration file strictly and says everything that is wrong with it at once.
package configs

import (
	_ "embed" // for Example and Schema
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"time"

	"github.com/holdfast-edge/holdfast/forward"
	"github.com/holdfast-edge/holdfast/ingest/convert"
	decoding "github.com/holdfast-edge/holdfast/ingest/decode" // decode is the function that reads the file
	"github.com/holdfast-edge/holdfast/ingest/frame"
	"github.com/holdfast-edge/holdfast/ingest/modbus"
	"github.com/holdfast-edge/holdfast/ingest/mqtt"
	"github.com/holdfast-edge/holdfast/ingest/mqttserver"
	"github.com/holdfast-edge/holdfast/ingest/reject"
	"github.com/holdfast-edge/holdfast/ingest/request"
	"github.com/holdfast-edge/holdfast/ingest/serial"
	"github.com/holdfast-edge/holdfast/leaf"
	"github.com/holdfast-edge/holdfast/storage"
)

// Example is a configuration that has every key at its default, with what it means. It is generated: go test ./configs -update.
//
//go:embed holdfast.yaml
var Example []byte

// Schema is the JSON schema of the configuration, for editors. It is generated: go test ./configs -update.
//
//go:embed schema.json
var Schema []byte

// Config is the whole configuration. The sections belong to the packages that use them.
type Config struct {
	Leaf    leaf.Config    `yaml:"leaf" doc:"this gateway"`
	Hub     leaf.Hub       `yaml:"hub" doc:"where the data goes; without urls it stays here"`
	Storage storage.Config `yaml:"storage" doc:"what all streams share"`
	Streams []Stream       `yaml:"streams" doc:"where records are kept until the hub has them"`
	Sources []Source       `yaml:"sources" doc:"where records come from"`
	Apps    leaf.Apps      `yaml:"apps" doc:"what programs on this gateway may do, beside the daemon"`

	JetStream leaf.JetStream `yaml:"jetstream" doc:"what they find in their own JetStream; see docs/JETSTREAM.md"`
}

// Stream is an entry of the streams.
type Stream struct {
	storage.StreamConfig `yaml:",inline"`
	Forward              forward.Config `yaml:"forward" doc:"how the hub gets this stream"`
}

// Source is an entry of the sources. In a configuration without faults exactly one of Serial, MQTT, MQTTServer, Modbus, Append and Rejects is there, and Frame
// with Serial.
type Source struct {
	Name       string             `yaml:"name" doc:"name of the source: letters, digits, - and _"`
	Into       string             `yaml:"into" doc:"stream that takes its records"`
	TTL        time.Duration      `yaml:"ttl" doc:"how long its records are worth sending: older ones are given up, with a gap record; the same for all sources of a stream; 0: for ever"`
	Serial     *serial.Config     `yaml:"serial" doc:"a serial line; needs frame"`
	Frame      *frame.Config      `yaml:"frame" doc:"how the bytes of a serial line are cut into records"`
	MQTT       *mqtt.Config       `yaml:"mqtt" doc:"topics of an MQTT broker"`
	MQTTServer *mqttserver.Config `yaml:"mqttserver" doc:"MQTT devices that connect to this gateway"`
	Modbus     *modbus.Config     `yaml:"modbus" doc:"devices on a Modbus line or network, which are polled"`

	Append *request.Config `yaml:"append" doc:"programs on this gateway, by requests to holdfast.append.<source>"`

	Rejects *reject.Config `yaml:"rejects" doc:"samples of the bytes that the other sources reject, with the reason; one source at most"`

	Decode    *decoding.Config    `yaml:"decode" doc:"how its messages are read, such as decode: json; without it they are stored as they are"`
	Keep      string              `yaml:"keep" enum:"raw,decoded,both" doc:"what is stored of a message that was decoded; one that cannot be decoded is stored as it is"`
	Transform *decoding.Transform `yaml:"transform" doc:"what becomes of a decoded message"`
}

// SetDefaults keeps messages beside what they say.
func (s *Source) SetDefaults() { s.Keep = convert.KeepBoth }

// Load reads a configuration file. It returns all faults it finds, sorted by line; with any of them the configuration must not be used. Relative
// file names in it are taken from the folder of the file. The error says that the file cannot be read.
func Load(path string) (Config, []Fault, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return Config{}, nil, fmt.Errorf("read configuration: %w", err)
	}
	full, err := filepath.Abs(path)
	if err != nil {
		return Config{}, nil, fmt.Errorf("read configuration %s: %w", path, err)
	}
	cfg, faults := Read(data, filepath.Dir(full))
	for i := range faults {
		faults[i].File = path
	}
	return cfg, faults, nil
}

// Read reads a configuration that was in a file of a folder, as Load does.
func Read(data []byte, folder string) (Config, []Fault) {
	cfg, faults := parse(data, machine())
	if len(faults) == 0 {
		cfg.resolve(folder)
	}
	return cfg, faults
}

// Check returns all faults of a configuration that is not in a file yet.
func Check(data []byte) []Fault {
	_, faults := parse(data, machine())
	return faults
}

// parse decodes a configuration and checks it: the names, then each section by its own rules, then what concerns several.
func parse(data []byte, m system) (Config, []Fault) {
	var cfg Config
	d, read := decode(data, &cfg)
	if read {
		c := check{&cfg, m, d.report, d.doubtful}
		c.names()
		d.settle()
		d.validate(reflect.ValueOf(&cfg).Elem(), "", true)
		d.settle()
		c.relations()
	}
	for i, f := range d.faults {
		d.faults[i].Problem, d.faults[i].Remedy = hide(f.Problem, d.secrets), hide(f.Remedy, d.secrets)
	}
	return cfg, sortFaults(d.faults)
}

// Defaults returns a configuration that says nothing: every section at its defaults, no streams, no sources.
func Defaults() Config {
	var cfg Config
	setDefaults(reflect.ValueOf(&cfg).Elem(), true)
	return cfg
}

// StorageStreams returns the storage half of all streams.
func (c *Config) StorageStreams() []storage.StreamConfig {
	all := make([]storage.StreamConfig, len(c.Streams))
	for i, s := range c.Streams {
		all[i] = s.StreamConfig
	}
	return all
}

// credential begins a file name that means a credential which systemd hands to the service, see systemd.exec(5), LoadCredential=.
const credential = "credential:"

// resolve makes file names absolute: a relative one lies in folder, credential:NAME in the service's credentials directory. A command that
// the service manager did not start looks where the running service has its credentials.
func (c *Config) resolve(folder string) {
	files := []*string{&c.Leaf.Data, &c.Storage.Key, &c.Hub.Credentials, &c.Hub.NKey, &c.Hub.TLS.CA, &c.Hub.TLS.Cert, &c.Hub.TLS.Key, &c.Hub.Proxy.PasswordFile}
	apps := &c.Apps
	files = append(files, &apps.TLS.Cert, &apps.TLS.Key, &apps.TLS.CA, &apps.Hub.Credentials, &apps.Hub.NKey, &apps.Hub.TLS.CA, &apps.Hub.TLS.Cert, &apps.Hub.TLS.Key)
	for _, s := range c.Sources {
		if s.MQTT != nil {
			files = append(files, &s.MQTT.PasswordFile, &s.MQTT.TLS.CA, &s.MQTT.TLS.Cert, &s.MQTT.TLS.Key)
		}
		if m := s.MQTTServer; m != nil {
			files = append(files, &m.Users, &m.TLS.Cert, &m.TLS.Key, &m.TLS.ClientCA)
		}
	}
	credentials := os.Getenv("CREDENTIALS_DIRECTORY")
	if credentials == "" {
		credentials = "/run/credentials/holdfast.service"
	}
	for _, file := range files {
		if name, ok := strings.CutPrefix(*file, credential); ok {
			*file = filepath.Join(credentials, name)
		} else if *file != "" && !filepath.IsAbs(*file) {
			*file = filepath.Join(folder, *file)
		}
	}
}
