// Package status folds what the parts of the daemon report into one verdict that a person can act on.
package status

import "time"

// Report is the state of one gateway. Its JSON form is what `holdfast status --json` prints.
type Report struct {
	Leaf    string    `json:"leaf"`
	Version string    `json:"version"`
	Store   string    `json:"store"`
	Epoch   uint64    `json:"epoch"`
	Started time.Time `json:"started"`
	Now     time.Time `json:"now"`
	Clock   string    `json:"clock"`          // synced, unsynced, unknown
	Disk    string    `json:"disk,omitempty"` // what is wrong with its size
	Wear    Wear      `json:"wear"`
	Link    Link      `json:"link"`
	Streams []Stream  `json:"streams"`
	Sources []Source  `json:"sources"`
	Down    []Down    `json:"from_hub,omitempty"` // commands and documents
	Apps    *Apps     `json:"apps,omitempty"`     // absent until the streams are up
	Left    []Left    `json:"left,omitempty"`     // streams that left the configuration with records that the hub does not have
	Damage  []Damage  `json:"damage,omitempty"`   // found in the data directory since the start
	Crash   string    `json:"crash,omitempty"`    // why the run before this one crashed
	Aside   []Aside   `json:"aside,omitempty"`    // stores that were set aside, since starts crashed on them
	// SetAside are acknowledged records that could not go into their streams, and wait for a person.
	SetAside uint64  `json:"set_aside,omitempty"`
	Verdict  Verdict `json:"verdict"`
}

// Wear is what is written to the device under the data directory, in the time that the machine ran since the store was made.
type Wear struct {
	Device    string  `json:"device,omitempty"` // absent if it shows no counters: then only what the gateway wrote is counted
	Observed  float64 `json:"observed_seconds"`
	Written   int64   `json:"written_bytes"`
	PerDay    int64   `json:"bytes_per_day,omitempty"`
	PerRecord int64   `json:"bytes_per_record,omitempty"`
	Endurance int64   `json:"endurance_bytes,omitempty"`
	Life      float64 `json:"life_seconds,omitempty"` // that the endurance lasts from now at the present rate
}

// Link is the state of the way to the hub.
type Link struct {
	State  string    `json:"state"` // off, down, connecting, up, refused, on demand
	Cause  string    `json:"cause,omitempty"`
	Remedy string    `json:"remedy,omitempty"`
	Remote string    `json:"remote,omitempty"`
	Since  time.Time `json:"since"`
	RTT    float64   `json:"rtt_seconds,omitempty"`

	// Bytes with the headers of TCP and IP, by the gateway's clock in UTC.
	SentToday     int64 `json:"sent_today_bytes"`
	ReceivedToday int64 `json:"received_today_bytes"`
	SentMonth     int64 `json:"sent_month_bytes"`
	ReceivedMonth int64 `json:"received_month_bytes"`
}

// OnDemand is the state of a link that is down because nothing asks for it.
const OnDemand = "on demand"

// Stream is one captured stream: stored = forwarded + waiting + dropped.
type Stream struct {
	Name      string            `json:"name"`
	Mode      string            `json:"mode"` // source, mirror, none
	State     string            `json:"state"`
	Cause     string            `json:"cause,omitempty"`
	Remedy    string            `json:"remedy,omitempty"`
	Since     time.Time         `json:"since,omitzero"`               // when State was entered
	Error     string            `json:"error,omitempty"`              // of the store: writes fail
	Waits     string            `json:"in_journal_because,omitempty"` // records are taken, and wait in the journal
	Full      bool              `json:"full,omitempty"`
	Former    string            `json:"waits_as,omitempty"`      // former name of the leaf under which some of what waits was captured
	Wrong     bool              `json:"account_wrong,omitempty"` // stored is not forwarded + waiting + dropped
	Stored    uint64            `json:"stored"`
	Forwarded uint64            `json:"forwarded"`
	Waiting   uint64            `json:"waiting"`
	Sent      uint64            `json:"on_the_way,omitempty"` // of those waiting, sent and not yet acknowledged by the hub
	Dropped   map[string]uint64 `json:"dropped,omitempty"`    // by reason
	Records   uint64            `json:"records"`              // kept on this gateway
	Bytes     uint64            `json:"bytes"`
	MaxBytes  int64             `json:"max_bytes,omitempty"`
	Oldest    time.Time         `json:"oldest_waiting,omitzero"`
	Rate      float64           `json:"records_per_second"`
	ETA       float64           `json:"eta_seconds,omitempty"` // until nothing waits at the present rate
}

