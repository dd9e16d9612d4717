package modbus

import (
	"encoding/binary"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	rigpoll "github.com/holdfast-edge/holdfast/rig/poll"
)

const patience = 10 * time.Second

// unit is a simulated device. Its fields are set before it is asked, or by slave.change.
type unit struct {
	holding, input  map[int]uint16
	coils, discrete map[int]bool
	holes           []int // registers that are refused

	mute      bool
	delay     time.Duration   // of every reply
	delays    []time.Duration // of the next replies, before delay counts again
	exception byte            // instead of every reply
	busy      int             // so many requests are answered by busy
	corrupt   int             // so many replies come with a wrong checksum
	before    []byte          // sent in front of every reply
	answer    func(pdu []byte) []byte
}

// asked is a request that a slave got.
type asked struct {
	unit byte
	pdu  []byte
	time time.Time
}

// slave is a bus of simulated devices.
type slave struct {
	t    testing.TB
	echo bool // the adapter repeats what it sends

	mu    sync.Mutex // guards the fields below
	units map[byte]*unit
	log   []asked
	wg    sync.WaitGroup
	out   sync.Mutex // one reply at a time
}

func newSlave(t testing.TB, units map[byte]*unit) *slave { return &slave{t: t, units: units} }

// change changes the devices while they are asked.
func (s *slave) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// asked returns the requests so far, of one unit or of all with 0.
func (s *slave) asked(unit byte) []asked {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []asked
	for _, a := range s.log {
		if unit == 0 || a.unit == unit {
			out = append(out, a)
		}
	}
	return out
}

// reply returns what a unit answers, when, and whether with a wrong checksum; nil for nothing.
func (s *slave) reply(id byte, pdu []byte) (before, reply []byte, after time.Duration, corrupt bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log = append(s.log, asked{id, slices.Clone(pdu), time.Now()})
	u := s.units[id]
	if u == nil || u.mute {
		return nil, nil, 0, false
	}
	after = u.delay
	if len(u.delays) > 0 {
		after, u.delays = u.delays[0], u.delays[1:]
	}
	switch {
	case u.exception != 0:
		return u.before, []byte{pdu[0] | 0x80, u.exception}, after, false
	case u.busy > 0:
		u.busy--
		return u.before, []byte{pdu[0] | 0x80, 6}, after, false
	case u.corrupt > 0:
		u.corrupt--
		corrupt = true
	}
	if u.answer != nil {
		return u.before, u.answer(pdu), after, corrupt
	}
	return u.before, u.serve(pdu), after, corrupt
}

// serve does what the request asks for.
func (u *unit) serve(pdu []byte) []byte {
	at, n := int(binary.BigEndian.Uint16(pdu[1:])), int(binary.BigEndian.Uint16(pdu[3:]))
	switch pdu[0] {
	case 1, 2:
		table := u.coils
		if pdu[0] == 2 {
			table = u.discrete
		}
		out := append([]byte{pdu[0], byte((n + 7) / 8)}, make([]byte, (n+7)/8)...)
		for i := range n {
			if table[at+i] {
				out[2+i/8] |= 1 << (i % 8)
			}
		}
		return out
	case 3, 4:
		table := u.holding
		if pdu[0] == 4 {
			table = u.input
		}
		out := []byte{pdu[0], byte(2 * n)}
		for i := range n {
			if slices.Contains(u.holes, at+i) {
				return []byte{pdu[0] | 0x80, 2}
			}
			out = binary.BigEndian.AppendUint16(out, table[at+i])
		}
		return out
	case 5:
		u.coils[at] = n != 0
		return pdu
	case 6:
		u.holding[at] = uint16(n)
		return pdu
	case 15:
		for i := range n {
			u.coils[at+i] = pdu[6+i/8]>>(i%8)&1 != 0
		}
		return pdu[:5]
	case 16:
		for i := range n {
			u.holding[at+i] = binary.BigEndian.Uint16(pdu[6+2*i:])
		}
		return pdu[:5]
	}
	return []byte{pdu[0] | 0x80, 1}
}

