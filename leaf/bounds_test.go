package leaf

import "testing"

func TestPendingLimit(t *testing.T) {
	const mib = 1 << 20
	for _, tt := range []struct {
		memory      int64
		connections int
		want        int64
	}{
		{512 * mib, 16, 512 * mib / 3 / 16},
		{64 * mib, 16, leastPending},
		{8 << 30, 16, maxPending},
		{8 << 30, 0, maxPending},
	} {
		if got := pendingLimit(tt.memory, tt.connections); got != tt.want {
			t.Errorf("pendingLimit(%d, %d) = %d, want %d", tt.memory, tt.connections, got, tt.want)
		}
	}
	if memoryLimit() <= 0 {
		t.Errorf("memoryLimit() = %d", memoryLimit())
	}
}

func TestBatchLimit(t *testing.T) {
	for payload, want := range map[int64]int{1 << 20: 32, 64 << 10: 512, 1 << 10: 1000, 0: 1000} {
		if got := batchLimit(payload); got != want {
			t.Errorf("batchLimit(%d) = %d, want %d", payload, got, want)
		}
	}
}
