package powercut

import (
	"testing"
)

// TestCommitFlushes counts what one commit of one device costs the card: a commit of the file system's journal, which is two flushes, as for an append to a
// plain file. The block files' data has to be written out before the syncfs for that.
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
	if perCommit > 2.5 {
		t.Errorf("a commit costs %.2f flushes, want 2", perCommit)
	}
}
