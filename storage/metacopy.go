package storage

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/storage/blocks"
)

// Files of a stream's and a consumer's directory, as nats-server 2.15 writes them (server/filestore.go).
const (
	serverMeta      = "meta.inf" // configuration, JSON
	serverMetaSum   = "meta.sum" // hex of HighwayHash-64 of serverMeta, keyed by the SHA-256 of the stream's name
	serverMetaKey   = "meta.key" // there if the files beside it are encrypted
	serverConsumers = "obs"
	serverConsumer  = "o.dat" // a consumer's positions, without a checksum
)

// metaCopies keeps copies of the streams' metadata, which the server writes without a flush and without which it forgets a stream at its start,
// and takes out of the way what would keep the server from starting. The server must not run during mend; keep may run beside it.
type metaCopies struct {
	streams string // directory of the account's streams: <store>/jetstream/<account>/streams
	copies  string // directory of the copies, one file per stream
	aside   string // where damaged files go; on the same file system
}

// mending says what mend did about one damaged file or directory.
type mending struct {
	Stream   string
	Path     string // what was damaged
	Why      string
	Aside    string // where it is now; empty if there was nothing to keep
	Restored bool   // put back from the copy; otherwise the store makes the stream or consumer anew, which keeps the stream's records
}

// keep copies the metadata of the streams aside, each unless its copy says the same already. To be called after the streams were made or changed;
// the copies are on flash on return. A stream whose metadata is not whole on disk is an error: the server writes both files before it answers.
func (m metaCopies) keep(streams ...string) error {
	if err := os.MkdirAll(m.copies, 0o700); err != nil {
		return fmt.Errorf("copy stream metadata: %w", err)
	}
	for _, name := range streams {
		dir := filepath.Join(m.streams, name)
		meta, err := os.ReadFile(filepath.Join(dir, serverMeta))
		if err != nil {
			return fmt.Errorf("copy metadata of stream %s: %w", name, err)
		}
		sum, err := os.ReadFile(filepath.Join(dir, serverMetaSum))
		if err != nil {
			return fmt.Errorf("copy metadata of stream %s: %w", name, err)
		}
		if string(sum) != blocks.MetaSum(name, meta) {
			return fmt.Errorf("copy metadata of stream %s: %s does not fit %s in %s", name, serverMetaSum, serverMeta, dir)
		}
		want := append(append(sum, '\n'), meta...)
		path := filepath.Join(m.copies, name)
		if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, want) {
			continue
		}
		if err := writeFile(path, want, true); err != nil {
			return fmt.Errorf("copy metadata of stream %s: %w", name, err)
		}
	}
	return nil
}

// copyOf returns a stream's metadata from its copy, nil if there is none or it is damaged too.
func (m metaCopies) copyOf(stream string) []byte {
	raw, err := os.ReadFile(filepath.Join(m.copies, stream))
	if err != nil {
		return nil
	}
	sum, meta, found := bytes.Cut(raw, []byte("\n"))
	if !found || string(sum) != blocks.MetaSum(stream, meta) {
		return nil
	}
	return meta
}

// mend looks at every stream on disk before the server starts: metadata that is missing, empty or damaged is set aside and put back from its copy,
// and consumers with damaged state are set aside whole. It reports what it did. An error means that the disk would not let it.
func (m metaCopies) mend() ([]mending, error) {
	for _, dir := range []string{m.copies, m.streams} {
		if err := removeTemps(dir); err != nil {
			return nil, err
		}
	}
	dirs, err := os.ReadDir(m.streams)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // a new store
	}
	if err != nil {
		return nil, fmt.Errorf("check stream metadata: %w", err)
	}
	var done []mending
	for _, d := range dirs {
		if !d.IsDir() || strings.HasPrefix(d.Name(), ".") { // the server removes .<name> itself
			continue
		}
		fixed, err := m.mendStream(d.Name())
		done = append(done, fixed...)
		if err != nil {
			return done, fmt.Errorf("mend stream %s: %w", d.Name(), err)
		}
		fixed, err = m.mendConsumers(d.Name())
		done = append(done, fixed...)
		if err != nil {
			return done, fmt.Errorf("mend consumers of stream %s: %w", d.Name(), err)
		}
	}
	return done, nil
}

