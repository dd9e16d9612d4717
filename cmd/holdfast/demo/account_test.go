package demo

import (
	"testing"

	"github.com/holdfast-edge/holdfast/storage"
)

func record(epoch, seq uint64, data string) Received {
	return Received{storage.ID{Leaf: "l", Store: "s", Source: "gps", Epoch: epoch, Seq: seq}, data}
}

func TestBalance(t *testing.T) {
	sent := []string{"a", "b", "c"}
	tests := []struct {
		name string
		got  []Received
		want Account
	}{
		{"all there", []Received{record(1, 1, "a"), record(1, 2, "b"), record(2, 1, "c")}, Account{AtHub: 3}},
		{"missing", []Received{record(1, 1, "a"), record(1, 3, "c")}, Account{AtHub: 2, Missing: 1, Holes: 1}},
		{"double", []Received{record(1, 1, "a"), record(1, 1, "a"), record(1, 2, "b"), record(1, 3, "c")}, Account{AtHub: 3, Double: 1}},
		{"redelivered", []Received{record(1, 1, "a"), record(1, 2, "b"), record(2, 1, "b"), record(2, 2, "c")}, Account{AtHub: 3, Redelivered: 1}},
		{"out of order by content", []Received{record(1, 1, "b"), record(1, 2, "a"), record(1, 3, "c")}, Account{AtHub: 3, Shuffled: 1}},
		{"out of order by seq", []Received{record(1, 2, "a"), record(1, 1, "b"), record(1, 3, "c")}, Account{AtHub: 3, OutOfOrder: 1}},
		{"epoch goes back", []Received{record(2, 1, "a"), record(1, 1, "b"), record(2, 2, "c")}, Account{AtHub: 3, OutOfOrder: 1}},
		{"from nowhere", []Received{record(1, 1, "a"), record(1, 2, "x"), record(1, 3, "b"), record(1, 4, "c")}, Account{AtHub: 3, Unknown: 1}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.want.Source, tt.want.Captured = "gps", 3
			other := record(1, 1, "a")
			other.ID.Source = "another"
			if got := Balance("gps", sent, append(tt.got, other)); got != tt.want {
				t.Errorf("Balance = %v, want %v", got, tt.want)
			}
			if got, want := tt.want.Balances(), tt.name == "all there" || tt.name == "redelivered"; got != want {
				t.Errorf("Balances = %v, want %v", got, want)
			}
		})
	}
}
