package hub

import (
	"bytes"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"

	"github.com/holdfast-edge/holdfast/storage"
)

// Enrolment is what a gateway needs to know of its hub, in one file: its name, where the hub is, which streams go where, its credentials, and
// the authority that signs the hub's certificates. The file serves as credentials (or as an nkey's seed) and as authority as it is.
type Enrolment struct {
	Leaf      string           `json:"leaf"`
	URLs      []string         `json:"urls"`
	Domain    string           `json:"domain"`
	Auth      Auth             `json:"auth"`
	Streams   []EnrolledStream `json:"streams"`
	Commands  bool             `json:"commands,omitempty"`
	Documents bool             `json:"documents,omitempty"`
}

// EnrolledStream is a stream that the hub takes.
type EnrolledStream struct {
	Name      string `json:"name"`
	Mode      Mode   `json:"mode"`
	HubStream string `json:"hub_stream"`
}

const enrolmentMark = "# holdfast enrolment "

// encode returns the file.
func (e Enrolment) encode(credentials, ca []byte) ([]byte, error) {
	head, err := json.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("write enrolment: %w", err)
	}
	var b bytes.Buffer
	b.WriteString(enrolmentMark)
	b.Write(head)
	b.WriteString("\n# A secret of this gateway: holdfast init -enrolment FILE writes its configuration.\n")
	b.Write(credentials)
	b.WriteByte('\n')
	b.Write(ca)
	return b.Bytes(), nil
}

// ParseEnrolment reads the file that enrolling a leaf has written. hasCA says that it names the hub's authority.
func ParseEnrolment(data []byte) (e Enrolment, hasCA bool, err error) {
	line, rest, _ := bytes.Cut(data, []byte("\n"))
	text, ok := bytes.CutPrefix(line, []byte(enrolmentMark))
	if !ok {
		return Enrolment{}, false, errors.New("it is not the file of an enrolment, which begins with " + enrolmentMark)
	}
	if err := json.Unmarshal(text, &e); err != nil {
		return Enrolment{}, false, fmt.Errorf("its first line is damaged: %w", err)
	}
	if !nameForm.MatchString(e.Leaf) || len(e.URLs) == 0 {
		return Enrolment{}, false, errors.New("its first line names no leaf or no hub")
	}
	for block, rest := pem.Decode(rest); block != nil; block, rest = pem.Decode(rest) {
		hasCA = hasCA || block.Type == "CERTIFICATE"
	}
	return e, hasCA, nil
}

// Owner returns the leaf for which a file of credentials was made, empty when it is not the file of an enrolment.
func Owner(file []byte) string {
	e, _, err := ParseEnrolment(file)
	if err != nil {
		return ""
	}
	return e.Leaf
}

// Register says which key belongs to which leaf. It holds no secret.
type Register struct {
	Leaves  map[string]Enrolled `json:"leaves"`
	Revoked []Revoked           `json:"revoked"`
}

// Enrolled is a leaf that is let in.
type Enrolled struct {
	Key    string            `json:"key"` // public user key
	At     time.Time         `json:"at"`
	Shards map[string]string `json:"shards,omitempty"` // hub stream -> the shard that takes this leaf's records
}

// Revoked is a key that is let in no more.
type Revoked struct {
	Leaf string    `json:"leaf"`
	Key  string    `json:"key"`
	At   time.Time `json:"at"`
}

// LoadRegister reads the register of a hub's folder. Without one, nobody is enrolled.
func LoadRegister(dir string) (Register, error) {
	r := Register{Leaves: map[string]Enrolled{}}
	data, err := os.ReadFile(filepath.Join(dir, RegisterFile))
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return r, fmt.Errorf("register of leaves: %w", err)
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return r, fmt.Errorf("register of leaves %s: %w", filepath.Join(dir, RegisterFile), err)
	}
	return r, nil
}

