package convert

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-edge/holdfast/ingest"
	"github.com/holdfast-edge/holdfast/ingest/ingesttest"
)

// pager is a made-up device that keeps each message until it is acknowledged, and the source that reads it.
type pager struct {
	mu    sync.Mutex // guards the fields below
	queue []ingest.Reading
	acked int

	state chan ingest.State // holds the state; never closed
	more  chan struct{}     // one token when something was queued; never closed
	tally ingest.Tally
}

func newPager() *pager {
	p := &pager{state: make(chan ingest.State, 1), more: make(chan struct{}, 1)}
	p.state <- ingest.State{Kind: ingest.Starting, Since: time.Now()}
	return p
}

func (p *pager) Name() string          { return "pager" }
func (p *pager) Counts() ingest.Counts { return p.tally.Counts() }

func (p *pager) State() ingest.State {
	s := <-p.state
	p.state <- s
	return s
}

func (p *pager) send(text string) {
	p.mu.Lock()
	p.queue = append(p.queue, ingest.Reading{Time: time.Now(), Data: []byte(text)})
	p.mu.Unlock()
	select {
	case p.more <- struct{}{}:
	default:
	}
}

func (p *pager) Run(ctx context.Context, deliver ingest.Deliver) error {
	<-p.state
	p.state <- ingest.State{Kind: ingest.Running, Since: time.Now()}
	for {
		p.mu.Lock()
		batch := append([]ingest.Reading(nil), p.queue...)
		p.mu.Unlock()
		if len(batch) == 0 {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-p.more:
			}
			continue
		}
		if err := deliver(ctx, batch...); err != nil {
			return err
		}
		p.tally.Deliver(len(batch))
		p.mu.Lock()
		p.queue, p.acked = p.queue[len(batch):], p.acked+len(batch)
		p.mu.Unlock()
	}
}

// TestContract runs the contract of sources through a decoder that understands none of its messages, so that they stay as they are.
func TestContract(t *testing.T) {
	ingesttest.Run(t, func(t *testing.T) ingesttest.Device {
		p := newPager()
		return ingesttest.Device{Source: open(t, p, nil), Send: p.send, Acknowledged: func() int {
			p.mu.Lock()
			defer p.mu.Unlock()
			return p.acked
		}}
	})
}
