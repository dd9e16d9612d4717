package status

import (
	"strings"
	"testing"
	"time"
)

var now = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// healthy is a gateway with nothing wrong and nothing waiting.
func healthy() Report {
	return Report{
		Leaf: "pump-07", Now: now, Started: now.Add(-time.Hour), Clock: "synced",
		Link:    Link{State: "up", Since: now.Add(-time.Hour)},
		Streams: []Stream{{Name: "SENSORS", Mode: "source", State: "live", Stored: 1200, Forwarded: 1200}},
		Sources: []Source{{Name: "gps", Into: "SENSORS", State: "running", Received: 1200, Stored: 1200}},
	}
}

func TestFold(t *testing.T) {
	tests := []struct {
		name     string
		change   func(*Report)
		safe     bool
		sentence string // a part of it
		finding  string // "severity where what" of the first finding, a prefix; empty: none
	}{
		{"healthy", func(*Report) {}, true, "all of it is at the hub", ""},
		{"link down with a backlog", func(r *Report) {
			r.Link = Link{State: "down", Cause: "no route to host", Since: now.Add(-5 * time.Minute)}
			r.Streams[0].Waiting, r.Streams[0].Oldest = 1204, now.Add(-5*time.Minute)
		}, true, "1,204 records wait for the hub, the oldest for 5 min; it goes there when the link is back", "warning link down for 5 min: no route to host"},
		{"catching up", func(r *Report) {
			r.Streams[0].Waiting, r.Streams[0].ETA, r.Streams[0].State = 100, 12, "catching-up"
		}, true, "there in 12 s", ""},
		{"on the way", func(r *Report) { r.Streams[0].Waiting, r.Streams[0].Sent = 30, 30 }, true, "all but 30 records on the way are at the hub", ""},
		{"one record", func(r *Report) { r.Streams[0].Waiting = 1 }, true, "1 record waits", ""},
		{"stream full", func(r *Report) { r.Streams[0].Full = true }, false, "CANNOT BE STORED", "problem stream SENSORS is full"},
		{"store failing", func(r *Report) { r.Streams[0].Error = "input/output error" }, false, "CANNOT BE STORED", "problem stream SENSORS cannot be written: input/output error"},
		{"renamed", func(r *Report) { r.Streams[0].Former, r.Streams[0].Waiting = "old", 3 }, true, "3 records", "problem stream SENSORS records that were captured when this leaf had the name old wait"},
		{"dropped", func(r *Report) { r.Streams[0].Dropped = map[string]uint64{"drop-oldest": 7} }, false, "7 acknowledged records were LOST; what else was acknowledged is on flash, and all of it is at the hub", "warning stream SENSORS 7 records dropped"},
		{"damaged", func(r *Report) { r.Streams[0].Dropped = map[string]uint64{"damage": 1} }, false, "1 acknowledged record was LOST", "problem stream SENSORS 1 record lost (damage 1)"},
		{"lost, and new ones are refused", func(r *Report) {
			r.Streams[0].Dropped, r.Streams[0].Full = map[string]uint64{"damage": 1}, true
		}, false, "1 acknowledged record was LOST, and NEW DATA CANNOT BE STORED", "problem stream SENSORS is full"},
		{"set aside", func(r *Report) {
			r.SetAside, r.Damage = 20, []Damage{{Where: "store/quarantine/SENSORS", Problem: "acknowledged records could not go into their stream: in an earlier run"}}
			r.Streams[0].Waiting = 5
		}, false, "20 acknowledged records are SET ASIDE; what else was acknowledged is on flash; 5 records wait for the hub", "problem store/quarantine holds 20 acknowledged records that could not go into their streams"},
		{"lost, and set aside", func(r *Report) {
			r.SetAside, r.Streams[0].Dropped = 1, map[string]uint64{"damage": 2, "refused": 1}
		}, false, "2 acknowledged records were LOST and 1 acknowledged record is SET ASIDE; what else", "problem stream SENSORS 2 records lost (damage 2)"},
		{"put back", func(r *Report) { r.Streams[0].Dropped = map[string]uint64{"refused": 1} }, true, "", "warning stream SENSORS 1 record could not go into it"},
		{"a record of the store's own set aside", func(r *Report) { r.Damage = []Damage{{Where: "store/quarantine/SENSORS", Problem: "x"}} }, true, "", "warning store/quarantine/SENSORS x"},
		{"left", func(r *Report) { r.Left = []Left{{"OLD", 3}} }, true, "", "warning stream OLD is not in the configuration any more, and holds 3 records that the hub does not have"},
		{"damage found", func(r *Report) {
			r.Damage = []Damage{{Where: "store/epoch", Problem: "not a file", Aside: "store/damaged/store-epoch", At: now}}
		}, true, "", "warning store/epoch not a file; kept as store/damaged/store-epoch"},
		{"data of local applications lost behind other damage", func(r *Report) {
			r.Damage = []Damage{{Where: "a"}, {Where: "b"}, {Where: "c"}, {Where: "d"}, {Where: "jetstream/APP/streams/KV_state/msgs/1.blk", Problem: "block damaged", Lost: true}}
		}, true, "DATA OF LOCAL APPLICATIONS WAS LOST", "problem jetstream/APP/streams/KV_state/msgs/1.blk data of local applications is LOST: block damaged"},
		{"store set aside", func(r *Report) {
			r.Aside = []Aside{{Dir: "/var/lib/holdfast/aside/1", Why: "5 starts in a row crashed: panic: x", At: now}}
		}, true, "", "problem data directory the store of before"},
		{"crashed before", func(r *Report) { r.Crash = "panic: x" }, true, "", "warning daemon the run before this one crashed: panic: x"},
		{"full says so, not that the disk is at fault", func(r *Report) { r.Streams[0].Full, r.Streams[0].Error = true, "store is full" }, false, "", "problem stream SENSORS is full"},
		{"hub without JetStream", func(r *Report) {
			r.Streams[0].State, r.Streams[0].Cause, r.Streams[0].Since = "handshake", "no JetStream answers", now.Add(-time.Minute)
		}, true, "", "problem stream SENSORS is not forwarded: no JetStream answers"},
		{"hub stream missing", func(r *Report) {
			r.Streams[0].State, r.Streams[0].Cause = "hub stream missing", "hub stream SENSORS does not answer"
		}, true, "", "problem stream SENSORS hub stream missing: hub stream SENSORS does not answer"},
		{"handshake that has just begun", func(r *Report) {
			r.Streams[0].State, r.Streams[0].Cause, r.Streams[0].Since = "handshake", "watching", now.Add(-time.Second)
		}, true, "", ""},
		{"rejects that were acknowledged", func(r *Report) { r.Sources[0].Rejected = map[string]uint64{"payload too large": 2} }, true, "", "warning source gps 2 records refused: payload too large"},
		{"a message on a topic of others", func(r *Report) { r.Sources[0].Rejected = map[string]uint64{"not allowed": 1} }, true, "", "warning source gps 1 record refused: not allowed"},
		{"noise on a line", func(r *Report) { r.Sources[0].Rejected = map[string]uint64{"bad checksum": 2} }, true, "", ""},
		{"lost at the hub", func(r *Report) { r.Streams[0].Dropped = map[string]uint64{"not-kept": 3} }, false, "3 acknowledged records were LOST", "problem stream SENSORS 3 records that the hub had are there no more"},
		{"same name twice", func(r *Report) {
			r.Streams[0].State, r.Streams[0].Cause = "same name twice", "another store"
		}, true, "", "problem stream SENSORS same name twice: another store"},
		{"device away", func(r *Report) { r.Sources[0].State, r.Sources[0].Cause = "waiting", "no such device" }, true, "", "warning source gps waiting: no such device"},
		{"device denied", func(r *Report) { r.Sources[0].State = "denied" }, true, "", "problem source gps denied"},
		{"source blocked", func(r *Report) { r.Sources[0].State = "blocked" }, false, "", "problem source gps blocked"},
		{"problems come first", func(r *Report) {
			r.Sources[0].State = "silent"
			r.Link = Link{State: "refused", Cause: "credentials"}
		}, true, "", "problem link refused: credentials"},
		{"clock unsynced", func(r *Report) { r.Clock = "unsynced" }, true, "", "note clock"},
		{"no hub", func(r *Report) { r.Link.State = "off"; r.Streams[0].Waiting = 5 }, true, "no hub is configured", ""},
		{"local stream only", func(r *Report) { r.Streams[0].Mode, r.Streams[0].State = "none", "" }, true, "no hub is configured", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := healthy()
			tt.change(&r)
			v := Fold(r)
			if strings.Contains(v.Sentence, "safe") != (v.Safe && v.AppsLost == 0) {
				t.Errorf("Safe = %v, and the sentence is %q", v.Safe, v.Sentence)
			}
			for _, f := range v.Findings {
				if f.Where == quarantine && !strings.Contains(f.Remedy, "repair --put-back") {
					t.Errorf("the remedy of what is set aside is %q", f.Remedy)
				}
			}
			if v.Safe != tt.safe {
				t.Errorf("Safe = %v, want %v", v.Safe, tt.safe)
			}
			if !strings.Contains(v.Sentence, tt.sentence) {
				t.Errorf("Sentence = %q, want it to contain %q", v.Sentence, tt.sentence)
			}
			got := ""
			if len(v.Findings) > 0 {
				f := v.Findings[0]
				got = string(f.Severity) + " " + f.Where + " " + f.What
			}
			if !strings.HasPrefix(got, tt.finding) || (tt.finding == "" && got != "") {
				t.Errorf("first finding = %q, want %q", got, tt.finding)
			}
		})
	}
}

func TestTextNamesTheRemedy(t *testing.T) {
	r := healthy()
	r.Sources[0].State, r.Sources[0].Cause, r.Sources[0].Remedy = "denied", "permission denied on /dev/ttyUSB0", "add the user to group dialout"
	r.Verdict = Fold(r)
	var b strings.Builder
	if err := Text(&b, r); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"pump-07: Your data is safe", "problem  source gps denied: permission denied", "→ add the user to group dialout", "SENSORS", "1,200"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("Text lacks %q:\n%s", want, b.String())
		}
	}
	if line := Line(r); strings.Contains(line, "\n") || !strings.Contains(line, "denied") {
		t.Errorf("Line = %q, want one line that names the problem", line)
	}
}

func TestSpan(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "under a second", 90 * time.Second: "90 s", 3 * time.Minute: "3 min",
		25*time.Hour + 5*time.Minute: "25 h 5 min", 72 * time.Hour: "3 days",
	} {
		if got := span(d); got != want {
			t.Errorf("span(%v) = %q, want %q", d, got, want)
		}
	}
}
