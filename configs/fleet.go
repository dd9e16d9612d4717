package configs

import (
	"fmt"
	"os"
	"reflect"

	"github.com/holdfast-edge/holdfast/forward"
)

// Fleet is the file that `holdfast hub` reads on an operator's machine: the leaves that a hub serves.
type Fleet struct {
	Account  string  `yaml:"account" doc:"hub account of the leaves"`
	Domain   string  `yaml:"domain" doc:"JetStream domain of the hub"`
	Replicas int     `yaml:"replicas" doc:"copies of each hub stream"`
	Leaves   []Entry `yaml:"leaves" doc:"the leaves, each with a name of its own"`
}

// Entry is a leaf of a fleet and how it authenticates at the hub.
type Entry struct {
	Name     string        `yaml:"name" doc:"name of the leaf, as in its own configuration"`
	User     string        `yaml:"user" doc:"user at the hub; empty: the name"`
	Password string        `yaml:"password" doc:"password at the hub as its configuration takes it, preferably a bcrypt hash"`
	NKey     string        `yaml:"nkey" doc:"public user nkey, instead of user and password"`
	Streams  []FleetStream `yaml:"streams" doc:"the streams that it forwards"`
}

// FleetStream is a stream of a leaf and how the hub takes it.
type FleetStream struct {
	Name           string `yaml:"name" doc:"name of the stream on the leaf"`
	forward.Config `yaml:",inline"`
}

// SetDefaults sets what the file may leave out.
func (f *Fleet) SetDefaults() { f.Account, f.Domain, f.Replicas = "EDGE", "hub", 3 }

// Validate reports every fault of the file that is not one of a single leaf.
func (f Fleet) Validate(fault func(key, problem, remedy string)) {
	if len(f.Leaves) == 0 {
		fault("leaves", "is missing", "list at least one leaf")
	}
	if f.Replicas < 1 || f.Replicas > 5 || f.Replicas%2 == 0 {
		fault("replicas", fmt.Sprintf("is %d", f.Replicas), "use 1, 3 or 5, at most the number of hub servers")
	}
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
	switch {
	case e.NKey != "" && (e.User != "" || e.Password != ""):
		fault("nkey", "is set beside user or password", "give one of the two")
	case e.NKey == "" && e.Password == "":
		fault("password", "is missing", "give a password (a bcrypt hash: `nats server passwd`) or an nkey")
	}
	names := map[string]bool{}
	for i, s := range e.Streams {
		path := fmt.Sprintf("streams[%d].name", i)
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