func (m metaCopies) mendStream(name string) ([]mending, error) {
	dir := filepath.Join(m.streams, name)
	if err := removeTemps(dir); err != nil {
		return nil, err
	}
	why, damaged, err := metaFault(dir, name)
	if err != nil || why == "" {
		return nil, err
	}
	fix := mending{Stream: name, Path: filepath.Join(dir, damaged), Why: why}
	for _, file := range []string{serverMeta, serverMetaSum} {
		to, err := setAside(filepath.Join(dir, file), m.aside, name+"-"+file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if file == damaged {
			fix.Aside = to
		}
	}
	meta := m.copyOf(name)
	if meta == nil {
		return []mending{fix}, nil
	}
	// The sum last: until it is there the server takes the stream for damaged and leaves it alone.
	if err := writeFile(filepath.Join(dir, serverMeta), meta, true); err != nil {
		return nil, err
	}
	if err := writeFile(filepath.Join(dir, serverMetaSum), []byte(blocks.MetaSum(name, meta)), true); err != nil {
		return nil, err
	}
	fix.Restored = true
	return []mending{fix}, nil
}

// metaFault says what is wrong with the metadata in dir, whose checksum is keyed by name, and with which file; nothing if why is empty.
func metaFault(dir, name string) (why, file string, err error) {
	read := func(file string) ([]byte, error) {
		b, err := os.ReadFile(filepath.Join(dir, file))
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		return b, err
	}
	meta, err := read(serverMeta)
	if err != nil {
		return "", "", err
	}
	sum, err := read(serverMetaSum)
	if err != nil {
		return "", "", err
	}
	switch {
	case len(meta) == 0:
		return "missing or empty", serverMeta, nil
	case len(sum) == 0:
		return "missing or empty", serverMetaSum, nil
	case len(sum) != 16:
		return "not a checksum", serverMetaSum, nil
	case string(sum) != blocks.MetaSum(name, meta):
		return "checksum does not fit the content", serverMeta, nil
	}
	return "", "", nil
}

// mendConsumers sets aside the directories of consumers whose metadata or state the server could not read. A wrong count in the state makes the
// server ask for more memory than there is, at every start (nats-server 2.15.3, decodeConsumerState).
func (m metaCopies) mendConsumers(stream string) ([]mending, error) {
	dir := filepath.Join(m.streams, stream, serverConsumers)
	names, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var done []mending
	for _, n := range names {
		path := filepath.Join(dir, n.Name())
		file, why, err := consumerFault(path, stream)
		if err != nil {
			return done, err
		}
		if why == "" {
			continue
		}
		if sum, torn := tornSum(path, stream); torn {
			if err := writeFile(filepath.Join(path, serverMetaSum), []byte(sum), true); err != nil {
				return done, err
			}
			if file, _, err = consumerFault(path, stream); err == nil && file == "" {
				done = append(done, mending{Stream: stream, Path: filepath.Join(path, serverMetaSum), Why: tornText, Restored: true})
				continue
			}
		}
		to, err := setAside(path, m.aside, stream+"-"+n.Name())
		if err != nil {
			return done, err
		}
		done = append(done, mending{Stream: stream, Path: filepath.Join(path, file), Why: why, Aside: to})
	}
	return done, nil
}

const tornText = "older than the metadata beside it, which is whole: the power failed between the two"

// tornSum returns the checksum of a consumer's metadata where a power cut came between the two files, which the server writes one after the other: the sum is
// missing, or older than metadata that is whole and speaks of this consumer. Bytes that went bad leave the times of the files as they were.
func tornSum(dir, stream string) (sum string, torn bool) {
	meta, err := os.ReadFile(filepath.Join(dir, serverMeta))
	if err != nil {
		return "", false
	}
	of, err := os.Stat(filepath.Join(dir, serverMeta))
	if err != nil {
		return "", false
	}
	if was, err := os.Stat(filepath.Join(dir, serverMetaSum)); err == nil && was.Size() > 0 && !of.ModTime().After(was.ModTime()) {
		return "", false
	}
	var consumer struct {
		Created  time.Time
		Name     string
		Direct   bool `json:"direct"`
		Sourcing bool `json:"sourcing"`
		jetstream.ConsumerConfig
	}
	d := json.NewDecoder(bytes.NewReader(meta))
	d.DisallowUnknownFields()
	if err := d.Decode(&consumer); err != nil || d.More() || consumer.Created.IsZero() || consumer.Name != filepath.Base(dir) {
		return "", false
	}
	return blocks.MetaSum(stream+"/"+consumer.Name, meta), true
}

func isTorn(dir, stream string) bool {
	_, torn := tornSum(dir, stream)
	return torn
}

// consumerFault says what is wrong with the directory of a stream's consumer, and with which file; nothing if why is empty. The server does not look at
// the checksum of a consumer's metadata (2.15.3): with one unknown key in it the whole stream stays offline, captured ones too, and it leaves a consumer
// without checksum out.
func consumerFault(dir, stream string) (file, why string, err error) {
	if st, err := os.Stat(dir); err != nil || !st.IsDir() {
		return "", "not a directory", err
	}
	if _, err := os.Stat(filepath.Join(dir, serverMetaKey)); err == nil {
		return "", "", nil // encrypted files carry a checksum that the server checks
	}
	if why, file, err := metaFault(dir, stream+"/"+filepath.Base(dir)); err != nil || why != "" {
		return file, why, err
	}
	state, err := os.ReadFile(filepath.Join(dir, serverConsumer))
	if errors.Is(err, fs.ErrNotExist) {
		return "", "", nil // nothing was delivered yet
	}
	if err != nil {
		return "", "", err
	}
	if !blocks.ConsumerStateReadable(state) {
		return serverConsumer, "damaged", nil
	}
	return "", "", nil
}
