package port

import "testing"

func TestPick(t *testing.T) {
	ports, err := Pick(20)
	if err != nil {
		t.Fatal(err)
	}
	seen := make(map[int]bool)
	for _, p := range ports {
		if seen[p] || p < lowest || p >= highest {
			t.Errorf("Pick gave %d: want different ports from %d to %d", p, lowest, highest)
		}
		seen[p] = true
	}
}
