package storage

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"github.com/holdfast-edge/holdfast/storage/journal"
)

// Defaults of the configuration; each is stated only here.
const (
	defaultBudget      = 4 << 30
	defaultReserveFree = 256 << 20
	defaultJournal     = journal.DefaultSegments * journal.DefaultSegmentBytes
	defaultMaxRecords  = 1024
	defaultMaxDelay    = 5 * time.Millisecond
	defaultStreamBytes = 1 << 30
	defaultMsgSize     = 64 << 10
	defaultPriority    = 5
	defaultForwarded   = 7 * 24 * time.Hour
)

// Bounds that keep a configuration inside what the server was measured with.
const (
	maxGroupRecords = 4096       // the server queues 10,000 publishes per stream before it drops them
	maxGroupDelay   = time.Hour  // a device waits that long for its acknowledgement
	maxRecordSize   = 1008 << 10 // with its headers below 1 MiB, the max_payload that servers have unless told otherwise, the hub's too
	maxPayload      = 1 << 20    // the server's
	maxPriority     = 9
	maxTokenLength  = 64 // leaf, stream and source names are subject tokens and file names
)

// What a stream does when it has no room and nothing that the hub holds can go.
const (
	DropOldest = "drop-oldest" // remove the oldest unsent records and leave a gap record
	Refuse     = "refuse"      // push back to the device with ErrFull
)

// Config is the storage section of the configuration.
type Config struct {
	Budget        int64   `yaml:"budget" unit:"bytes" doc:"what all streams together may take on disk"`
	ReserveFree   int64   `yaml:"reserve_free" unit:"bytes" doc:"what stays free on the file system for everybody else"`
	Endurance     int64   `yaml:"endurance" unit:"bytes" doc:"what the card or disk can take in its life, by its data sheet (TBW), to tell how long it will last; 0: not known"`
	Key           string  `yaml:"key" doc:"file with a key: everything in the data directory is encrypted with it; only a new store takes one; empty: not encrypted"`
	Mount         string  `yaml:"mount" doc:"where a file system of its own has to be mounted for leaf.data, as /var/lib/holdfast; without it nothing is captured, and the state says so; empty: wherever leaf.data is"`
	AllowVolatile bool    `yaml:"allow_volatile" doc:"accept a file system that loses acknowledged records in a power cut"`
	Commit        Commit  `yaml:"commit" doc:"how records share one flush"`
	Journal       Journal `yaml:"journal" doc:"where records are safe before their streams have them"`
}

// Journal is the ring in front of the streams.
type Journal struct {
	Size int64 `yaml:"size" unit:"bytes" doc:"what the journal takes on disk, all at once and for good: so much is captured while the streams take nothing"`
}

// Commit says how many records share one flush. See Append for what the two mean to a caller.
type Commit struct {
	MaxRecords int           `yaml:"max_records" doc:"a group of so many records is synced at once"`
	MaxDelay   time.Duration `yaml:"max_delay" doc:"how long a record may wait for records of other sources to share its flush"`
}

// SetDefaults fills in what a configuration that says nothing means.
func (c *Config) SetDefaults() {
	c.Budget = defaultBudget
	c.ReserveFree = defaultReserveFree
	c.Commit = Commit{MaxRecords: defaultMaxRecords, MaxDelay: defaultMaxDelay}
	c.Journal = Journal{Size: defaultJournal}
}

// Validate reports impossible values. Key is relative to the section.
func (c Config) Validate(fault func(key, problem, remedy string)) {
	if c.Budget <= 0 {
		fault("budget", "is not above zero", "say how much of the disk the streams may take, such as 4GiB")
	}
	if c.ReserveFree < 0 {
		fault("reserve_free", "is negative", "say how much of the disk stays free, such as 256MiB")
	}
	if c.Endurance < 0 {
		fault("endurance", "is negative", "give what the card or disk can take, such as 30TB, or leave it out")
	}
	if c.Mount != "" && !filepath.IsAbs(c.Mount) {
		fault("mount", "is not an absolute path", "give the mount point, such as /var/lib/holdfast, or leave it out")
	}
	if n := c.Journal.Size; n < minJournal || n > maxJournal {
		fault("journal.size", fmt.Sprintf("is %d", n), "choose 1MiB to 4GiB")
	}
	if n := c.Commit.MaxRecords; n < 1 || n > maxGroupRecords {
		fault("commit.max_records", fmt.Sprintf("is %d", n), fmt.Sprintf("choose 1 to %d", maxGroupRecords))
	}
	if d := c.Commit.MaxDelay; d < 0 || d > maxGroupDelay {
		fault("commit.max_delay", "is "+d.String(), "choose 0s to "+maxGroupDelay.String())
	}
}

