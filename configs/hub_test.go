package configs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/holdfast-edge/holdfast/forward/hub"
)

// hubFolder copies the example hub into a folder that has certificates, and works in it, as its first lines tell an operator to do.
func hubFolder(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	files, err := filepath.Glob("hub/*.conf")
	if err != nil || len(files) != 5 {
		t.Fatalf("configuration of the hub = %v, %v, want 5 files", files, err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		writeFile(t, filepath.Join(dir, filepath.Base(file)), data)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cert := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "hub"}, DNSNames: []string{"hub1.example.com"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "tls"), 0o700); err != nil {
		t.Fatal(err)
	}
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	writeFile(t, filepath.Join(dir, "tls/hub.pem"), certPEM)
	writeFile(t, filepath.Join(dir, "tls/ca.pem"), certPEM)
	writeFile(t, filepath.Join(dir, "tls/hub.key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}))
	t.Chdir(dir)
}

func writeFile(t *testing.T, file string, data []byte) {
	t.Helper()
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestHubParses lets the server read the example, strictly.
func TestHubParses(t *testing.T) {
	hubFolder(t)
	for _, name := range []string{"hub1", "hub2", "hub3"} {
		o, err := server.ProcessConfigFile(name + ".conf")
		if err != nil {
			t.Fatalf("%s.conf: %v", name, err)
		}
		if o.ServerName != name || o.JetStreamDomain != hub.Domain || !o.JetStream {
			t.Errorf("%s.conf: server %q, domain %q, JetStream %v", name, o.ServerName, o.JetStreamDomain, o.JetStream)
		}
		if o.Cluster.Name != "HUB" || len(o.Routes) != 3 {
			t.Errorf("%s.conf: cluster %q of %d routes, want HUB of 3", name, o.Cluster.Name, len(o.Routes))
		}
		l := o.LeafNode
		if l.Port != 7422 || l.TLSConfig == nil || !l.NoAdvertise || !l.IsolateLeafnodeInterest || l.PingInterval != 10*time.Second || l.MaxPingsOut != 2 {
			t.Errorf("%s.conf: leaf nodes %+v, want TLS on 7422, isolated, not advertised, with pings", name, l)
		}
		if !o.FeatureFlags["js_ack_fc_v2"] || !o.FeatureFlags["js_api_reply_v2"] {
			t.Errorf("%s.conf: feature flags %v, want both that keep leaves apart", name, o.FeatureFlags)
		}
		if o.NoAuthUser != "" || len(o.Users) > 0 {
			t.Errorf("%s.conf: user without a key: %q, %d users with passwords", name, o.NoAuthUser, len(o.Users))
		}
	}
}

// TestHubGivesLeastRights compares the example's users with the plan for the same leaves.
func TestHubGivesLeastRights(t *testing.T) {
	hubFolder(t)
	o, err := server.ProcessConfigFile("hub1.conf")
	if err != nil {
		t.Fatal(err)
	}
	plan, err := hub.New(hub.Spec{Leaves: []hub.Leaf{
		{Name: "pump-07", NKey: "UAVWSPHBZH7J35YRLDJAA3TKFSLE2ATIPLW4BIB25BM4HW5QHPXHGMM3", Streams: []hub.Stream{{Name: "SENSORS"}}},
		{Name: "pump-08", NKey: "UAOHNTI224QA3ESL5AEQHEBJSMKRRBL7GOQFATUGNYJAVFX5MVLPUYDK", Streams: []hub.Stream{
			{Name: "SENSORS"}, {Name: "ALARMS", Mode: hub.Mirror},
		}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, want := range plan.Users() {
		for _, got := range o.Nkeys {
			if got.Nkey != want.NKey {
				continue
			}
			found++
			if got.Account.Name != hub.Account {
				t.Errorf("leaf %s is in account %s, want %s", want.Leaf, got.Account.Name, hub.Account)
			}
			if got.Permissions == nil || got.Permissions.Publish == nil || got.Permissions.Subscribe == nil {
				t.Fatalf("leaf %s may do anything", want.Leaf)
			}
			sameSubjects(t, want.Leaf+" publish", got.Permissions.Publish.Allow, want.Publish)
			sameSubjects(t, want.Leaf+" subscribe", got.Permissions.Subscribe.Allow, want.Subscribe)
			if _, client := got.AllowedConnectionTypes["STANDARD"]; client || len(got.AllowedConnectionTypes) == 0 {
				t.Errorf("leaf %s may connect as %v, want as a leaf only", want.Leaf, got.AllowedConnectionTypes)
			}
		}
	}
	if found != len(plan.Users()) {
		t.Errorf("%d of the plan's %d leaves are in the example", found, len(plan.Users()))
	}
}

func sameSubjects(t *testing.T, what string, got, want []string) {
	t.Helper()
	got, want = slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))
	if !slices.Equal(got, want) {
		t.Errorf("%s = %q\nwant %q", what, got, want)
	}
}