func (r Register) save(dir string) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("register of leaves: %w", err)
	}
	return storage.WriteFile(filepath.Join(dir, RegisterFile), append(data, '\n'), true)
}

// complete gives the leaves of a Spec the keys that the register has for them, and their shards.
func (r Register) complete(spec Spec) Spec {
	spec.Leaves = slices.Clone(spec.Leaves)
	for i, l := range spec.Leaves {
		e, ok := r.Leaves[l.Name]
		if !ok {
			continue
		}
		l.NKey, l.User, l.Password = e.Key, "", ""
		l.Streams = slices.Clone(l.Streams)
		for j, s := range l.Streams {
			if s.HubStream == "" && s.Mode != Mirror {
				s.HubStream = s.Name
			}
			if shard := e.Shards[s.HubStream]; shard != "" {
				s.HubStream = shard
			}
			l.Streams[j] = s
		}
		spec.Leaves[i] = l
	}
	for _, gone := range r.Revoked {
		if _, back := r.Leaves[gone.Leaf]; !back && !slices.Contains(spec.Revoked, gone.Leaf) {
			spec.Revoked = append(spec.Revoked, gone.Leaf)
		}
	}
	spec.Leaves = slices.DeleteFunc(spec.Leaves, func(l Leaf) bool { return slices.Contains(spec.Revoked, l.Name) })
	return spec
}

// Fleet is a hub's folder on the operator's machine, with what its fleet file says.
type Fleet struct {
	Dir  string
	Auth Auth
	URLs []string // where leaves connect
	Spec Spec     // as the fleet file has it: without the keys of the register
}

// Plan returns the plan of the fleet file and the register. Leaves whose hub stream has shards are left out while they are not enrolled.
func (f Fleet) Plan() (Plan, error) {
	r, err := LoadRegister(f.Dir)
	if err != nil {
		return Plan{}, err
	}
	return New(r.complete(f.Spec))
}

// Enrol lets a leaf of the fleet file in, with a key of its own, and returns the path of the file for its gateway. For a leaf that is enrolled
// already the file is written anew with the same key, as after a change of its streams; if it is there no more the leaf has to be revoked first.
func (f Fleet) Enrol(name string, now time.Time) (string, error) {
	k, err := loadKeys(f.Dir, f.Auth)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("%w: %w", errNoKeys, err)
	}
	if err != nil {
		return "", err
	}
	ca, err := os.ReadFile(filepath.Join(f.Dir, AuthorityFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("authority of the hub: %w", err)
	}
	if len(f.URLs) == 0 {
		return "", errors.New("the fleet file names no leaf_urls, where leaves connect")
	}
	r, err := LoadRegister(f.Dir)
	if err != nil {
		return "", err
	}
	path := filepath.Join(f.Dir, LeavesDir, name+".creds")
	old, again := r.Leaves[name]
	user, public, err := leafKey(path, old.Key, again)
	if err != nil {
		return "", fmt.Errorf("enrol %s: %w", name, err)
	}
	if again {
		now = old.At
	}
	r.Leaves[name] = Enrolled{Key: public, At: now, Shards: r.place(f.Spec, name, old.Shards)}
	plan, err := New(r.complete(f.Spec))
	if err != nil {
		return "", err
	}
	at := slices.IndexFunc(plan.spec.Leaves, func(l Leaf) bool { return l.Name == name })
	if at < 0 {
		return "", fmt.Errorf("leaf %s is not in the fleet file; add it below leaves, as - {name: %s}", name, name)
	}
	l, u := plan.spec.Leaves[at], plan.users[at]
	u.Name = name
	creds, err := k.credentials(user, k.edge, u, []string{jwt.ConnectionTypeLeafnode, jwt.ConnectionTypeLeafnodeWS})
	if err != nil {
		return "", err
	}
	e := Enrolment{Leaf: name, URLs: f.URLs, Domain: plan.spec.Domain, Auth: f.Auth, Commands: l.Commands, Documents: l.Documents}
	for _, s := range l.Streams {
		e.Streams = append(e.Streams, EnrolledStream(s))
	}
	data, err := e.encode(creds, ca)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return "", fmt.Errorf("enrol %s: %w", name, err)
	}
	if err := storage.WriteFile(path, data, true); err != nil {
		return "", err
	}
	if err := r.save(f.Dir); err != nil {
		return "", err
	}
	return path, f.writeAccounts(k, plan)
}

