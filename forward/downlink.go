package forward

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/forward/hub"
	"github.com/holdfast-edge/holdfast/leaf"
	"github.com/holdfast-edge/holdfast/storage"
)

const (
	downInterval = time.Second      // between looks at what has come down
	downRetry    = 3 * time.Second  // between attempts to attach
	downPatience = 30 * time.Second // for the uplink's handshakes, after link-up
	downFile     = "downlink.json"  // how far what came down is on flash, within Options.Dir
)

// Downlink says how far a stream that the leaf takes from the hub has come.
type Downlink struct {
	Stream   string    // hub.Commands or hub.Documents
	Attached bool      // what the hub has for us comes while the link is up
	Cause    string    // why it does not, empty if all is well
	Remedy   string    // what to do about it, empty if waiting is all
	Received uint64    // the newest message that is here and on flash, as numbered by the hub stream; 0: none, or unknown
	Behind   uint64    // messages that the hub has for us beyond, as it said last
	Heard    time.Time // when the hub was heard last, zero: not since the start
}

// downlink takes one stream from the hub. The local server acknowledges what it takes before that is on flash. So at each start, before anything is taken,
// the hub's consumer is set back to what is here: whatever a power cut took comes again.
type downlink struct {
	up     *Uplink
	stream string
	begun  uint64 // what the local stream had when its source was taken away
	turn   uint64 // of the hub's numbers, then; both written by Hold, and then by run

	// Used by run alone.
	since time.Time // of the link on which the stream has its source
	met   bool      // it had one in this run
	hub   hubClock

	mu    sync.Mutex // guards the field below
	state Downlink
}

// source is how the leaf takes the stream, in a turn of the hub's numbers. The hub keeps how far that has come, in the consumer that hub apply makes.
func (d *downlink) source(turn uint64) *jetstream.StreamSource {
	o := d.up.opts
	src := &jetstream.StreamSource{
		Name:     d.stream,
		External: &jetstream.ExternalStream{APIPrefix: "$JS." + o.Domain + ".API"},
		Consumer: &jetstream.StreamConsumerSource{Name: hub.DownConsumer(o.Leaf, d.stream), DeliverSubject: hub.DownSubject(o.Leaf, d.stream)},
	}
	if d.stream == hub.Documents {
		src.SubjectTransforms = []jetstream.SubjectTransformConfig{{
			Source: hub.DocumentSubject(o.Leaf, ">"), Destination: "$KV." + hub.DocumentBucket + ".>",
		}}
	}
	if turn > 0 {
		src.SubjectTransforms = append(src.SubjectTransforms, turned(turn))
	}
	return src
}

// Hold keeps the local streams that are fed from the hub from taking anything before Run knows from where on. It is called once, before the link is enabled.
func (u *Uplink) Hold(ctx context.Context, js jetstream.JetStream) error {
	for _, stream := range []string{hub.Commands, hub.Documents} {
		s, err := js.Stream(ctx, stream)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			continue
		}
		if err != nil {
			return fmt.Errorf("hold stream %s: %w", stream, err)
		}
		info := s.CachedInfo()
		for _, d := range u.downs {
			if d.stream == stream {
				d.remember(info)
			}
		}
		if err := hold(ctx, js, info.Config); err != nil {
			return err
		}
	}
	return nil
}

// Downlinks returns how far the streams that are taken from the hub have come.
func (u *Uplink) Downlinks() []Downlink {
	var all []Downlink
	for _, d := range u.downs {
		d.mu.Lock()
		all = append(all, d.state)
		d.mu.Unlock()
	}
	return all
}

