// Package port hands out TCP ports of the loopback that stay free while their server is down.
package port

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// The range lies below the one that kernels give to outgoing connections and to listeners without a port (Linux: from 32768),
// so that nothing takes the port of a server that is being restarted.
const (
	lowest  = 15000
	highest = 32000
)

// Listen opens a listener on a port that it picks at random.
func Listen() (net.Listener, error) {
	var err error
	for range 50 {
		var l net.Listener
		l, err = net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(lowest+rand.IntN(highest-lowest))))
		if err == nil {
			return l, nil
		}
	}
	return nil, fmt.Errorf("find a free port: %w", err)
}

// Pick returns n different ports that were free just now.
func Pick(n int) ([]int, error) {
	ports := make([]int, 0, n)
	for range n {
		l, err := Listen()
		if err != nil {
			return nil, err
		}
		defer func() { _ = l.Close() }() // only held so that the ports differ
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}