// leafKey makes a key for a leaf, or reads the one that it has from its file.
func leafKey(path, old string, again bool) (user nkeys.KeyPair, public string, err error) {
	if again {
		if user, err = loadKey(path); err == nil {
			public, err = user.PublicKey()
		}
		if err != nil || public != old {
			return nil, "", fmt.Errorf("it is enrolled, and %s does not hold its key any more; revoke it first, which cuts its gateway off until that has the new file", path)
		}
		return user, public, nil
	}
	if user, err = nkeys.CreateUser(); err == nil {
		public, err = user.PublicKey()
	}
	return user, public, err
}

// place chooses shards for a leaf: those it has, else those with the fewest leaves.
func (r Register) place(spec Spec, leaf string, has map[string]string) map[string]string {
	shards := map[string]string{}
	for _, l := range spec.Leaves {
		if l.Name != leaf {
			continue
		}
		for _, s := range l.Streams {
			name := s.HubStream
			if name == "" && s.Mode != Mirror {
				name = s.Name
			}
			at := slices.IndexFunc(spec.Streams, func(h HubStream) bool { return h.Name == name && h.Shards > 1 })
			switch {
			case at < 0:
			case has[name] != "":
				shards[name] = has[name]
			default:
				shards[name] = r.emptiest(spec.Streams[at])
			}
		}
	}
	return shards
}

func (r Register) emptiest(s HubStream) string {
	leaves := map[string]int{}
	for _, e := range r.Leaves {
		leaves[e.Shards[s.Name]]++
	}
	best := Shard(s.Name, 1)
	for n := 2; n <= s.Shards; n++ {
		if shard := Shard(s.Name, n); leaves[shard] < leaves[best] {
			best = shard
		}
	}
	return best
}

// Revoke takes a leaf's key out of the register and returns it, and what was revoked before of the same leaf. The servers have to be told: see Push and Reload.
func (f Fleet) Revoke(name string, now time.Time) (Revoked, error) {
	r, err := LoadRegister(f.Dir)
	if err != nil {
		return Revoked{}, err
	}
	e, ok := r.Leaves[name]
	if !ok {
		for _, gone := range r.Revoked {
			if gone.Leaf == name {
				return gone, nil
			}
		}
		return Revoked{}, fmt.Errorf("leaf %s is not enrolled here; `holdfast hub list` shows who is", name)
	}
	gone := Revoked{name, e.Key, now}
	delete(r.Leaves, name)
	r.Revoked = append(r.Revoked, gone)
	if err := r.save(f.Dir); err != nil {
		return Revoked{}, err
	}
	if f.Auth == ByJWT {
		return gone, nil
	}
	k, err := loadKeys(f.Dir, f.Auth)
	if err != nil {
		return gone, err
	}
	plan, err := New(r.complete(f.Spec))
	if err != nil {
		return gone, err
	}
	return gone, f.writeAccounts(k, plan)
}

// writeAccounts writes the nodes' accounts anew at a hub ByConfig.
func (f Fleet) writeAccounts(k keys, p Plan) error {
	if f.Auth == ByJWT {
		return nil
	}
	text, err := k.accounts(Node{}, p)
	if err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(f.Dir, "*", accountsFile))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("no node's %s below %s: %w", accountsFile, f.Dir, errors.Join(err, errNoKeys))
	}
	for _, file := range files {
		if err := storage.WriteFile(file, []byte(text), true); err != nil {
			return err
		}
	}
	return nil
}
