// Package device simulates field devices for tests and the demo: a GPS receiver on a pseudo-terminal and MQTT sensors.
package device

import (
	"context"
	"fmt"
	"math"
	"os"
	"sync"
	"time"

	"github.com/creack/pty"
)

// Sentences writes an endless NMEA 0183 log of a receiver that drives along a coast: per second RMC, GGA and GSA,
// every fifth second two GSV. No two sentences are alike within a day of it, so that each can be followed to the hub.
type Sentences struct {
	n    int // sentences made
	tick int // seconds driven
	at   int // place within the second
}

// Next returns the next sentence, without line end.
func (s *Sentences) Next() string {
	t := s.tick
	clock := fmt.Sprintf("%02d%02d%02d.%02d", t/3600%24, t/60%60, t%60, s.n%100)
	lat := 47.28 + 0.00007*float64(t)
	lon := 8.56 + 0.0004*math.Sin(float64(t)/40)
	var body string
	switch s.at {
	case 0:
		body = fmt.Sprintf("GPRMC,%s,A,%s,N,%s,E,%.2f,%.2f,301126,,,A", clock, angle(lat, 2), angle(lon, 3), 12+2*math.Sin(float64(t)/9), math.Mod(float64(t)*1.7, 360))
	case 1:
		body = fmt.Sprintf("GPGGA,%s,%s,N,%s,E,1,08,0.9,%.1f,M,46.9,M,,", clock, angle(lat, 2), angle(lon, 3), 408+5*math.Sin(float64(t)/30))
	case 2:
		body = fmt.Sprintf("GPGSA,A,3,04,05,09,12,%02d,%02d,,,,,,,%d.1,1.3,2.1", t%100, t/100%100, t/10000)
	default:
		body = fmt.Sprintf("GPGSV,2,%d,08,01,40,%03d,46,02,17,%03d,41,12,07,%03d,42,14,22,%03d,45", s.at-2, t%360, t/360%360, t/7%360, s.at)
	}
	s.n++
	s.at++
	if last := 3 + 2*boolInt(t%5 == 0); s.at == last {
		s.at, s.tick = 0, t+1
	}
	sum := byte(0)
	for i := 0; i < len(body); i++ {
		sum ^= body[i]
	}
	return fmt.Sprintf("$%s*%02X", body, sum)
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// angle writes degrees as NMEA does, degrees and minutes run together.
func angle(deg float64, width int) string {
	whole := int(deg)
	return fmt.Sprintf("%0*d%07.4f", width, whole, (deg-float64(whole))*60)
}

// GPS is a receiver behind a serial line.
type GPS struct {
	Path string // device to open, a symbolic link like those below /dev/serial/by-id

	master, slave *os.File
	baud          int
	mu            sync.Mutex // guards the fields below
	sent          []string
}

// NewGPS makes the line and the link to it at path. The pace is that of a line with baud bits a second, ten to a byte; 0 does not wait.
// The device end is kept open, so that bytes sent while nobody listens wait in the line as in a receiver's buffer.
func NewGPS(path string, baud int) (*GPS, error) {
	master, slave, err := pty.Open()
	if err != nil {
		return nil, fmt.Errorf("make a pseudo-terminal: %w", err)
	}
	if err := rawMode(slave); err != nil {
		return nil, err
	}
	if err := os.Symlink(slave.Name(), path); err != nil {
		return nil, err
	}
	return &GPS{Path: path, master: master, slave: slave, baud: baud}, nil
}

// Run sends n sentences from log, or without end when n is 0, until ctx ends.
func (g *GPS) Run(ctx context.Context, log *Sentences, n int) error {
	pace := time.NewTimer(0)
	defer pace.Stop()
	for i := 0; n == 0 || i < n; i++ {
		select {
		case <-ctx.Done():
			return nil
		case <-pace.C:
		}
		s := log.Next()
		// Noted first: a reader may be done with the sentence before Write returns.
		g.mu.Lock()
		g.sent = append(g.sent, s)
		g.mu.Unlock()
		if _, err := g.master.WriteString(s + "\r\n"); err != nil {
			return fmt.Errorf("send a sentence: %w", err)
		}
		var wait time.Duration
		if g.baud > 0 {
			wait = time.Duration(len(s)+2) * 10 * time.Second / time.Duration(g.baud)
		}
		pace.Reset(wait)
	}
	return nil
}

// Sent returns the sentences sent so far, in order.
func (g *GPS) Sent() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return append([]string(nil), g.sent...)
}

// Unplug hangs the line up, as a device that is pulled out.
func (g *GPS) Unplug() error {
	if err := g.slave.Close(); err != nil {
		return err
	}
	return g.master.Close()
}
