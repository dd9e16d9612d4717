package poll

import (
	"context"
	"testing"
	"time"
)

func TestWait(t *testing.T) {
	looks := 0
	if !Wait(context.Background(), 10*time.Second, func() bool { looks++; return looks == 3 }) || looks != 3 {
		t.Errorf("Wait looked %d times, want true at the 3rd", looks)
	}
	if Wait(context.Background(), 3*Interval, func() bool { return false }) {
		t.Error("Wait(never) = true")
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	begun := time.Now()
	if Wait(ctx, time.Minute, func() bool { return false }) || time.Since(begun) > 10*time.Second {
		t.Error("Wait did not end with its context")
	}
}
