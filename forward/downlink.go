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
	begun  uint64 // what the local stream had at the start; written by Hold

	mu    sync.Mutex // guards the field below
	state Downlink
}

// source is how the leaf takes the stream. The hub keeps how far that has come, in the consumer that hub apply makes.
func (d *downlink) source() *jetstream.StreamSource {
	o := d.up.opts
	return &jetstream.StreamSource{
		Name:     d.stream,
		External: &jetstream.ExternalStream{APIPrefix: "$JS." + o.Domain + ".API"},
		Consumer: &jetstream.StreamConsumerSource{Name: hub.DownConsumer(o.Leaf, d.stream), DeliverSubject: hub.DownSubject(o.Leaf, d.stream)},
	}
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
			for _, from := range info.Sources {
				if d.stream == stream {
					d.begun = max(d.begun, from.Seq)
				}
			}
		}
		if len(info.Config.Sources) == 0 {
			continue
		}
		cfg := info.Config
		cfg.Sources = nil
		if _, err := js.UpdateStream(ctx, cfg); err != nil {
			return fmt.Errorf("hold stream %s: %w", stream, err)
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
	for ctx.Err() == nil {
		err := d.look(ctx)
		if errors.Is(err, errHeld) && d.up.link.Link().State == leaf.LinkUp {
			err = d.attach(ctx)
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
		if err := d.save(from.Seq); err != nil {
			return err
		}
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
	here, known := d.here(ctx)
	next, err := d.reset(ctx, 0)
	if err != nil {
		return err
	}
	if known && here+1 < next {
		d.up.log.Warn("the hub was told of more than is here, taking it again", "stream", d.stream, "here", here, "hub", next-1)
		if next, err = d.reset(ctx, here+1); err != nil {
			return err
		}
	}
	if err := d.save(max(next, 1) - 1); err != nil {
		return err
	}
	if _, err := d.up.js.CreateOrUpdateStream(ctx, cfg); err != nil {
		return fmt.Errorf("feed stream %s: %w", d.stream, err)
	}
	return nil
}

// here returns how far the stream has come. False means that the hub knows better: commands of a new store, or of one under whose name the hub has records of
// another, were taken, and perhaps executed, by that other one. Documents are only read, and an empty bucket wants all of them.
func (d *downlink) here(ctx context.Context) (uint64, bool) {
	saved, known := d.saved()
	at := max(saved, d.begun)
	if d.stream == hub.Documents {
		if _, err := d.up.js.Stream(ctx, d.stream); errors.Is(err, jetstream.ErrStreamNotFound) {
			at = 0
		}
		return at, true
	}
	owner := d.up.owner()
	for began := time.Now(); owner == ownerUnknown && len(d.up.feeds) > 0 && time.Since(began) < downPatience; owner = d.up.owner() {
		select {
		case <-ctx.Done():
			return 0, false
		case <-time.After(handshakeRetry):
		}
	}
	return at, (known || d.begun > 0) && (owner == ownerUs || len(d.up.feeds) == 0)
}

// config returns the local stream as it is to be.
func (d *downlink) config(ctx context.Context) (jetstream.StreamConfig, error) {
	if d.stream == hub.Documents {
		return d.documents(), nil
	}
	s, err := d.up.js.Stream(ctx, d.stream)
	if err != nil { // the executor makes it
		return jetstream.StreamConfig{}, errHeld
	}
	cfg := s.CachedInfo().Config
	cfg.Sources = []*jetstream.StreamSource{d.source()}
	return cfg, nil
}

// reset has the hub's consumer begin at a message of the hub stream; 0: behind the last one that was acknowledged. It returns where it begins.
func (d *downlink) reset(ctx context.Context, seq uint64) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, hubTimeout)
	defer cancel()
	var body []byte
	if seq > 0 {
		body = fmt.Appendf(nil, `{"seq":%d}`, seq)
	}
	var answer struct {
		Next  uint64 `json:"reset_seq"`
		Error *struct {
			Description string `json:"description"`
		} `json:"error"`
	}
	consumer := hub.DownConsumer(d.up.opts.Leaf, d.stream)
	m, err := d.up.nc.RequestWithContext(ctx, "$JS."+d.up.opts.Domain+".API.CONSUMER.RESET."+d.stream+"."+consumer, body)
	if err == nil {
		if err = json.Unmarshal(m.Data, &answer); err == nil && answer.Error != nil {
			err = errors.New(answer.Error.Description)
		}
	}
	if err != nil {
		return 0, &refusal{
			cause:  fmt.Sprintf("consumer %s of hub stream %s does not answer: %v", consumer, d.stream, err),
			remedy: "let the fleet file say that this leaf takes commands and documents, then holdfast hub apply, and holdfast hub enrol for the right to",
		}
	}
	return answer.Next, nil
}

type downContent struct {
	Store    storage.StoreID   `json:"store"`
	Received map[string]uint64 `json:"received"` // by stream
}

// loadDown reads what was saved for this store.
func (u *Uplink) loadDown() (downContent, error) {
	c := downContent{Store: u.store.ID()}
	b, err := os.ReadFile(filepath.Join(u.opts.Dir, downFile))
	if err == nil {
		err = json.Unmarshal(b, &c)
	}
	if c.Received == nil || c.Store != u.store.ID() {
		c = downContent{Store: u.store.ID(), Received: map[string]uint64{}}
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return c, err
}

// saved returns how far the stream was on flash when that was noted last.
func (d *downlink) saved() (uint64, bool) {
	d.up.downMu.Lock()
	defer d.up.downMu.Unlock()
	c, err := d.up.loadDown()
	if err != nil {
		d.up.log.Warn("how far the downlink has come is not known; the hub tells", "err", err)
	}
	at, known := c.Received[d.stream]
	return at, known
}

// save notes on flash how far the stream is there.
func (d *downlink) save(received uint64) error {
	d.up.downMu.Lock()
	defer d.up.downMu.Unlock()
	c, _ := d.up.loadDown() // what cannot be read is written anew
	if at, known := c.Received[d.stream]; (!known || at != received) && d.up.opts.Dir != "" {
		c.Received[d.stream] = received
		b, err := json.Marshal(c)
		if err == nil {
			err = storage.WriteFile(filepath.Join(d.up.opts.Dir, downFile), b, true)
		}
		if err != nil {
			return fmt.Errorf("note how far stream %s has come: %w", d.stream, err)
		}
	}
	d.mu.Lock()
	d.state.Received = received
	d.mu.Unlock()
	return nil
}

// maxDocuments bounds what the hub's configuration documents may take on the leaf.
const maxDocuments = 16 << 20

// documents is the bucket from which local applications read their documents, by their names without the leaf's.
func (d *downlink) documents() jetstream.StreamConfig {
	source := d.source()
	source.SubjectTransforms = []jetstream.SubjectTransformConfig{{
		Source: hub.DocumentSubject(d.up.opts.Leaf, ">"), Destination: "$KV." + hub.DocumentBucket + ".>",
	}}
	return jetstream.StreamConfig{
		Name: hub.Documents, Description: "configuration documents from the hub", Sources: []*jetstream.StreamSource{source},
		MaxMsgsPerSubject: 1, MaxBytes: maxDocuments, AllowDirect: true, AllowRollup: true, DenyDelete: true, Discard: jetstream.DiscardOld,
	}
}