// serveRTU answers on a line until it ends.
func (s *slave) serveRTU(rw io.ReadWriter) {
	var buf []byte
	chunk := make([]byte, 256)
	for {
		n, err := rw.Read(chunk)
		if err != nil {
			return
		}
		if s.echo {
			s.write(rw, chunk[:n])
		}
		for buf = append(buf, chunk[:n]...); len(buf) >= 8; {
			l := 8
			if buf[1] == 15 || buf[1] == 16 {
				l = 9 + int(buf[6])
			}
			if len(buf) < l {
				break
			}
			frame := slices.Clone(buf[:l])
			buf = buf[l:]
			if !intact(frame) {
				s.t.Errorf("slave got % x, which has no right checksum", frame)
				continue
			}
			before, pdu, after, corrupt := s.reply(frame[0], frame[1:l-2])
			if pdu == nil || frame[0] == 0 {
				continue
			}
			reply := request{frame[0], pdu}.frame()
			if corrupt {
				reply[len(reply)-1] ^= 0x55
			}
			s.later(after, func() { s.write(rw, append(slices.Clone(before), reply...)) })
		}
	}
}

func (s *slave) write(w io.Writer, p []byte) {
	s.out.Lock()
	defer s.out.Unlock()
	_, _ = w.Write(p) // fails when the line was cut meanwhile
}

// later calls f after a while, or at once.
func (s *slave) later(after time.Duration, f func()) {
	if after == 0 {
		f()
		return
	}
	s.wg.Go(func() {
		<-time.After(after)
		f()
	})
}

// serveTCP answers Modbus/TCP until the connection ends.
func (s *slave) serveTCP(c io.ReadWriter) {
	for {
		head := make([]byte, 7)
		if _, err := io.ReadFull(c, head); err != nil {
			return
		}
		pdu := make([]byte, binary.BigEndian.Uint16(head[4:])-1)
		if _, err := io.ReadFull(c, pdu); err != nil {
			return
		}
		_, reply, after, _ := s.reply(head[6], pdu)
		if reply == nil {
			continue
		}
		s.later(after, func() {
			out := binary.BigEndian.AppendUint16(slices.Clone(head[:4]), uint16(1+len(reply)))
			s.write(c, append(append(out, head[6]), reply...))
		})
	}
}

// cable is a serial line to a slave that can be plugged in and out: a pseudo-terminal behind a link that stays the same.
type cable struct {
	slave  *slave
	link   string
	master *os.File // nil: unplugged
	tty    *os.File
}

func newCable(s *slave) *cable {
	c := &cable{slave: s, link: filepath.Join(s.t.TempDir(), "usb-RS485")}
	c.in()
	s.t.Cleanup(c.out)
	return c
}

// in plugs the line in, under another node than any that is in use.
func (c *cable) in() {
	t := c.slave.t
	t.Helper()
	master, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	mode, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	mode.Iflag, mode.Oflag, mode.Lflag = 0, 0, 0 // so that nothing is echoed before the bus sets the line
	if err := unix.IoctlSetTermios(int(tty.Fd()), unix.TCSETS, mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(tty.Name(), c.link); err != nil {
		t.Fatal(err)
	}
	c.master, c.tty = master, tty
	c.slave.wg.Go(func() { c.slave.serveRTU(master) })
}

// out pulls the line out.
func (c *cable) out() {
	if c.master == nil {
		return
	}
	_ = os.Remove(c.link)
	_ = c.tty.Close()
	_ = c.master.Close()
	c.master = nil
	c.slave.wg.Wait()
}

// listen serves a network, by serveTCP or serveRTU, and returns its address and a function that cuts all connections.
func (s *slave) listen(serve func(io.ReadWriter)) (address string, cut func()) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.t.Fatal(err)
	}
	var mu sync.Mutex
	var open []net.Conn
	cut = func() {
		mu.Lock()
		defer mu.Unlock()
		for _, c := range open {
			_ = c.Close()
		}
		open = nil
	}
	s.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open = append(open, c)
			mu.Unlock()
			s.wg.Go(func() { serve(c) })
		}
	})
	s.t.Cleanup(func() {
		_ = l.Close()
		cut()
		s.wg.Wait()
	})
	return l.Addr().String(), cut
}

func until(t testing.TB, what string, cond func() bool) {
	t.Helper()
	rigpoll.Until(t, patience, cond, "%s", what)
}
