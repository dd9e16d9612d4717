package disk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
)

// Numbers of the NBD protocol, as its documents (doc/proto.md of the NetworkBlockDevice project) define them.
const (
	nbdMagic       = 0x4e42444d41474943 // "NBDMAGIC"
	nbdOption      = 0x49484156454f5054 // "IHAVEOPT"
	nbdReplyOption = 0x3e889045565a9
	nbdRequest     = 0x25609513
	nbdReply       = 0x67446698

	nbdFixedNewstyle = 1 << 0
	nbdNoZeroes      = 1 << 1

	nbdOptExportName = 1
	nbdOptAbort      = 2
	nbdOptInfo       = 6
	nbdOptGo         = 7
	nbdAck           = 1
	nbdInfo          = 3
	nbdUnsupported   = 1<<31 | 1

	nbdHasFlags  = 1 << 0
	nbdSendFlush = 1 << 2
	nbdSendFUA   = 1 << 3

	nbdRead, nbdWrite, nbdDisconnect, nbdFlush = 0, 1, 2, 3
	nbdFUA                                     = 1 << 0
	nbdInvalid                                 = 22 // EINVAL

	maxRequest = 32 << 20
)

// Network is a disk for a virtual machine: the medium of Disk, with its volatile cache, behind a socket that speaks NBD. One machine uses it at
// a time. Its methods are safe for concurrent use.
type Network struct {
	listener net.Listener
	done     sync.WaitGroup

	mu     sync.Mutex // guards the fields below
	dev    *device
	conn   net.Conn      // of the machine, nil for none
	idle   chan struct{} // closed when the session has ended
	frozen chan struct{} // while the power is going: requests wait until it is closed, and get no answer
	closed bool
}

// Serve makes a medium of size bytes, filled from image unless that is empty, and serves it on a Unix socket at path. Close ends it.
func Serve(path string, size int64, image string) (*Network, error) {
	dev := newDevice(size)
	if image != "" {
		if err := dev.load(image); err != nil {
			return nil, err
		}
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("serve a disk: %w", err)
	}
	n := &Network{listener: l, dev: dev}
	n.done.Go(n.accept)
	return n, nil
}

func (n *Network) accept() {
	for {
		conn, err := n.listener.Accept()
		if err != nil {
			return // closed
		}
		n.mu.Lock()
		if n.conn != nil || n.closed {
			n.mu.Unlock()
			_ = conn.Close() // one machine at a time
			continue
		}
		n.conn, n.idle = conn, make(chan struct{})
		dev, idle := n.dev, n.idle
		n.mu.Unlock()
		n.done.Go(func() {
			_ = serveNBD(conn, dev, n.powered) // how a machine that lost its power ended the session says nothing
			_ = conn.Close()
			n.mu.Lock()
			n.conn = nil
			n.mu.Unlock()
			close(idle)
		})
	}
}

// disconnect ends the session and waits for the request in hand.
func (n *Network) disconnect() {
	n.mu.Lock()
	conn, idle := n.conn, n.idle
	n.mu.Unlock()
	if conn != nil {
		_ = conn.Close() // whatever it says, nobody reads on
		<-idle
	}
}

// powered waits while the power is going and tells whether it is there.
func (n *Network) powered() bool {
	n.mu.Lock()
	frozen := n.frozen
	n.mu.Unlock()
	if frozen == nil {
		return true
	}
	<-frozen
	return false
}

// Cut takes the power away: nothing that the machine sends from now on reaches the medium or is answered, off ends the machine, and what was
// not flushed survives according to mode and seed. The next machine that connects finds what is left.
func (n *Network) Cut(mode Mode, seed uint64, off func()) (Survivors, error) {
	frozen := make(chan struct{})
	n.mu.Lock()
	n.frozen = frozen
	n.mu.Unlock()
	off()
	close(frozen)
	n.disconnect()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.frozen = nil
	left, s, err := n.dev.survivors(mode, seed)
	if err != nil {
		return s, err
	}
	next := newDevice(int64(len(left)))
	next.tuning = n.dev.tuning
	copy(next.cache, left)
	copy(next.flash, left)
	n.dev = next
	return s, nil
}

// Tune changes the disk's behaviour from now on.
func (n *Network) Tune(t Tuning) { n.device().tune(t) }

// Stats returns what reached the medium since the last cut.
func (n *Network) Stats() Stats { return n.device().count() }

func (n *Network) device() *device {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.dev
}

// Save writes what a machine would read now to an image.
func (n *Network) Save(path string) error {
	dev := n.device()
	dev.mu.Lock()
	defer dev.mu.Unlock()
	return saveImage(path, dev.cache)
}

// Close ends the session and the socket.
func (n *Network) Close() error {
	n.mu.Lock()
	n.closed = true
	n.mu.Unlock()
	err := n.listener.Close()
	n.disconnect()
	n.done.Wait()
	return err
}