// StreamConfig is the storage half of one entry of the streams section.
type StreamConfig struct {
	Name          string        `yaml:"name" doc:"a subject token: letters, digits, - and _"`
	MaxBytes      int64         `yaml:"max_bytes" unit:"bytes" doc:"what the stream may take on disk"`
	MaxMsgs       int64         `yaml:"max_msgs" doc:"how many records it may hold; 0: as many as fit"`
	MaxMsgSize    int64         `yaml:"max_msg_size" unit:"bytes" doc:"the largest record that is taken"`
	MaxAge        time.Duration `yaml:"max_age" doc:"how long records are kept here at most once the hub has them; 0: for ever"`
	ExpireUnsent  bool          `yaml:"expire_unsent" doc:"let max_age remove records, too, that the hub does not have yet; a gap record tells of them"`
	KeepForwarded time.Duration `yaml:"keep_forwarded" doc:"how long records stay readable here after the hub has them, if there is room"`
	WhenFull      string        `yaml:"when_full" enum:"drop-oldest,refuse" doc:"what gives way when only unsent records are left"`
	Priority      int           `yaml:"priority" doc:"when the budget or the disk is short, streams give way in this order, the lowest first: 0 to 9"`
}

// SetDefaults fills in what an entry that says nothing means.
func (c *StreamConfig) SetDefaults() {
	c.MaxBytes = defaultStreamBytes
	c.MaxMsgSize = defaultMsgSize
	c.KeepForwarded = defaultForwarded
	c.WhenFull = DropOldest
	c.Priority = defaultPriority
}

// Validate reports impossible values. Key is relative to the entry.
func (c StreamConfig) Validate(fault func(key, problem, remedy string)) {
	if problem := tokenProblem(c.Name); problem != "" {
		fault("name", problem, "use letters, digits, - and _, beginning with a letter or digit")
	}
	if c.MaxMsgSize < 1 || c.MaxMsgSize > maxRecordSize {
		fault("max_msg_size", fmt.Sprintf("is %d", c.MaxMsgSize), "choose 1 byte to 1008KiB: with its headers a record must fit into the 1MiB that NATS servers take")
	}
	if c.MaxBytes < minStreamBytes {
		fault("max_bytes", fmt.Sprintf("is %d", c.MaxBytes), fmt.Sprintf("choose at least %d (1MiB)", minStreamBytes))
	} else if c.MaxMsgSize > 0 && c.MaxBytes/4 < c.MaxMsgSize {
		fault("max_bytes", "has no room for four records of max_msg_size", "raise max_bytes or lower max_msg_size")
	}
	if c.MaxMsgs < 0 {
		fault("max_msgs", "is negative", "leave it out to hold as many records as fit into max_bytes")
	}
	if c.KeepForwarded < 0 {
		fault("keep_forwarded", "is negative", "use 0s to remove records as soon as room is wanted")
	}
	if c.MaxAge < 0 {
		fault("max_age", "is negative", "leave it out to keep records for keep_forwarded")
	}
	if c.ExpireUnsent && c.MaxAge == 0 {
		fault("expire_unsent", "needs an age", "set max_age, such as 30d, or leave expire_unsent out")
	}
	if c.Priority < 0 || c.Priority > maxPriority {
		fault("priority", fmt.Sprintf("is %d", c.Priority), fmt.Sprintf("choose 0 to %d; what matters most has the highest", maxPriority))
	}
	if c.WhenFull != DropOldest && c.WhenFull != Refuse {
		fault("when_full", fmt.Sprintf("is %q", c.WhenFull), "choose drop-oldest or refuse")
	}
}

// minStreamBytes is the smallest stream: room for a few records, and for the gap records that tell of the others.
const minStreamBytes = 1 << 20