// run takes the stream until ctx ends.
func (d *downlink) run(ctx context.Context) {
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), finalProof)
		defer cancel()
		_ = d.look(ctx) // else the next start knows less
	}()
	for ctx.Err() == nil {
		err := d.look(ctx)
		l := d.up.link.Link()
		if errors.Is(err, errHeld) && l.State == leaf.LinkUp {
			if err = d.attach(ctx); err == nil {
				d.since, d.met = l.Since, true
			}
		}
		pause := downInterval
		if err != nil && !errors.Is(err, errHeld) {
			pause = downRetry
		}
		d.tell(err)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// errHeld means that the stream is not fed yet.
var errHeld = errors.New("it waits for the link")

// tell shows why nothing is taken, or that it is.
func (d *downlink) tell(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	before := d.state.Cause
	d.state.Attached, d.state.Cause, d.state.Remedy = err == nil, "", ""
	if err == nil || errors.Is(err, errHeld) || d.up.link.Link().State != leaf.LinkUp {
		return
	}
	var r *refusal
	if d.state.Cause = err.Error(); errors.As(err, &r) {
		d.state.Remedy = r.remedy
	}
	if d.state.Cause != before {
		d.up.log.Warn("nothing is taken from the hub at present, will be tried again", "stream", d.stream, "err", err, "remedy", d.state.Remedy)
	}
}

// look notes how far the stream has come, and puts on flash that it has.
func (d *downlink) look(ctx context.Context) error {
	s, err := d.up.js.Stream(ctx, d.stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return errHeld
	}
	if err != nil {
		return fmt.Errorf("look at stream %s: %w", d.stream, err)
	}
	info := s.CachedInfo()
	if len(info.Config.Sources) == 0 || len(info.Sources) == 0 {
		return errHeld
	}
	from := info.Sources[0]
	d.mu.Lock()
	received := d.state.Received
	d.state.Behind = from.Lag
	if from.Active >= 0 {
		d.state.Heard = time.Now().Add(-from.Active)
	}
	d.mu.Unlock()
	if from.Seq > received {
		if err := d.up.store.Sync(); err != nil {
			return fmt.Errorf("put stream %s on flash: %w", d.stream, err)
		}
		if err := d.put(downMark{from.Seq, d.hub.now(), turnOf(info.Config.Sources[0])}); err != nil {
			return err
		}
	}
	if l := d.up.link.Link(); l.State != leaf.LinkUp || !l.Since.Equal(d.since) {
		d.remember(info)
		if err := hold(ctx, d.up.js, info.Config); err != nil {
			return err
		}
		return errHeld // the hub that comes may be another one than the one that went
	}
	if from.Error != nil {
		return fmt.Errorf("stream %s: %w", d.stream, from.Error)
	}
	return nil
}

// attach has the hub begin behind what is here, and then takes from it.
func (d *downlink) attach(ctx context.Context) error {
	cfg, err := d.config(ctx)
	if err != nil {
		return err
	}
	here, mark, known := d.here(ctx)
	next, pending, err := d.reset(ctx, 0)
	if err != nil {
		return err
	}
	if known && next <= here && !mark.At.IsZero() {
		if mark, err = d.setBack(ctx, mark, here, next, pending); err != nil {
			return err
		}
	}
	another := d.turn != mark.Turn // or it is not known which turn the stream was fed in
	switch {
	case known && another:
		if _, _, err = d.reset(ctx, mark.Received+1); err != nil {
			return err
		}
		cfg.Sources = []*jetstream.StreamSource{d.source(mark.Turn)}
	case known && here+1 < next:
		if here > 0 {
			d.up.log.Warn("the hub was told of more than is here, taking it again", "stream", d.stream, "here", here, "hub", next-1)
		}
		if _, _, err = d.reset(ctx, here+1); err != nil {
			return err
		}
	case !known:
		mark = downMark{Received: max(next, 1) - 1, Turn: mark.Turn}
	}
	if err := d.put(mark); err != nil {
		return err
	}
	if _, err := d.up.js.CreateOrUpdateStream(ctx, cfg); err != nil {
		return fmt.Errorf("feed stream %s: %w", d.stream, err)
	}
	if another {
		d.turn, d.begun = mark.Turn, 0
	}
	return nil
}

// here returns how far the stream has come, and how far it was known to be on flash. False means that the hub knows better: commands of a new store, or of one under whose name the hub has records of
// another, were taken, and perhaps executed, by that other one. Documents are only read, and an empty bucket wants all of them.
func (d *downlink) here(ctx context.Context) (at uint64, saved downMark, known bool) {
	saved, known = d.saved()
	at = saved.Received
	if d.turn == saved.Turn {
		at = max(at, d.begun)
	}
	if d.stream == hub.Documents {
		if _, err := d.up.js.Stream(ctx, d.stream); errors.Is(err, jetstream.ErrStreamNotFound) {
			at, saved = 0, downMark{Turn: saved.Turn}
		}
		return at, saved, true
	}
	owner := d.up.owner()
	for began := time.Now(); owner == ownerUnknown && len(d.up.feeds) > 0 && time.Since(began) < downPatience; owner = d.up.owner() {
		select {
		case <-ctx.Done():
			return 0, saved, false
		case <-time.After(handshakeRetry):
		}
	}
	return at, saved, (known || d.begun > 0) && (d.met || owner == ownerUs || len(d.up.feeds) == 0)
}

// config returns the local stream as it is to be.
func (d *downlink) config(ctx context.Context) (jetstream.StreamConfig, error) {
	saved, _ := d.saved()
	if d.stream == hub.Documents {
		return d.documents(saved.Turn), nil
	}
	s, err := d.up.js.Stream(ctx, d.stream)
	if err != nil { // the executor makes it
		return jetstream.StreamConfig{}, errHeld
	}
	cfg := s.CachedInfo().Config
	cfg.Sources = []*jetstream.StreamSource{d.source(saved.Turn)}
	return cfg, nil
}

// reset has the hub's consumer begin at a message of the hub stream; 0: behind the last one that was acknowledged. It returns where it begins, and how
// many the hub has for us from there on.
func (d *downlink) reset(ctx context.Context, seq uint64) (next, pending uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, hubTimeout)
	defer cancel()
	var body []byte
	if seq > 0 {
		body = fmt.Appendf(nil, `{"seq":%d}`, seq)
	}
	var answer struct {
		Next    uint64    `json:"reset_seq"`
		Pending uint64    `json:"num_pending"`
		Time    time.Time `json:"ts"`
		Error   *struct {
			Description string `json:"description"`
		} `json:"error"`
	}
	consumer := hub.DownConsumer(d.up.opts.Leaf, d.stream)
	asked := time.Now()
	m, err := d.up.nc.RequestWithContext(ctx, "$JS."+d.up.opts.Domain+".API.CONSUMER.RESET."+d.stream+"."+consumer, body)
	if err == nil {
		if err = json.Unmarshal(m.Data, &answer); err == nil && answer.Error != nil {
			err = errors.New(answer.Error.Description)
		}
	}
	if err != nil {
		return 0, 0, &refusal{
			cause:  fmt.Sprintf("consumer %s of hub stream %s does not answer: %v", consumer, d.stream, err),
			remedy: "let the fleet file say that this leaf takes commands and documents, then holdfast hub apply, and holdfast hub enrol for the right to",
		}
	}
	d.hub = hubClock{answer.Time, asked}
	return answer.Next, answer.Pending, nil
}

