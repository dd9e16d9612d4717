package powercut

import (
	"testing"
)

// TestCommitFlushes counts what one commit of one device costs the card: one flush, and now and then a checkpoint.
func TestCommitFlushes(t *testing.T) {
	need(t)
	r := newRig(t, nil, "leaf", 1, func(s *spec) { s.Devices = s.Devices[:1] })
	const warm, commits = 50, 200
	r.life.until("the first commits", func() bool { return r.life.appends >= warm })
	before, err := r.disk.Stats()
	if err != nil {
		t.Fatal(err)
	}
	r.life.until("commits", func() bool { return r.life.appends >= warm+commits })
	after, err := r.disk.Stats()
	if err != nil {
		t.Fatal(err)
	}
	perCommit := float64(after.Flushes-before.Flushes) / commits
	t.Logf("%.2f flushes and %d bytes per commit", perCommit, (after.Bytes-before.Bytes)/commits)
	if perCommit > 1.3 {
		t.Errorf("a commit costs %.2f flushes, want 1", perCommit)
	}
}