// Options are what Open needs.
type Options struct {
	Leaf    string                   // name of this gateway, a subject token
	Dir     string                   // the data directory; the server's JetStream lives in its folder jetstream
	Config                           // a zero Budget means the defaults of it and of ReserveFree, a zero Commit or Journal theirs
	Streams []StreamConfig           // captured streams; zero MaxBytes, MaxMsgSize and WhenFull mean the defaults
	Sources map[string]string        // source name to the stream it goes into
	TTL     map[string]time.Duration // source name to how long its records are worth sending; none: for ever. All sources of a stream have the same
	Log     *slog.Logger             // nil discards

	Unbound  bool // the limits are nobody's, as of a store that is only looked after: the disk is not held against them
	Unpacked bool // the streams are to be made on blocks that lie there without metadata, as those of a backup
}

// made is the level of what is said of streams that are made on blocks which lie there.
func (o Options) made() slog.Level {
	if o.Unpacked {
		return slog.LevelInfo
	}
	return slog.LevelWarn
}

// withDefaults returns o with zero values replaced, or an error that names the first impossible value. The configuration was checked with
// lines and keys before; this guards callers that build Options by hand.
func (o Options) withDefaults() (Options, error) {
	var d Config
	d.SetDefaults()
	if o.Budget == 0 {
		o.Budget, o.ReserveFree = d.Budget, d.ReserveFree
	}
	o.Commit = orDefault(o.Commit, d.Commit)
	o.Journal = orDefault(o.Journal, Journal{Size: max(min(d.Journal.Size, o.Budget/4), minJournal)})
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	var first error
	report := func(where string) func(key, problem, remedy string) {
		return func(key, problem, remedy string) {
			if first == nil {
				first = fmt.Errorf("open store: %s%s %s: %s", where, key, problem, remedy)
			}
		}
	}
	o.Config.Validate(report("storage."))
	if problem := tokenProblem(o.Leaf); problem != "" {
		report("leaf ")("name", problem, "use letters, digits, - and _")
	}
	streams := make([]StreamConfig, len(o.Streams))
	seen := map[string]bool{}
	for i, c := range o.Streams {
		var d StreamConfig
		d.SetDefaults()
		c.MaxBytes = orDefault(c.MaxBytes, d.MaxBytes)
		c.MaxMsgSize = orDefault(c.MaxMsgSize, d.MaxMsgSize)
		c.WhenFull = orDefault(c.WhenFull, d.WhenFull)
		c.Validate(report("stream " + c.Name + ": "))
		if seen[c.Name] {
			report("stream ")("name", c.Name+" is there twice", "rename one")
		}
		seen[c.Name] = true
		streams[i] = c
	}
	o.Streams = streams
	for name, stream := range o.Sources {
		if problem := tokenProblem(name); problem != "" {
			report("source ")(name, problem, "use letters, digits, - and _, beginning with a letter or digit")
		}
		if !seen[stream] {
			report("source ")(name, "goes into stream "+stream+", which is not there", "add the stream or change into")
		}
	}
	return o, first
}

// Bounds of the journal's size.
const (
	minJournal = 1 << 20
	maxJournal = 4 << 30
)

// ring says how the journal is cut into segments: each has room for two of the largest records, or there are fewer of them.
func (o Options) ring(dir string, key []byte) journal.Options {
	const page = 4096
	largest := int64(0)
	for _, c := range o.Streams {
		largest = max(largest, c.MaxMsgSize)
	}
	size := max(o.Journal.Size/journal.DefaultSegments, 2*(largest+maxHeaders+maxSubject+page))
	size = min(size, journal.MaxSegmentBytes) / page * page
	return journal.Options{Dir: dir, SegmentBytes: size, Segments: int(max(o.Journal.Size/size, 4)), Reserve: 1, Key: key}
}

func orDefault[T comparable](v, d T) T {
	var zero T
	if v == zero {
		return d
	}
	return v
}

// tokenProblem says why a name cannot be a leaf, stream or source, or nothing. A leading underscore is kept for records of our own.
func tokenProblem(name string) string {
	switch {
	case name == "":
		return "is missing"
	case len(name) > maxTokenLength:
		return fmt.Sprintf("is longer than %d characters", maxTokenLength)
	case name[0] == '_' || name[0] == '-':
		return fmt.Sprintf("%q begins with %q", name, name[:1])
	}
	for _, r := range name {
		if !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_", r) {
			return fmt.Sprintf("%q contains %q", name, r)
		}
	}
	return ""
}
