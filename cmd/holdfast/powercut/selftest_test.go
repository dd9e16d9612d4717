package powercut

import (
	"testing"
)

// TestAudit feeds the account with accounts that do not balance.
func TestAudit(t *testing.T) {
	const a1, a2, a3, b1 = "leaf.5t0re.gps.1.1", "leaf.5t0re.gps.1.2", "leaf.5t0re.gps.2.1", "leaf.5t0re.bus.1.1"
	at := func(ids ...string) []arrival {
		numbers := map[string]string{a1: "1", a2: "2", a3: "3", b1: "1"}
		var all []arrival
		for _, id := range ids {
			all = append(all, arrival{stream: "S", id: id, number: numbers[id]})
		}
		return all
	}
	all := map[string]bool{a1: true, a2: true, a3: true, b1: true}
	acked := map[string]uint64{a1: 1, a2: 2, a3: 3}
	tests := []struct {
		name    string
		arrived []arrival
		acked   map[string]uint64
		onLeaf  map[string]bool
		want    report
	}{
		{"balances", at(a1, a2, b1, a3), acked, all, report{Arrived: 4}},
		{"hub ahead", at(a1, a2, b1, a3), acked, map[string]bool{a1: true, a2: true, a3: true}, report{Arrived: 4, Ahead: 1}},
		{"acknowledged missing", at(a1, a3, b1), acked, all, report{Arrived: 3, Missing: 1}},
		{"stored missing", at(a1, a2, a3), acked, all, report{Arrived: 3, Missing: 1}},
		{"twice", at(a1, a2, a2, b1, a3), acked, all, report{Arrived: 5, Double: 1, Redelivered: 1}},
		{"epochs out of order", at(a1, a3, a2, b1), acked, all, report{Arrived: 4, Disordered: 1}},
		{"records out of order", at(a2, a1, a3, b1), acked, all, report{Arrived: 4, Disordered: 1}},
		{"sent again", []arrival{{stream: "S", id: a1, number: "1"}, {stream: "S", id: a2, number: "2"}, {stream: "S", id: a3, number: "2"}, {stream: "S", id: b1, number: "1"}}, map[string]uint64{a1: 1, a3: 2}, all, report{Arrived: 4, Redelivered: 1}},
		{"acknowledged twice", []arrival{{stream: "S", id: a1, number: "1"}, {stream: "S", id: a2, number: "2"}, {stream: "S", id: a3, number: "2"}, {stream: "S", id: b1, number: "1"}}, map[string]uint64{a1: 1, a2: 2, a3: 2}, all, report{Arrived: 4, Double: 1, Redelivered: 1}},
		{"same source in two streams", []arrival{{stream: "S", id: a3, number: "3"}, {stream: "T", id: a1, number: "1"}, {stream: "T", id: a2, number: "2"}, {stream: "S", id: b1, number: "1"}}, acked, all, report{Arrived: 4}},
		{"no ID", []arrival{{stream: "S", id: a1, number: "1"}, {stream: "S", id: a2, number: "2"}, {stream: "S", id: "", number: "2"}, {stream: "S", id: a3, number: "3"}, {stream: "S", id: b1, number: "1"}}, acked, all, report{Arrived: 5, Disordered: 1}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var got report
			got.audit(test.arrived, test.acked, test.onLeaf)
			examples := len(got.examples)
			got.examples = nil
			if got.String() != test.want.String() {
				t.Errorf("audit:\n got %v\nwant %v", got, test.want)
			}
			if wrong := got.Missing + got.Double + got.Disordered; (wrong > 0) != (examples > 0) {
				t.Errorf("%d faults, %d examples", wrong, examples)
			}
		})
	}
}
