package apps

import (
	"math"
	"testing"
	"time"

	"github.com/holdfast-edge/holdfast/leaf"
)

func TestFlow(t *testing.T) {
	f := flow{window: time.Minute}
	now := time.Unix(1000, 0)
	for _, tt := range []struct {
		after   time.Duration
		streams []leaf.AppStream
		want    uint64
	}{
		{0, []leaf.AppStream{{Name: "A", Last: 1 << 40}}, 0}, // it was there before
		{time.Second, []leaf.AppStream{{Name: "A", Last: 1<<40 + 10}}, 10},
		{time.Second, []leaf.AppStream{{Name: "A", Last: 1<<40 + 15}, {Name: "B", Last: 7}}, 15},
		{time.Second, []leaf.AppStream{{Name: "B", Last: 8}}, 16},
		{time.Second, []leaf.AppStream{{Name: "B", Last: 2}}, 16}, // made anew
		{time.Minute, []leaf.AppStream{{Name: "B", Last: 3}}, 1},
		{2 * time.Minute, nil, 0},
	} {
		now = now.Add(tt.after)
		if got := f.look(now, tt.streams); got != tt.want {
			t.Errorf("%d stored at %v with %+v, want %d", got, now.Unix(), tt.streams, tt.want)
		}
	}
}

func TestTooMany(t *testing.T) {
	const mb = 1 << 20
	for _, tt := range []struct {
		n           uint64
		live, limit int64
		want        bool
	}{
		{idsShort + 1, 50 * mb, 100 * mb, false},
		{idsShort + 1, 90 * mb, 100 * mb, true},
		{idsShort, 99 * mb, 100 * mb, false}, // somebody else has it
		{idsAtMost, 900 * mb, math.MaxInt64, false},
		{idsAtMost + 1, 900 * mb, math.MaxInt64, true},
	} {
		if got := tooMany(tt.n, tt.live, tt.limit); got != tt.want {
			t.Errorf("tooMany(%d, %d, %d) = %v", tt.n, tt.live, tt.limit, got)
		}
	}
	if live, limit := memory(); live < 0 || limit <= 0 {
		t.Errorf("memory() = %d, %d", live, limit)
	}
}
