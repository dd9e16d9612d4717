package powercut

import (
	"context"
	"io"
	"maps"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-edge/holdfast/rig/disk"
	"github.com/holdfast-edge/holdfast/rig/hub"
	"github.com/holdfast-edge/holdfast/rig/poll"
	"github.com/holdfast-edge/holdfast/rig/wire"
	"github.com/holdfast-edge/holdfast/storage"
)

// rig is one store of one leaf, going through power cuts.
type rig struct {
	t    *testing.T
	rand *rand.Rand
	hub  *hub.Cluster // all its leaves' streams are made; nil: none
	js   jetstream.JetStream
	spec spec
	dir  string // of disks and images

	disk     *disk.Disk
	life     *life
	wire     *wire.Wire // the link of the present life
	watch    *watch
	epochs   map[string]bool   // used by earlier lives
	acked    map[string]uint64 // ID -> number, of everything acknowledged before a cut
	rejected map[string]uint64 // by source, of all lives that were cut
	cuts     int
	lost     report
	letsGo   bool // the store may remove records that the hub holds
	older    bool // the card is an older copy: the hub and the devices know of more than its account does, and what it holds is being moved
	leapt    bool // a life has found the hub ahead of it
}

// leapMessage is logged by a life that finds the hub ahead of it.
const leapMessage = "the hub is ahead of us"

// newRig starts the first life of a leaf, on an empty disk. Without a hub it has no link.
func newRig(t *testing.T, h *hub.Cluster, leaf string, seed uint64, change func(*spec)) *rig {
	t.Helper()
	r := &rig{t: t, rand: rand.New(rand.NewPCG(seed, 1)), hub: h, dir: t.TempDir(), acked: map[string]uint64{}, rejected: map[string]uint64{}, epochs: map[string]bool{}}
	r.spec = spec{Name: leaf, Devices: devices(), Batch: 20}
	change(&r.spec)
	r.letsGo = r.spec.Small || r.spec.Rest > 0
	if h != nil {
		var err error
		if r.js, err = h.JetStream(); err != nil {
			t.Fatal(err)
		}
		if r.watch, err = startWatch(t.Context(), r.js, leaf); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.watch.close)
	}
	r.power("")
	r.settle()
	return r
}

// power starts a life on a disk that holds image, or nothing.
func (r *rig) power(image string) {
	r.t.Helper()
	if r.hub != nil {
		var err error
		if r.wire, err = wire.New(r.hub.LeafAddr(r.rand.IntN(r.hub.Len()))); err != nil {
			r.t.Fatal(err)
		}
		r.t.Cleanup(closer(r.t, r.wire))
		link := url.URL{Scheme: "nats-leaf", Host: r.wire.Addr(), User: url.UserPassword(r.spec.Name, password)}
		r.spec.Hub = []string{link.String()}
	}
	dir := filepath.Join(r.dir, "life"+strconv.Itoa(r.cuts))
	if err := os.Mkdir(dir, 0o755); err != nil {
		r.t.Fatal(err)
	}
	var err error
	if r.disk, err = disk.New(disk.Options{Dir: dir, Size: diskSize, Image: image, Tuning: card}); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(closer(r.t, r.disk)) // runs after the life's own cleanup, and does nothing after a cut
	r.spec.Data = filepath.Join(r.disk.Dir(), "data")
	if err := os.MkdirAll(r.spec.Data, 0o700); err != nil {
		r.t.Fatal(err)
	}
	r.life = startLife(r.t, r.spec)
}

