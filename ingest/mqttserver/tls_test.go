package mqttserver

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"os"
	"testing"
	"time"

	"github.com/holdfast-edge/holdfast/ingest"
	"github.com/holdfast-edge/holdfast/ingest/ingesttest"
	"github.com/holdfast-edge/holdfast/ingest/mqttserver/packet"
	"github.com/holdfast-edge/holdfast/rig/leak"
	"github.com/holdfast-edge/holdfast/rig/poll"
)

// secure returns a configuration with TLS alone.
func secure(t *testing.T, ca *ingesttest.Authority, mode string) Config {
	t.Helper()
	return config(t, func(c *Config) {
		c.TLS.Listen, c.Listen = c.Listen, ""
		c.Anonymous = false
		c.TLS.Cert, c.TLS.Key = ca.Issue(t, "gateway", time.Hour)
		c.TLS.ClientCert, c.TLS.ClientCA = mode, ca.File
		c.Access = []Access{{Publish: []string{"dev/{user}/#"}}}
	})
}

// tlsDevice connects with a certificate, or without when cert is empty, and returns what CONNACK says.
func tlsDevice(t *testing.T, s *Source, ca *ingesttest.Authority, cert, key string, l login) (d *device, code byte, err error) {
	t.Helper()
	pem, err := os.ReadFile(ca.File)
	if err != nil {
		t.Fatal(err)
	}
	conf := &tls.Config{ServerName: "gateway", RootCAs: x509.NewCertPool()}
	conf.RootCAs.AppendCertsFromPEM(pem)
	if cert != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			t.Fatal(err)
		}
		conf.Certificates = []tls.Certificate{pair}
	}
	nc, err := tls.Dial("tcp", s.Addrs()[0], conf)
	if err != nil {
		return nil, 0, err
	}
	t.Cleanup(func() { _ = nc.Close() })
	_ = nc.SetDeadline(time.Now().Add(patience))
	d = &device{Conn: nc, t: t, r: bufio.NewReader(nc), version: packet.V311}
	if _, err = nc.Write(l.bytes()); err != nil {
		return nil, 0, err
	}
	_, body, err := d.read()
	if err != nil {
		return nil, 0, err
	}
	return d, body[1], nil
}

func TestClientCertificates(t *testing.T) {
	leak.Check(t)
	ca, other := ingesttest.NewAuthority(t), ingesttest.NewAuthority(t)
	r := run(t, secure(t, ca, CertRequired), stateDir(t))
	cert, key := ca.Issue(t, "pump-1", time.Hour)
	d, code, err := tlsDevice(t, r.Source, ca, cert, key, login{id: "a", keep: true})
	if err != nil || code != 0 {
		t.Fatalf("with a certificate: CONNACK %d, %v", code, err)
	}
	d.publish(qos1(1, "dev/pump-1/x", "1"))
	d.acks(packet.PUBACK, 1)
	d.publish(qos1(2, "dev/pump-2/x", "2"))
	d.acks(packet.PUBACK, 2)
	r.st.want(t, "1")
	poll.Until(t, patience, func() bool { return len(d.sentMarks(r.Source)) == 0 }, "the kernel to say that the acknowledgements are there")

	if _, code, err = tlsDevice(t, r.Source, ca, cert, key, login{id: "b", user: "pump-2"}); err != nil || code != 4 {
		t.Errorf("with the user of another: CONNACK %d, %v, want 4", code, err)
	}
	if _, _, err = tlsDevice(t, r.Source, ca, "", "", login{id: "c"}); err == nil {
		t.Error("a client without a certificate is let in")
	}
	foreign, foreignKey := other.Issue(t, "pump-1", time.Hour)
	if _, _, err = tlsDevice(t, r.Source, ca, foreign, foreignKey, login{id: "d"}); err == nil {
		t.Error("a client with a certificate of another authority is let in")
	}
	late, lateKey := ca.Issue(t, "pump-1", -time.Hour)
	if _, _, err = tlsDevice(t, r.Source, ca, late, lateKey, login{id: "e"}); err == nil {
		t.Error("a client with a certificate that has ended is let in")
	}
}

// sentMarks returns the acknowledgements of which the kernel has not said yet that they are there.
func (d *device) sentMarks(s *Source) (list []sentMark) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		c.mu.Lock()
		list = append(list, c.sent...)
		c.mu.Unlock()
	}
	return list
}

// TestCertificateIsReadAgain renews the server's certificate while a device is connected, and breaks its file.
func TestCertificateIsReadAgain(t *testing.T) {
	ca, next := ingesttest.NewAuthority(t), ingesttest.NewAuthority(t)
	cfg := secure(t, ca, CertOptional)
	cfg.Users = usersFile(t, map[string]string{"p": "secret"})
	r := run(t, cfg, stateDir(t))
	l := login{id: "a", user: "p", password: "secret"}
	d, code, err := tlsDevice(t, r.Source, ca, "", "", l)
	if err != nil || code != 0 {
		t.Fatalf("CONNACK %d, %v", code, err)
	}
	replace := func(path string, data []byte) {
		t.Helper()
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cert, key := next.Issue(t, "gateway", time.Hour)
	for from, to := range map[string]string{cert: cfg.TLS.Cert, key: cfg.TLS.Key} {
		data, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		replace(to, data)
	}
	l.id = "b"
	if _, code, err = tlsDevice(t, r.Source, next, "", "", l); err != nil || code != 0 {
		t.Errorf("with the new certificate: CONNACK %d, %v", code, err)
	}
	replace(cfg.TLS.Cert, []byte("half a file"))
	l.id = "c"
	if _, code, err = tlsDevice(t, r.Source, next, "", "", l); err != nil || code != 0 {
		t.Errorf("with a broken file: CONNACK %d, %v, want the certificate from before", code, err)
	}
	d.publish(qos1(1, "dev/p/x", "1"))
	d.acks(packet.PUBACK, 1)
}

func TestListenFails(t *testing.T) {
	ca := ingesttest.NewAuthority(t)
	missing := secure(t, ca, CertOff)
	missing.TLS.ClientCA, missing.TLS.Cert, missing.Anonymous = "", missing.TLS.Cert+".gone", true
	broken := secure(t, ca, CertOff)
	broken.TLS.ClientCA, broken.TLS.Cert, broken.Anonymous = "", ca.File, true
	taken := config(t)
	first := run(t, taken, stateDir(t))
	for _, tt := range []struct {
		name string
		cfg  Config
		want ingest.Kind
	}{
		{"certificate is not there", missing, ingest.Denied},
		{"certificate and key do not fit", broken, ingest.Denied},
		{"port is taken", taken, ingest.Busy},
	} {
		s := newSource(t, tt.cfg, stateDir(t))
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = s.Run(ctx, (&shelf{}).deliver) // it ends with ctx
		}()
		poll.Until(t, patience, func() bool { return s.State().Kind == tt.want }, "%s: state %v", tt.name, tt.want)
		if st := s.State(); st.Cause == "" || st.Remedy == "" {
			t.Errorf("%s: %+v", tt.name, st)
		}
		if tt.want == ingest.Busy {
			first.stop()
			poll.Until(t, patience, func() bool { return s.State().Kind == ingest.Running }, "the source to run when the port is free")
		}
		stop()
		<-done
	}
}
