package configs

import (
	"fmt"
	"os"
	"reflect"
	"time"

	"github.com/holdfast-edge/holdfast/forward"
)

// Fleet is the file that `holdfast hub` reads on an operator's machine: what a hub serves.
type Fleet struct {
	Auth        string        `yaml:"auth" enum:"config,jwt" doc:"config: users stand in the servers' configuration; jwt: leaves have signed credentials"`
	Account     string        `yaml:"account" doc:"hub account of the leaves; with jwt its public key"`
	Domain      string        `yaml:"domain" doc:"JetStream domain of the hub"`
	Replicas    int           `yaml:"replicas" doc:"copies of each hub stream"`
	Servers     []string      `yaml:"servers" doc:"where operators connect to the hub"`
	LeafURLs    []string      `yaml:"leaf_urls" doc:"where leaves connect to the hub"`
	Streams     []HubStream   `yaml:"streams" doc:"limits of hub streams; one that is not listed has none"`
	LeafStreams []FleetStream `yaml:"leaf_streams" doc:"streams of each leaf that lists none itself"`
	Leaves      []Entry       `yaml:"leaves" doc:"the leaves, each with a name of its own"`
}

// HubStream is a stream of the hub and its limits. Zero leaves a limit as the hub has it.
type HubStream struct {
	Name     string        `yaml:"name" doc:"name of the hub stream"`
	MaxBytes int64         `yaml:"max_bytes" unit:"bytes" doc:"what it may take on disk, each of its shards if there are several"`
	MaxAge   time.Duration `yaml:"max_age" doc:"how long records are kept after they arrived at the hub; not for mirrors"`
	WhenFull string        `yaml:"when_full" enum:"drop-oldest,refuse" doc:"drop-oldest: the hub keeps a window; refuse: the leaves keep what does not fit"`
	Replicas int           `yaml:"replicas" doc:"copies; 0: as all hub streams"`
	Shards   int           `yaml:"shards" doc:"number of streams that stand for it, beyond 20,000 records a second"`
}

// Validate reports every fault of one hub stream.
func (s HubStream) Validate(fault func(key, problem, remedy string)) {
	if !nameForm.MatchString(s.Name) {
		fault("name", fmt.Sprintf("%q is not a name", s.Name), nameRemedy)
	}
	if s.MaxBytes < 0 {
		fault("max_bytes", "is below zero", "leave it out for no limit")
	}
	if s.MaxAge < 0 {
		fault("max_age", "is below zero", "leave it out for no limit")
	}
	if s.Replicas != 0 && !oddCopies(s.Replicas) {
		fault("replicas", fmt.Sprintf("is %d", s.Replicas), "use 1, 3 or 5, at most the number of hub servers")
	}
	if s.Shards < 0 || s.Shards > 64 {
		fault("shards", fmt.Sprintf("is %d", s.Shards), "use 2 to 64, or leave it out")
	}
}

func oddCopies(n int) bool { return n == 1 || n == 3 || n == 5 }

// Entry is a leaf of a fleet. It authenticates by the key that enrolling it has made, or by what is given here.
type Entry struct {
	Name      string        `yaml:"name" doc:"name of the leaf, as in its own configuration"`
	User      string        `yaml:"user" doc:"user at the hub; empty: the name"`
	Password  string        `yaml:"password" doc:"password at the hub as its configuration takes it, preferably a bcrypt hash; empty: the leaf is enrolled"`
	NKey      string        `yaml:"nkey" doc:"public user nkey, instead of user and password"`
	Commands  bool          `yaml:"commands" doc:"the leaf takes commands from the hub"`
	Documents bool          `yaml:"documents" doc:"the leaf takes configuration documents from the hub"`
	Streams   []FleetStream `yaml:"streams" doc:"the streams that it forwards; none: leaf_streams"`
}

// FleetStream is a stream of a leaf and how the hub takes it.
type FleetStream struct {
	Name           string `yaml:"name" doc:"name of the stream on the leaf"`
	forward.Config `yaml:",inline"`
}

// SetDefaults sets what the file may leave out.
func (f *Fleet) SetDefaults() { f.Auth, f.Account, f.Domain, f.Replicas = "config", "EDGE", "hub", 3 }

// Validate reports every fault of the file that is not one of a single leaf.
func (f Fleet) Validate(fault func(key, problem, remedy string)) {
	if !oddCopies(f.Replicas) {
		fault("replicas", fmt.Sprintf("is %d", f.Replicas), "use 1, 3 or 5, at most the number of hub servers")
	}
	checkStreams("leaf_streams", f.LeafStreams, fault)
	names := map[string]int{}
	for i, l := range f.Leaves {
		path := fmt.Sprintf("leaves[%d].name", i)
		first, twice := names[l.Name]
		switch {
		case !nameForm.MatchString(l.Name):
			fault(path, fmt.Sprintf("%q is not a name", l.Name), nameRemedy)
		case twice:
			fault(path, fmt.Sprintf("%s is the name of leaves[%d] already", l.Name, first), "names are unique in a fleet: rename one of the two, in its own configuration too")
		default:
			names[l.Name] = i
		}
	}
}

// Validate reports every fault of one leaf.
func (e Entry) Validate(fault func(key, problem, remedy string)) {
	if e.NKey != "" && (e.User != "" || e.Password != "") {
		fault("nkey", "is set beside user or password", "give one of the two")
	}
	checkStreams("streams", e.Streams, fault)
}

func checkStreams(key string, streams []FleetStream, fault func(key, problem, remedy string)) {
	names := map[string]bool{}
	for i, s := range streams {
		path := fmt.Sprintf("%s[%d].name", key, i)
		switch {
		case !nameForm.MatchString(s.Name):
			fault(path, fmt.Sprintf("%q is not a name", s.Name), nameRemedy)
		case names[s.Name]:
			fault(path, s.Name+" is listed twice", "list a stream once")
		}
		names[s.Name] = true
	}
}

// LoadFleet reads a fleet file. It returns all faults it finds, as Load does.
func LoadFleet(path string) (Fleet, []Fault, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return Fleet{}, nil, fmt.Errorf("read fleet: %w", err)
	}
	var f Fleet
	d, read := decode(data, &f)
	if read {
		d.settle()
		d.validate(reflect.ValueOf(&f).Elem(), "", true)
		d.settle()
	}
	for i, x := range d.faults {
		d.faults[i].File = path
		d.faults[i].Problem, d.faults[i].Remedy = hide(x.Problem, d.secrets), hide(x.Remedy, d.secrets)
	}
	return f, sortFaults(d.faults), nil
}
