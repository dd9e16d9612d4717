package forward

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/holdfast-edge/holdfast/forward/hub"
	"github.com/holdfast-edge/holdfast/storage"
)

const (
	// hubTimeout bounds one request to the hub: a satellite link's round trip and a hub that elects a leader.
	hubTimeout = 6 * time.Second
	// silentTimeout, and four round trips, bounds the requests to a hub stream that did not answer the last one.
	silentTimeout = 2 * time.Second
	// muteAfter is how long a hub whose link is up may leave questions without an answer. A silent link is noticed before that.
	muteAfter = 35 * time.Second

	headerRequiredLevel = "Nats-Required-Api-Level" // nats-server 2.11 and newer answer 412 when they have less
	headerStatus        = "Status"
	headerSequence      = "Nats-Sequence"
	headerSource        = "Nats-Stream-Source"
)

// newest is the hub's newest record of a stream of ours.
type newest struct {
	found bool
	pos   storage.Position // sequence in our stream
	id    storage.ID
	size  int // bytes of the answer
}

// errHubStream means that nobody answers for the hub stream.
var errHubStream = errors.New("the hub stream does not answer")

// read asks for the hub's newest record of the stream by direct get. Any replica may answer, also one that lags behind.
func (f *feed) read(ctx context.Context) (newest, error) {
	patience := hubTimeout
	if f.silent.Load() { // it is asked again and again, and who is to know waits
		patience = min(hubTimeout, silentTimeout+4*f.up.shares.roundTrip())
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	req := nats.NewMsg("$JS." + f.up.opts.Domain + ".API.DIRECT.GET." + f.hubStream + "." + f.filter)
	req.Header.Set(headerRequiredLevel, strconv.Itoa(hub.MinAPILevel))
	began := time.Now()
	m, err := f.up.nc.RequestMsgWithContext(ctx, req)
	f.silent.Store(errors.Is(err, nats.ErrNoResponders) || errors.Is(err, context.DeadlineExceeded))
	if f.silent.Load() {
		return newest{}, errHubStream
	}
	if err != nil {
		return newest{}, fmt.Errorf("read the hub's newest record: %w", err)
	}
	f.up.shares.trip(time.Since(began))
	switch status := m.Header.Get(headerStatus); status {
	case "":
	case "404":
		return newest{}, nil
	case "412":
		return newest{}, f.up.tooOld(ctx, 0)
	default:
		return newest{}, fmt.Errorf("read the hub's newest record: status %s %s", status, m.Header.Get("Description"))
	}
	n, err := parseNewest(m.Header, f.name, f.mirror)
	if err != nil {
		return newest{}, &refusal{
			state: Refused, cause: fmt.Sprintf("hub stream %s has a record on our subjects that did not come through us: %v", f.hubStream, err),
			remedy: "find out who publishes to " + f.filter + " on the hub, and remove that record", retry: refusedRetry,
		}
	}
	n.size = m.Size()
	return n, nil
}

// parseNewest reads position and ID of a record at the hub. A mirror has our sequence, a sourced record names it in a header of the
// hub's server: "<stream>[:<hash>] <sequence> <filter> <transform> <subject> [<identity>]".
func parseNewest(h nats.Header, stream string, mirror bool) (newest, error) {
	n := newest{found: true}
	var err error
	if n.id, err = storage.ParseID(h.Get(storage.HeaderID)); err != nil {
		return newest{}, err
	}
	text := h.Get(headerSequence)
	if !mirror {
		fields := strings.Fields(h.Get(headerSource))
		if len(fields) < 2 {
			return newest{}, fmt.Errorf("its %s header %q names no sequence", headerSource, h.Get(headerSource))
		}
		if name, _, _ := strings.Cut(fields[0], ":"); name != stream {
			return newest{}, fmt.Errorf("it came from a stream %s", name)
		}
		text = fields[1]
	}
	seq, err := strconv.ParseUint(text, 10, 64)
	if err != nil || seq == 0 {
		return newest{}, fmt.Errorf("its sequence %q is not a number above 0", text)
	}
	n.pos = storage.Position(seq)
	return n, nil
}

// verify asks the hub for its JetStream API level, the only word on its version that least rights allow.
func (u *Uplink) verify(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, hubTimeout)
	defer cancel()
	asked := time.Now()
	m, err := u.nc.RequestWithContext(ctx, "$JS."+u.opts.Domain+".API.INFO", nil)
	if errors.Is(err, context.DeadlineExceeded) {
		return u.mute(asked)
	}
	u.unanswered.Store(nil)
	if errors.Is(err, nats.ErrNoResponders) {
		return &refusal{
			state: Handshake, cause: fmt.Sprintf("no JetStream of domain %q answers at the hub", u.opts.Domain),
			remedy: "check hub.domain, that JetStream is enabled for the leaf's account, and the user's permissions (holdfast hub plan)", retry: handshakeRetry,
		}
	}
	if err != nil {
		return fmt.Errorf("ask the hub for its version: %w", err)
	}
	var info struct {
		API struct {
			Level int `json:"level"`
		} `json:"api"`
		Error *struct {
			Description string `json:"description"`
		} `json:"error"`
	}
	if err := json.Unmarshal(m.Data, &info); err != nil {
		return fmt.Errorf("ask the hub for its version: %w", err)
	}
	if info.Error != nil {
		return fmt.Errorf("ask the hub for its version: %s", info.Error.Description)
	}
	if info.API.Level < hub.MinAPILevel {
		return u.tooOld(ctx, info.API.Level)
	}
	return nil
}

// mute says what it may mean that a question has not been answered. The leaf's server keeps to what our user at the hub may do, without a word: a question
// that is not allowed is not sent, and an answer that is not allowed does not come.
func (u *Uplink) mute(asked time.Time) error {
	u.unanswered.CompareAndSwap(nil, &asked)
	if first := u.unanswered.Load(); first == nil || time.Since(*first) < muteAfter {
		return errors.New("the hub does not answer when it is asked for its version")
	}
	return &refusal{
		state: Refused, cause: fmt.Sprintf("the link is up, and the hub answers none of our questions: permission denied, the credentials there are of another leaf or too weak for leaf %s", u.opts.Leaf),
		remedy: fmt.Sprintf("bring the file that `holdfast hub enrol %s` writes, or correct leaf.name; in a hub of your own give its user the rights of `holdfast hub users`", u.opts.Leaf),
		retry:  refusedRetry,
	}
}

// tooOld is the refusal of a hub, by the version that it greets with, or by its API level if that cannot be learned.
func (u *Uplink) tooOld(ctx context.Context, level int) error {
	found := fmt.Sprintf("a server of JetStream API level %d", level)
	if g, err := u.link.Greet(ctx); err == nil && g.Version != "" && g.APILevel < hub.MinAPILevel {
		found = "nats-server " + g.Version
	} else if level == 0 {
		found = "an older server among its nodes"
	}
	return &refusal{
		state: Refused, cause: fmt.Sprintf("the hub has %s, and nats-server %s or newer is needed (API level %d)", found, hub.MinVersion, hub.MinAPILevel),
		remedy: "update all servers of the hub", retry: refusedRetry,
	}
}