// serveNBD speaks with one client until it leaves: the fixed newstyle handshake, then simple replies. powered is asked before a request is
// carried out, and before it is answered.
func serveNBD(conn io.ReadWriter, dev *device, powered func() bool) error {
	if err := handshakeNBD(conn, dev.size()); err != nil {
		return err
	}
	var head struct {
		Magic  uint32
		Flags  uint16
		Type   uint16
		Cookie uint64
		Offset uint64
		Length uint32
	}
	for {
		if err := binary.Read(conn, binary.BigEndian, &head); err != nil {
			return err
		}
		if head.Magic != nbdRequest || head.Length > maxRequest {
			return fmt.Errorf("NBD request %x of %d bytes", head.Magic, head.Length)
		}
		var data []byte
		if head.Type == nbdRead || head.Type == nbdWrite {
			data = make([]byte, head.Length)
		}
		if head.Type == nbdWrite {
			if _, err := io.ReadFull(conn, data); err != nil {
				return err
			}
		}
		if !powered() {
			return io.EOF
		}
		inside := head.Offset+uint64(head.Length) <= uint64(dev.size())
		fault := uint32(0)
		switch {
		case head.Type == nbdDisconnect:
			return nil
		case head.Type == nbdFlush:
			dev.flush()
		case head.Type == nbdRead && inside:
			dev.readAt(data, int64(head.Offset))
		case head.Type == nbdWrite && inside:
			dev.writeAt(data, int64(head.Offset))
			if head.Flags&nbdFUA != 0 {
				dev.flush() // more than was asked for: the honest side of a card
			}
		default:
			fault = nbdInvalid
		}
		reply := binary.BigEndian.AppendUint32(nil, nbdReply)
		reply = binary.BigEndian.AppendUint32(reply, fault)
		reply = binary.BigEndian.AppendUint64(reply, head.Cookie)
		if head.Type == nbdRead && fault == 0 {
			reply = append(reply, data...)
		}
		if !powered() {
			return io.EOF
		}
		if _, err := conn.Write(reply); err != nil {
			return err
		}
	}
}

// handshakeNBD offers one export of size bytes under whatever name it is asked for.
func handshakeNBD(conn io.ReadWriter, size int64) error {
	hello := binary.BigEndian.AppendUint64(nil, nbdMagic)
	hello = binary.BigEndian.AppendUint64(hello, nbdOption)
	hello = binary.BigEndian.AppendUint16(hello, nbdFixedNewstyle|nbdNoZeroes)
	if _, err := conn.Write(hello); err != nil {
		return err
	}
	var flags uint32
	if err := binary.Read(conn, binary.BigEndian, &flags); err != nil {
		return err
	}
	const transmission = nbdHasFlags | nbdSendFlush | nbdSendFUA
	var head struct {
		Magic  uint64
		Option uint32
		Length uint32
	}
	for {
		if err := binary.Read(conn, binary.BigEndian, &head); err != nil {
			return err
		}
		if head.Magic != nbdOption || head.Length > 1<<16 {
			return fmt.Errorf("NBD option %x of %d bytes", head.Magic, head.Length)
		}
		if _, err := io.CopyN(io.Discard, conn, int64(head.Length)); err != nil {
			return err
		}
		switch head.Option {
		case nbdOptExportName:
			b := binary.BigEndian.AppendUint64(nil, uint64(size))
			b = binary.BigEndian.AppendUint16(b, transmission)
			if flags&nbdNoZeroes == 0 {
				b = append(b, make([]byte, 124)...)
			}
			_, err := conn.Write(b)
			return err
		case nbdOptGo, nbdOptInfo:
			info := binary.BigEndian.AppendUint16(nil, 0) // NBD_INFO_EXPORT
			info = binary.BigEndian.AppendUint64(info, uint64(size))
			info = binary.BigEndian.AppendUint16(info, transmission)
			if err := errors.Join(answerNBD(conn, head.Option, nbdInfo, info), answerNBD(conn, head.Option, nbdAck, nil)); err != nil {
				return err
			}
			if head.Option == nbdOptGo {
				return nil
			}
		case nbdOptAbort:
			return errors.Join(answerNBD(conn, head.Option, nbdAck, nil), io.EOF)
		default:
			if err := answerNBD(conn, head.Option, nbdUnsupported, nil); err != nil {
				return err
			}
		}
	}
}

func answerNBD(w io.Writer, option, kind uint32, data []byte) error {
	b := binary.BigEndian.AppendUint64(nil, nbdReplyOption)
	b = binary.BigEndian.AppendUint32(b, option)
	b = binary.BigEndian.AppendUint32(b, kind)
	b = binary.BigEndian.AppendUint32(b, uint32(len(data)))
	_, err := w.Write(append(b, data...))
	return err
}
