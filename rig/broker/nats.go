package broker

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/holdfast-edge/holdfast/rig/port"
)

// NATS is a nats-server in this process whose MQTT listener serves as a broker: nothing to install.
type NATS struct {
	server *server.Server
	dir    string
	ownDir bool
	port   int
}

// StartNATS starts it and returns when it accepts connections. Its data goes to dir, which Close keeps; empty means a temporary
// one that Close removes.
func StartNATS(dir string) (*NATS, error) {
	ports, err := port.Pick(1)
	if err != nil {
		return nil, err
	}
	b := &NATS{dir: dir, ownDir: dir == "", port: ports[0]}
	if b.ownDir {
		if b.dir, err = os.MkdirTemp("", "mqtt-broker-"); err != nil {
			return nil, fmt.Errorf("start broker: %w", err)
		}
	}
	opts := &server.Options{
		ServerName: "broker", DontListen: true, JetStream: true, StoreDir: b.dir,
		NoLog: true, NoSigs: true,
		JetStreamMaxMemory: 64 << 20, JetStreamMaxStore: 1 << 30,
	}
	opts.MQTT.Host, opts.MQTT.Port = "127.0.0.1", b.port
	if b.server, err = server.NewServer(opts); err != nil {
		return nil, errors.Join(fmt.Errorf("start broker: %w", err), b.Close())
	}
	b.server.Start()
	if !b.server.ReadyForConnections(startTimeout) {
		return nil, errors.Join(fmt.Errorf("start broker: not ready on %s within %v", b.Addr(), startTimeout), b.Close())
	}
	return b, nil
}

// Addr returns host and port of the MQTT listener.
func (b *NATS) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(b.port)) }

// URL returns the address as clients are configured with it.
func (b *NATS) URL() string { return "tcp://" + b.Addr() }

// Close stops the broker and removes its temporary directory.
func (b *NATS) Close() error {
	if b.server != nil {
		b.server.Shutdown()
		b.server.WaitForShutdown()
	}
	if b.ownDir {
		return os.RemoveAll(b.dir)
	}
	return nil
}
