package mqttserver

import (
	"crypto/x509"
	"fmt"
	"net"
	"time"

	"github.com/holdfast-edge/holdfast/ingest"
)

// certSoon is how long before its end a certificate is warned of.
const certSoon = 30 * 24 * time.Hour

// Examine reads the files that a configuration names and says what is wrong with them, and what may be. It does not listen: the daemon may.
func Examine(c Config) (list []ingest.Finding) {
	add := func(what string, level ingest.Level, cause, remedy string) {
		list = append(list, ingest.Finding{What: what, Level: level, Cause: cause, Remedy: remedy})
	}
	if c.Users != "" {
		u := newUsers(c.Users)
		switch err := u.load(time.Now()); {
		case err != nil:
			add("users", ingest.Failure, err.Error(), "write it with holdfast password -users, and let the daemon read it")
		case len(u.hashes) == 0:
			add("users", ingest.Warning, c.Users+" holds no user", "add one with holdfast password -users")
		default:
			add("users", ingest.Fine, "", "")
		}
		for _, a := range c.Access {
			for _, name := range a.Users {
				if !u.exists(name) && c.TLS.ClientCert == CertOff {
					add("access", ingest.Warning, fmt.Sprintf("%q is in access and not in the users file", name), "correct one of the two")
				}
			}
		}
	}
	if c.Anonymous {
		add("anonymous", ingest.Warning, "whoever reaches the port may publish what access allows everybody", "give each device a user")
	}
	if host, _, err := net.SplitHostPort(c.Listen); err == nil && c.Users != "" {
		if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			add("listen", ingest.Unsure, "passwords can be read on the network between device and gateway", "use tls where devices can")
		}
	}
	if c.TLS.Listen == "" {
		return list
	}
	conf, err := c.TLS.server()
	if err != nil {
		add("certificate", ingest.Failure, err.Error(), explain(err).Remedy)
		return list
	}
	leaf, err := x509.ParseCertificate(conf.Certificates[0].Certificate[0])
	if err != nil {
		add("certificate", ingest.Failure, err.Error(), "take another one")
		return list
	}
	switch left := time.Until(leaf.NotAfter); {
	case left < 0:
		add("certificate", ingest.Failure, fmt.Sprintf("it has ended on %s", leaf.NotAfter.UTC().Format(time.DateOnly)), "renew it, or set the clock if that is wrong")
	case left < certSoon:
		add("certificate", ingest.Warning, fmt.Sprintf("it ends on %s", leaf.NotAfter.UTC().Format(time.DateOnly)), "renew it; the daemon takes the new files by itself")
	default:
		add("certificate", ingest.Fine, "", "")
	}
	return list
}
