package status

import (
	"strings"
	"testing"
	"time"
)

func TestFoldApps(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	for _, tt := range []struct {
		name string
		apps Apps
		want string // of the only finding: its severity and a part of what it says
	}{
		{name: "well", apps: Apps{Streams: 3, Bytes: 100, MaxBytes: 1000, Link: "up"}},
		{"not made", Apps{Failed: []string{"create stream X; the server is against it"}}, "problem are without what is declared for them: create stream X"},
		{"held", Apps{Held: "too many subjects"}, "problem can store nothing more: too many"},
		{"disk limit", Apps{Bytes: 999, MaxBytes: 1000}, "warning have stored 999 B of 1000 B"},
		{"stream full", Apps{Full: []string{"X: it holds max_msgs, 3"}}, "warning have a stream that takes nothing more, X"},
		{"given up", Apps{GaveUp: 1, GaveUpNewest: "X.c"}, "warning 1 message was delivered as often as they may be, and never acknowledged, the newest of X.c"},
		{"user", Apps{Limited: map[string]uint64{"panel": 2}}, "warning have a user, panel,"},
		{"slow", Apps{SlowConsumers: 2}, "note 2 connections were closed"},
		{"link just lost", Apps{Link: "down", LinkSince: now.Add(-time.Second)}, ""},
		{"link lost", Apps{Link: "down", LinkSince: now.Add(-time.Hour)}, "warning have no link of their own to the hub for 60 min"},
	} {
		r := Report{Now: now, Apps: &tt.apps, Clock: "synced", Link: Link{State: "off"}}
		v := Fold(r)
		got := ""
		for _, f := range v.Findings {
			got += string(f.Severity) + " " + f.What
		}
		if (tt.want == "") != (got == "") || !strings.HasPrefix(got, tt.want) {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
		if !v.Safe {
			t.Errorf("%s: what applications do made the data unsafe", tt.name)
		}
	}
	var b strings.Builder
	if err := Text(&b, Report{Apps: &Apps{Streams: 2, Bytes: 2048, MaxBytes: 4096, Subjects: 1234, Link: "down"}}); err != nil {
		t.Fatal(err)
	}
	if want := "local applications have 2 streams with 2.0 KiB of 4.0 KiB, and 1,234 subjects; their link is down\n"; !strings.Contains(b.String(), want) {
		t.Errorf("the text has no line %q:\n%s", want, b.String())
	}
}
