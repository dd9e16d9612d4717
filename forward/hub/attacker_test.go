package hub_test

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"

	fleet "github.com/holdfast-edge/holdfast/forward/hub"
)

// attacker holds a leaf's credentials and speaks the servers' leaf protocol itself, so that nothing on his side filters what he sends, as a
// nats-server would.
type attacker struct {
	t    *testing.T
	conn net.Conn
	in   *bufio.Reader
}

// attack connects with the credentials of an enrolment, as a leaf or, asHub, as one who says that he is the hub.
func attack(t *testing.T, m *made, leaf string, asHub bool) *attacker {
	t.Helper()
	file, err := os.ReadFile(filepath.Join(m.Dir, fleet.LeavesDir, leaf+".creds"))
	if err != nil {
		t.Fatal(err)
	}
	fatal := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	key, err := jwt.ParseDecoratedUserNKey(file)
	fatal(err)
	plain, err := net.Dial("tcp", strings.TrimPrefix(m.URLs[0], "tls://"))
	fatal(err)
	t.Cleanup(func() { _ = plain.Close() }) // the hub may have closed it
	fatal(plain.SetDeadline(time.Now().Add(patience)))
	line, err := bufio.NewReader(plain).ReadString('\n')
	fatal(err)
	var info struct {
		Nonce string `json:"nonce"`
	}
	fatal(json.Unmarshal([]byte(strings.TrimPrefix(line, "INFO ")), &info))
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(file)
	a := &attacker{t: t, conn: tls.Client(plain, &tls.Config{RootCAs: roots, ServerName: "127.0.0.1", MinVersion: tls.VersionTLS12})}
	a.in = bufio.NewReader(a.conn)
	sig, err := key.Sign([]byte(info.Nonce))
	fatal(err)
	connect := map[string]any{
		"name": "evil", "server_id": "NEVIL", "version": "2.15.3", "headers": true, "protocol": 1, "is_hub": asHub, "compress_mode": "not supported",
		"sig": base64.RawURLEncoding.EncodeToString(sig), "domain": "evil", "remote_account": "CAPTURE",
	}
	if m.Auth == fleet.ByJWT {
		token, err := jwt.ParseDecoratedJWT(file)
		fatal(err)
		connect["jwt"] = token
	} else {
		connect["nkey"], err = key.PublicKey()
		fatal(err)
	}
	text, err := json.Marshal(connect)
	fatal(err)
	a.send("CONNECT %s\r\n", text)
	if lines, open := a.fence(); !open {
		t.Fatalf("the attacker is not let in: %q", lines)
	}
	return a
}

func (a *attacker) send(format string, args ...any) {
	_, _ = fmt.Fprintf(a.conn, format, args...) // the hub may have closed it; fence tells
}

// publish sends a message, with a reply subject of the leaf's own.
func (a *attacker) publish(subject, body string) {
	a.send("LMSG %s _INBOX_g1.evil %d\r\n%s\r\n", subject, len(body), body)
}

// fence returns what the hub has sent until it has dealt with everything, and whether the connection is still open.
func (a *attacker) fence() (lines []string, open bool) {
	a.send("PING\r\n")
	for {
		line, err := a.in.ReadString('\n')
		if err != nil {
			return lines, false
		}
		switch line = strings.TrimSpace(line); {
		case line == "PONG":
			return lines, true
		case line == "PING":
			a.send("PONG\r\n")
		default:
			lines = append(lines, line)
		}
	}
}