// BeforeStart stands in the place of the reasons for which earlier runs rejected messages: those are not kept.
const BeforeStart = "before the start"

// Source is one configured input: received = stored + rejected.
type Source struct {
	Name     string            `json:"name"`
	Into     string            `json:"into"`
	State    string            `json:"state"`
	Cause    string            `json:"cause,omitempty"`
	Remedy   string            `json:"remedy,omitempty"`
	Since    time.Time         `json:"since,omitzero"`
	Received uint64            `json:"received"`
	Stored   uint64            `json:"stored"`
	Rejected map[string]uint64 `json:"rejected,omitempty"` // by reason
	Last     time.Time         `json:"last_record,omitzero"`
}

// Down is a stream that the gateway takes from the hub.
type Down struct {
	Name     string    `json:"name"`  // COMMANDS, KV_DOCUMENTS
	State    string    `json:"state"` // taking, waiting for the link, not taking
	Cause    string    `json:"cause,omitempty"`
	Remedy   string    `json:"remedy,omitempty"`
	Received uint64    `json:"received"`            // number in the hub stream of the newest message that is on flash here
	Behind   uint64    `json:"at_hub"`              // that the hub has for this gateway beyond, as it said last
	Heard    time.Time `json:"last_heard,omitzero"` // from the hub's stream
}

// Left is a stream that is not configured any more and holds records that the hub does not have.
type Left struct {
	Name    string `json:"name"`
	Records uint64 `json:"records"`
}

// Damage is something in the data directory that was found damaged since the start, and dealt with.
type Damage struct {
	Where   string    `json:"where"` // from the data directory
	Problem string    `json:"problem"`
	Aside   string    `json:"aside,omitempty"` // where what was damaged is kept
	Lost    bool      `json:"lost,omitempty"`  // data of local applications is gone
	At      time.Time `json:"at"`
}

// Aside is a store that was set aside, whole, and is kept until somebody removes it.
type Aside struct {
	Dir string    `json:"dir"`
	Why string    `json:"why"`
	At  time.Time `json:"at"`
}

// Severity orders findings.
type Severity string

// The severities of a finding.
const (
	Problem Severity = "problem" // data is at risk or not being captured: a person must act
	Warning Severity = "warning" // will matter if it lasts
	Note    Severity = "note"    // worth knowing
)

// Finding is one thing that is not as it should be.
type Finding struct {
	Severity Severity `json:"severity"`
	Where    string   `json:"where"`
	What     string   `json:"what"`
	Remedy   string   `json:"remedy,omitempty"`
}

// Verdict is the answer to the questions people ask first.
type Verdict struct {
	Safe     bool      `json:"safe"` // every acknowledged record is in its stream or at the hub, and new ones can be stored; what local applications store is in AppsLost
	Sentence string    `json:"sentence"`
	Waiting  uint64    `json:"waiting"`
	Sent     uint64    `json:"on_the_way,omitempty"`
	Lost     uint64    `json:"lost,omitempty"`      // dropped or damaged before the hub had them, since the store was made
	SetAside uint64    `json:"set_aside,omitempty"` // acknowledged and in no stream
	Oldest   time.Time `json:"oldest_waiting,omitzero"`
	ETA      float64   `json:"eta_seconds,omitempty"`
	AppsLost int       `json:"applications_lost,omitempty"` // damages that took data of local applications, since the start
	Findings []Finding `json:"findings"`

	blocked bool // new data cannot be stored
}
