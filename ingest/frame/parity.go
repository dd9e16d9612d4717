package frame

import (
	"math/bits"
	"time"
)

// parity is a machine for a line of 7 data bits whose parity bits arrive as the top bits of 8. It takes them off, and rejects each
// message that has a byte with a wrong one.
type parity struct {
	machine
	odd bool

	in      int64   // bytes so far
	settled int64   // of these, how many the machine holds no more
	wrong   []int64 // places of bytes with wrong parity that are not settled
	out     []Frame
}

func (p *parity) step(b byte, t time.Time) {
	if bits.OnesCount8(b)%2 == 1 != p.odd {
		p.wrong = append(p.wrong, p.in)
	}
	p.in++
	p.machine.step(b&0x7f, t)
	p.mark()
}

// mark rejects what the machine emitted if bytes of it are wrong.
func (p *parity) mark() {
	frames := p.machine.take()
	until := p.in - int64(p.held())
	for i := range frames {
		f := &frames[i]
		p.settled += int64(f.Size)
		end := p.settled
		if i == len(frames)-1 {
			end = until // terminators are settled with what they end
		}
		n := 0
		for n < len(p.wrong) && p.wrong[n] < end {
			n++
		}
		if n > 0 && f.Reject == "" {
			f.Reject = BadParity
		}
		p.wrong = p.wrong[n:]
	}
	p.settled = until
	if len(frames) > 0 {
		p.out = append(p.out, frames...)
	}
	for len(p.wrong) > 0 && p.wrong[0] < until {
		p.wrong = p.wrong[1:]
	}
}

func (p *parity) tick(t time.Time) {
	if m, ok := p.machine.(timed); ok {
		m.tick(t)
		p.mark()
	}
}

func (p *parity) reset(reason string) {
	p.machine.reset(reason)
	p.mark()
	p.wrong = nil
}

func (p *parity) take() []Frame {
	out := p.out
	p.out = nil
	return out
}
