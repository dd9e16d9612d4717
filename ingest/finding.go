package ingest

// Finding is what an examination of a source found out.
type Finding struct {
	What   string `json:"what"`             // what was looked at, in a few words
	Level  Level  `json:"level"`            // how good or bad it is
	Cause  string `json:"cause,omitempty"`  // what was found; empty when there is nothing to say
	Remedy string `json:"remedy,omitempty"` // what to do about it
}

// Level says how much a finding matters.
type Level string

// The levels of a finding.
const (
	Fine    Level = "ok"      // as it should be
	Unsure  Level = "hint"    // it could not be found out, or may matter
	Warning Level = "warning" // data can get lost by it
	Failure Level = "failure" // the source cannot work like this
)
