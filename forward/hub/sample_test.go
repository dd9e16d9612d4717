package hub

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/nats-io/nkeys"
)

// TestSampleIsAsWritten: the sample in configs/hub, which is there to be read, is what Create writes for node 1 of a hub ByConfig with two leaves.
func TestSampleIsAsWritten(t *testing.T) {
	public := func(key string) nkeys.KeyPair {
		k, err := nkeys.FromPublicKey(key)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	k := keys{
		auth:   ByConfig,
		admin:  public("UDIWDAF2THC6HH4ZRHRL2JYURZUCBVH4DNU3B4HKE4P22LPHFDO5P2XB"),
		system: public("UCJ3E4DC3JYZ7FO6ECNWTIV7WOHTTLOI3BZXQTPYA6A2ZDNR7JA6KJ5E"),
		app:    public("UAH42UG6PV552P5SWLWTBP3H3S5BHAVCO2IEKEXUANJXR75J63RQ5WM6"),
	}
	s := Site{}
	for _, host := range []string{"hub1.example.com", "hub2.example.com", "hub3.example.com"} {
		s.Nodes = append(s.Nodes, Node{Host: host, Dir: "/etc/nats-server", Data: "/var/lib/nats-server"})
	}
	s = s.withDefaults("")
	p, err := New(Spec{Leaves: []Leaf{
		{Name: "pump-07", NKey: "UAVWSPHBZH7J35YRLDJAA3TKFSLE2ATIPLW4BIB25BM4HW5QHPXHGMM3", Streams: []Stream{{Name: "SENSORS"}}},
		{Name: "pump-08", NKey: "UAOHNTI224QA3ESL5AEQHEBJSMKRRBL7GOQFATUGNYJAVFX5MVLPUYDK", Commands: true, Documents: true, Streams: []Stream{
			{Name: "SENSORS"}, {Name: "ALARMS", Mode: Mirror},
		}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	accounts, err := k.accounts(s.Nodes[0], p)
	if err != nil {
		t.Fatal(err)
	}
	for name, got := range map[string]string{nodeConfig: s.config(s.Nodes[0]), accountsFile: accounts, FleetFile: s.fleetFile(Account)} {
		path := filepath.Join("../../configs/hub", name)
		if *update {
			if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s is not what is written now (-update writes it):\n%s", path, got)
		}
	}
}