type downContent struct {
	Store    storage.StoreID      `json:"store"`
	Received map[string]uint64    `json:"received"`       // by stream
	At       map[string]time.Time `json:"at,omitempty"`   // by the hub's clock, not before it took the newest of these
	Turn     map[string]uint64    `json:"turn,omitempty"` // how often its numbers have begun anew
}

// downMark is how far a stream is on flash.
type downMark struct {
	Received uint64
	At       time.Time // zero: not known
	Turn     uint64
}

// loadDown reads what was saved for this store.
func (u *Uplink) loadDown() (downContent, error) {
	c := downContent{Store: u.store.ID()}
	b, err := os.ReadFile(filepath.Join(u.opts.Dir, downFile))
	if err == nil {
		err = json.Unmarshal(b, &c)
	}
	if c.Store != u.store.ID() {
		c = downContent{Store: u.store.ID()}
	}
	if c.Received == nil {
		c.Received = map[string]uint64{}
	}
	if c.At == nil {
		c.At = map[string]time.Time{}
	}
	if c.Turn == nil {
		c.Turn = map[string]uint64{}
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return c, err
}

// saved returns how far the stream was on flash when that was noted last.
func (d *downlink) saved() (downMark, bool) {
	d.up.downMu.Lock()
	defer d.up.downMu.Unlock()
	c, err := d.up.loadDown()
	if err != nil {
		d.up.log.Warn("how far the downlink has come is not known; the hub tells", "err", err)
	}
	received, known := c.Received[d.stream]
	return downMark{received, c.At[d.stream], c.Turn[d.stream]}, known
}

// put notes on flash how far the stream is there.
func (d *downlink) put(m downMark) error {
	d.up.downMu.Lock()
	defer d.up.downMu.Unlock()
	c, _ := d.up.loadDown() // what cannot be read is written anew
	if old, known := c.Received[d.stream]; (!known || old != m.Received || c.Turn[d.stream] != m.Turn) && d.up.opts.Dir != "" {
		c.Received[d.stream], c.At[d.stream], c.Turn[d.stream] = m.Received, m.At, m.Turn
		b, err := json.Marshal(c)
		if err == nil {
			err = storage.WriteFile(filepath.Join(d.up.opts.Dir, downFile), b, true)
		}
		if err != nil {
			return fmt.Errorf("note how far stream %s has come: %w", d.stream, err)
		}
	}
	d.mu.Lock()
	d.state.Received = m.Received
	d.mu.Unlock()
	return nil
}

// maxDocuments bounds what the hub's configuration documents may take on the leaf.
const maxDocuments = 16 << 20

// documents is the bucket from which local applications read their documents, by their names without the leaf's.
func (d *downlink) documents(turn uint64) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: hub.Documents, Description: "configuration documents from the hub", Sources: []*jetstream.StreamSource{d.source(turn)},
		MaxMsgsPerSubject: 1, MaxBytes: maxDocuments, AllowDirect: true, AllowRollup: true, DenyDelete: true, Discard: jetstream.DiscardOld,
	}
}