// closer returns a cleanup.
func closer(t *testing.T, c io.Closer) func() {
	return func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

// settle waits until the life has told what its disk holds, and counts what was acknowledged before the last cut and is not there any more. Of a store
// that lets go of what the hub holds that cannot be told here: what it lost is missing at the hub in the end.
func (r *rig) settle() {
	r.t.Helper()
	r.life.until("the dump at the start", func() bool { return r.life.dumps == 1 })
	if r.life.logged("records were brought back") {
		r.lost.Replays++
	}
	r.life.mu.Lock()
	defer r.life.mu.Unlock()
	r.opened()
	if r.letsGo {
		return
	}
	for id := range r.acked {
		if !r.life.has[id] {
			r.lost.Lost++
			r.lost.example("acknowledged before cut %d, not on the leaf after it: %s", r.cuts, id)
		}
	}
}

// cut cuts the power now, and starts the next life on what is left. silently: the hub is not told that the connection is gone.
func (r *rig) cut(mode disk.Mode, silently bool) {
	r.t.Helper()
	r.cuts++
	image := filepath.Join(r.dir, "cut"+strconv.Itoa(r.cuts)+".img")
	r.life.stop()                 // so that nothing is sent to the hub behind the cut
	acks := r.life.acknowledged() // each of them was on flash before the cut
	survivors, err := r.disk.Cut(image, mode, r.rand.Uint64())
	if err != nil {
		r.t.Fatal(err)
	}
	r.unplug(silently)
	for source, n := range r.life.rejects { // nothing is said any more
		r.rejected[source] += n
	}
	if r.epochs[r.life.epoch] {
		r.t.Errorf("cut %d: store and epoch %s were used before", r.cuts, r.life.epoch)
	}
	r.epochs[r.life.epoch] = r.life.epoch != ""
	r.remember(acks)
	r.t.Logf("cut %d, mode %s, silent %v: %d records acknowledged in this life, blocks %+v", r.cuts, mode, silently, len(acks), survivors)
	r.power(image)
	if err := os.Remove(image); err != nil {
		r.t.Fatal(err)
	}
}

// unplug ends a life and its disk. silently: the hub is not told that the connection is gone.
func (r *rig) unplug(silently bool) {
	r.t.Helper()
	if r.wire != nil && silently {
		r.wire.Swallow(true)
	} else if r.wire != nil {
		r.wire.Cut()
	}
	r.life.kill()
	r.leapt = r.leapt || r.life.logged(leapMessage)
	if err := r.disk.Close(); err != nil {
		r.t.Fatal(err)
	}
}

// remember keeps what was acknowledged in a life, and makes the devices of the next one go on behind it.
func (r *rig) remember(acks []ack) {
	for _, a := range acks {
		r.acked[a.id.String()] = a.number
		i := slices.IndexFunc(r.spec.Devices, func(d device) bool { return d.Name == a.id.Source })
		r.spec.Devices[i].Next = max(r.spec.Devices[i].Next, a.number+1)
	}
}

// untilAcked waits for n acknowledged records of this life.
func (r *rig) untilAcked(n int) {
	r.t.Helper()
	r.life.until("acknowledgements", func() bool { return len(r.life.acks) >= n })
}

// untilArrived waits until the hub holds a record of this life.
func (r *rig) untilArrived() {
	r.t.Helper()
	r.untilAcked(1)
	arrived := func() bool {
		if !r.spec.Drops {
			return r.watch.holds(r.life.acknowledged()[0].id.String())
		}
		return slices.ContainsFunc(r.life.acknowledged(), func(a ack) bool { return r.watch.holds(a.id.String()) })
	}
	if !poll.Wait(r.t.Context(), *patience, arrived) {
		r.t.Fatalf("no record of this life is at the hub %v after cut %d\n%s", *patience, r.cuts, r.life.log())
	}
}

// untilForwarded waits until the leaf's account says that nothing waits, or the limit is over.
func (r *rig) untilForwarded(limit time.Duration) {
	r.t.Helper()
	_ = poll.Wait(r.t.Context(), limit, func() bool { // what waits in the end is counted by the audit
		before := r.life.accounts()
		r.life.say("account")
		r.life.until("an account", func() bool { return r.life.told > before })
		r.life.mu.Lock()
		defer r.life.mu.Unlock()
		return r.life.account.waiting() == 0
	})
}

// finish stops the devices, waits until everything has arrived or the limit is over, and returns the account.
func (r *rig) finish(ctx context.Context, limit time.Duration) report {
	r.t.Helper()
	r.life.say("stop")
	r.life.until("the devices' end", func() bool { return r.life.stopped })
	r.life.say("dump")
	r.life.until("the dump at the end", func() bool { return r.life.dumps == 2 })
	r.remember(r.life.acknowledged())
	onLeaf := maps.Clone(r.life.has) // nothing is said any more
	// What has not arrived in time is counted by the audit.
	_ = poll.Wait(ctx, limit, func() bool { return (r.spec.Drops || holdsAll(r.watch, r.acked)) && holdsAll(r.watch, onLeaf) })
	r.untilForwarded(limit)
	total := r.lost
	total.Cuts, total.Acked, total.OnLeaf = r.cuts, len(r.acked), len(onLeaf)
	arrived, err := r.atHub(ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	acked, dropped := r.acked, 0
	if r.spec.Drops { // what is nowhere must have been told of
		acked = maps.Clone(r.acked)
		maps.DeleteFunc(acked, func(id string, _ uint64) bool { return !onLeaf[id] && !r.watch.holds(id) })
		dropped = len(r.acked) - len(acked)
	}
	total.audit(arrived, acked, onLeaf)
	r.balance(&total, arrived)
	if dropped > total.Dropped {
		total.Missing += dropped - total.Dropped
		total.example("%d acknowledged records are nowhere, gap records tell of %d", dropped, total.Dropped)
	}
	if r.letsGo {
		total.Ahead = 0 // not known: the leaf let go of most
	}
	if total.wrong() {
		r.t.Logf("log of the last life:\n%s", r.life.log())
	}
	return total
}

// atHub reads everything of this leaf from the hub. A read that fails is begun anew: a cluster may move the consumer meanwhile.
func (r *rig) atHub(ctx context.Context) (all []arrival, err error) {
	for _, s := range streamNames() {
		var part []arrival
		poll.Wait(ctx, *patience, func() bool {
			part = part[:0]
			err = readStream(ctx, r.js, hubStream(r.spec.Name, s), storage.DataSubject(r.spec.Name, s, ">"), func(id string, data []byte) {
				part = append(part, newArrival(s, id, data))
			})
			return err == nil
		})
		if err != nil {
			return nil, err
		}
		all = append(all, part...)
	}
	return all, nil
}

// end ends the last life and takes its disk down.
func (r *rig) end() {
	r.t.Helper()
	r.life.kill()
	r.leapt = r.leapt || r.life.logged(leapMessage)
	if r.watch != nil {
		r.watch.close()
	}
	if err := r.disk.Close(); err != nil {
		r.t.Fatal(err)
	}
}
