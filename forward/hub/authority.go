package hub

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// How long certificates of the hub's own authority are good. They begin at the epoch of computing: a gateway without a battery-backed clock
// wakes up in the past, and must not refuse the hub for that.
const (
	authorityYears = 30
	nodeYears      = 10
)

// authority signs the certificates of a hub's nodes.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// newAuthority makes an authority that signs nothing but servers of the hub.
func newAuthority(now time.Time) (authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return authority{}, fmt.Errorf("make key of the authority: %w", err)
	}
	serial, err := newSerial()
	if err != nil {
		return authority{}, err
	}
	cert := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "Holdfast hub authority"},
		NotBefore: time.Unix(0, 0), NotAfter: now.AddDate(authorityYears, 0, 0),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, &key.PublicKey, key)
	if err != nil {
		return authority{}, fmt.Errorf("make certificate of the authority: %w", err)
	}
	if cert, err = x509.ParseCertificate(der); err != nil {
		return authority{}, fmt.Errorf("make certificate of the authority: %w", err)
	}
	return authority{cert, key}, nil
}

// parseAuthority reads an authority that was written as PEM.
func parseAuthority(certPEM, keyPEM []byte) (authority, error) {
	c, _ := pem.Decode(certPEM)
	k, _ := pem.Decode(keyPEM)
	if c == nil || k == nil {
		return authority{}, errors.New("certificate or key of the authority is not PEM")
	}
	cert, err := x509.ParseCertificate(c.Bytes)
	if err != nil {
		return authority{}, fmt.Errorf("certificate of the authority: %w", err)
	}
	key, err := x509.ParseECPrivateKey(k.Bytes)
	if err != nil {
		return authority{}, errors.New("the key of the authority cannot be read") // the parser's error might quote it
	}
	return authority{cert, key}, nil
}

// certPEM returns the certificate that leaves and clients verify the hub by.
func (a authority) certPEM() []byte { return pemBlock("CERTIFICATE", a.cert.Raw) }

// keyPEM returns the authority's secret.
func (a authority) keyPEM() ([]byte, error) { return ecPEM(a.key) }

// issue makes a key and certificate of a node that is reached as host, a name or an address.
func (a authority) issue(host string, now time.Time) (cert, key []byte, err error) {
	secret, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make key of %s: %w", host, err)
	}
	serial, err := newSerial()
	if err != nil {
		return nil, nil, err
	}
	t := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: host}, NotBefore: time.Unix(0, 0), NotAfter: now.AddDate(nodeYears, 0, 0),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, // nodes dial each other
		BasicConstraintsValid: true, DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}
	if ip := net.ParseIP(host); ip != nil {
		t.IPAddresses = append(t.IPAddresses, ip)
	} else {
		t.DNSNames = append(t.DNSNames, host)
	}
	der, err := x509.CreateCertificate(rand.Reader, t, a.cert, &secret.PublicKey, a.key)
	if err != nil {
		return nil, nil, fmt.Errorf("make certificate of %s: %w", host, err)
	}
	key, err = ecPEM(secret)
	return pemBlock("CERTIFICATE", der), key, err
}

func newSerial() (*big.Int, error) {
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, fmt.Errorf("make serial number of a certificate: %w", err)
	}
	return n.Add(n, big.NewInt(1)), nil
}

func ecPEM(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("write key: %w", err)
	}
	return pemBlock("EC PRIVATE KEY", der), nil
}

func pemBlock(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// Renew makes new keys and certificates for the servers of a hub's folder, by its own authority, and returns the folders that have them. The
// servers take them when they read their configuration again.
func Renew(dir string, now time.Time) ([]string, error) {
	certPEM, err := os.ReadFile(filepath.Join(dir, AuthorityFile))
	if err != nil {
		return nil, fmt.Errorf("authority of the hub: %w", err)
	}
	keyPEM, err := os.ReadFile(Secret(dir, authorityKey))
	if err != nil {
		return nil, fmt.Errorf("authority of the hub: %w", err)
	}
	ca, err := parseAuthority(certPEM, keyPEM)
	if err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(dir, "*", "tls", nodeCert))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("no server's certificate below %s: %w", dir, errors.Join(err, errNoKeys))
	}
	w := writer{dir: dir}
	var done []string
	for _, file := range files {
		old, err := os.ReadFile(file)
		if err != nil {
			return done, fmt.Errorf("renew certificates: %w", err)
		}
		block, _ := pem.Decode(old)
		if block == nil {
			return done, fmt.Errorf("renew certificates: %s is not PEM", file)
		}
		had, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return done, fmt.Errorf("renew certificates: %s: %w", file, err)
		}
		folder := filepath.Base(filepath.Dir(filepath.Dir(file)))
		cert, key, err := ca.issue(had.Subject.CommonName, now)
		w.file(filepath.Join(folder, "tls", nodeKey), key, err)
		w.file(filepath.Join(folder, "tls", nodeCert), cert, nil)
		if w.err != nil {
			return done, w.err
		}
		done = append(done, folder)
	}
	return done, nil
}
