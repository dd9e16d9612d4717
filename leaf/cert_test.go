package leaf

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
)

// authority signs certificates for tests.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string // the authority's certificate
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, key: newKey(t)}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Unix(0, 0), NotAfter: time.Now().Add(24 * time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(raw); err != nil {
		t.Fatal(err)
	}
	a.file = writePEM(t, "CERTIFICATE", raw)
	return a
}

// issue returns the files of a certificate for the names, and of its key.
func (a *authority) issue(from, to time.Time, names ...string) (cert, key string) {
	a.t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: names[0]}, NotBefore: from, NotAfter: to,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, n := range names {
		if ip := net.ParseIP(n); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, n)
		}
	}
	k := newKey(a.t)
	raw, err := x509.CreateCertificate(rand.Reader, template, a.cert, &k.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	rawKey, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		a.t.Fatal(err)
	}
	return writePEM(a.t, "CERTIFICATE", raw), writePEM(a.t, "PRIVATE KEY", rawKey)
}

func TestExamineAppTLS(t *testing.T) {
	a := newAuthority(t)
	now := time.Now()
	cert := func(from, to time.Duration) AppTLS {
		c, k := a.issue(now.Add(from), now.Add(to), "gateway")
		return AppTLS{Cert: c, Key: k}
	}
	year := 365 * 24 * time.Hour
	good, other := cert(-time.Hour, year), cert(-time.Hour, year)
	for _, tt := range []struct {
		name    string
		tls     AppTLS
		want    string // in the problem
		lasting bool
	}{
		{"none", AppTLS{}, "", false},
		{"good", good, "", false},
		{"ended", cert(-year, -time.Hour), "it has ended on", true},
		{"not yet", cert(time.Hour, year), "it is for the time after", true},
		{"soon", cert(-year, 24*time.Hour), "it ends on", false},
		{"missing", AppTLS{Cert: "/not/there", Key: good.Key}, "no such file", true},
		{"key of another", AppTLS{Cert: good.Cert, Key: other.Key}, "private key does not match", true},
		{"no authorities", AppTLS{Cert: good.Cert, Key: good.Key, CA: good.Key}, "holds no certificate", true},
	} {
		problem, remedy, lasting := tt.tls.Examine(now)
		if (problem == "") != (tt.want == "") || !strings.Contains(problem, tt.want) || lasting != tt.lasting || (problem == "") != (remedy == "") {
			t.Errorf("%s: %q, %q, %v", tt.name, problem, remedy, lasting)
		}
	}
}

// valid is a time span that holds now.
func valid() (from, to time.Time) {
	return time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func writePEM(t *testing.T, kind string, raw []byte) string {
	t.Helper()
	return writeFile(t, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: raw}))
}

func writeFile(t *testing.T, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func overwrite(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// pair is an nkey with its public half.
type pair struct {
	kp     nkeys.KeyPair
	public string
}

func newKeyPair(t *testing.T, create func() (nkeys.KeyPair, error)) pair {
	t.Helper()
	kp, err := create()
	if err != nil {
		t.Fatal(err)
	}
	public, err := kp.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	return pair{kp, public}
}

func userCredentials(file string) []nats.Option { return []nats.Option{nats.UserCredentials(file)} }

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
