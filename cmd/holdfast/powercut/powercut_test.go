// Package powercut cuts the power of a leaf at random instants while a hub of three nodes takes its records, and accounts for every one of them.
//
// The leaf is a process of its own on a disk with a volatile write cache (rig/disk). A cut takes away what its streams had and the disk did not, and the journal
// brings it back, so that the hub never has what the leaf has not. After each cut a new process starts on what the cut left, attaches to the hub, and goes on.
package powercut

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/holdfast-edge/holdfast/forward"
	forwardhub "github.com/holdfast-edge/holdfast/forward/hub"
	"github.com/holdfast-edge/holdfast/rig/disk"
	"github.com/holdfast-edge/holdfast/rig/hub"
	"github.com/holdfast-edge/holdfast/storage"
)

var (
	cuts     = flag.Int("cuts", 20, "power cuts in TestPowerCuts; every 10 are made on one store; every second store is small, with a small journal, and makes room and gives checkpoints all the time; every second one is encrypted, every second one compressed, every fourth one drops its oldest records")
	long     = flag.Duration("long", 0, "how long TestPowerCutsOfLongLives goes on; 0: it is skipped")
	patience = flag.Duration("patience", time.Minute, "bounds every wait for something that a leaf or the hub does")
	seed     = flag.Uint64("seed", 0, "seed of the cuts' instants and survivors; 0 picks one and prints it")
)

const (
	cutsPerStore = 10
	diskSize     = 128 << 20
	maxStore     = 64 << 20
	heartbeat    = time.Second
	password     = "secret"
)

// card is the disk of a leaf: the pace of an SD card.
var card = disk.Tuning{FlushLatency: 5 * time.Millisecond, WriteLatency: 100 * time.Microsecond}

func TestMain(m *testing.M) {
	if code, ran := disk.Main(os.Args); ran {
		os.Exit(code)
	}
	if len(os.Args) == 3 && os.Args[1] == leafArg {
		if err := leafMain(os.Args[2]); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// The leaf's streams: SOURCED is a source of a hub stream, MIRRORED has a mirror there.
const (
	sourced  = "SOURCED"
	mirrored = "MIRRORED"
)

func streamNames() []string { return []string{sourced, mirrored} }

func streamConfigs(s spec) []storage.StreamConfig {
	bytes, keep, full := int64(24<<20), 24*time.Hour, storage.Refuse
	if s.Small {
		bytes, keep = 1<<20, 0
	}
	if s.Drops {
		full = storage.DropOldest
	}
	var all []storage.StreamConfig
	for _, name := range streamNames() {
		all = append(all, storage.StreamConfig{Name: name, MaxBytes: bytes, KeepForwarded: keep, WhenFull: full})
	}
	return all
}

func storageConfig(small bool) storage.Config {
	var c storage.Config
	c.SetDefaults()
	c.Budget = maxStore
	c.ReserveFree = 8 << 20
	c.Journal.Size = 16 << 20
	if small {
		c.Journal.Size = 1 << 20 // checkpoints all the time
	}
	return c
}

func forwardConfigs() map[string]forward.Config {
	return map[string]forward.Config{sourced: {Mode: "source"}, mirrored: {Mode: "mirror"}}
}

func hubStream(leaf, stream string) string {
	if stream == mirrored {
		return forwardhub.MirrorName(leaf, stream)
	}
	return stream
}

func devices() []device {
	return []device{{"gps", sourced, 1}, {"bus", sourced, 1}, {"zigbee", mirrored, 1}}
}

// need skips a test that this machine cannot run, loudly.
func need(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("SKIPPED, NOT TESTED: -short runs without root")
	}
	if err := disk.Available(); err != nil {
		t.Skipf("SKIPPED, NOT TESTED: %v", err)
	}
}

// startHub starts a hub that takes the streams of the leaves named.
func startHub(t *testing.T, leaves ...string) *hub.Cluster {
	t.Helper()
	var s forwardhub.Spec
	for _, name := range leaves {
		s.Leaves = append(s.Leaves, forwardhub.Leaf{Name: name, Password: password, Streams: []forwardhub.Stream{
			{Name: sourced, Mode: forwardhub.Source}, {Name: mirrored, Mode: forwardhub.Mirror}}})
	}
	plan, err := forwardhub.New(s)
	if err != nil {
		t.Fatal(err)
	}
	h, err := hub.Start(hub.Options{Accounts: plan.Config()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(closer(t, h))
	js, err := h.JetStream()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := forwardhub.Apply(t.Context(), js, plan); err != nil {
		t.Fatal(err)
	}
	return h
}

// pick returns the seed given by flag, or a new one, and logs it.
func pick(t *testing.T) uint64 {
	t.Helper()
	s := *seed
	if s == 0 {
		s = rand.Uint64()
	}
	t.Logf("seed %d", s)
	return s
}

// TestPowerCuts cuts the power again and again: nothing acknowledged may be lost, and everything that a leaf holds must be at the hub, once and in order.
func TestPowerCuts(t *testing.T) {
	need(t)
	stores := (*cuts + cutsPerStore - 1) / cutsPerStore
	var leaves []string
	for i := range stores {
		leaves = append(leaves, fmt.Sprintf("leaf%d", i))
	}
	h := startHub(t, leaves...)
	first := pick(t)
	var total report
	for i, leaf := range leaves {
		begun := time.Now()
		r := newRig(t, h, leaf, first+uint64(i), func(s *spec) {
			s.Small, s.Sealed = i%2 == 1, i%4 == 0 || i%4 == 3
			s.Packed, s.Drops = i%8 == 1 || i%8 == 2 || i%8 == 4 || i%8 == 7, i%4 == 3
		})
		for range min(cutsPerStore, *cuts-i*cutsPerStore) {
			r.live()
			r.cut(r.mode(), r.rand.IntN(2) == 0)
		}
		r.settle()
		r.untilAcked(100)
		account := r.finish(t.Context(), *patience)
		r.end()
		t.Logf("%s, %v: %v", leaf, time.Since(begun).Round(time.Second), account)
		if r.leapt {
			t.Errorf("%s found the hub ahead of it after a cut: the hub had records that were not on flash", leaf)
		}
		if r.spec.Small && account.OnLeaf >= account.Acked {
			t.Errorf("%s let go of nothing: the rig did not test a store that makes room", leaf)
		}
		total.add(account)
	}
	t.Log(total)
	if total.wrong() {
		t.Error("the account does not balance")
	}
	if total.Ahead > 0 {
		t.Error("the hub had records that were not on flash")
	}
	if total.Replays == 0 {
		t.Error("no start had anything to bring back: the rig did not test what it is for")
	}
}

// TestPowerCutOfYoungStore cuts the power at the first acknowledgements of a new store: streams, whose files were never synced before, must be there.
func TestPowerCutOfYoungStore(t *testing.T) {
	need(t)
	first := pick(t)
	for i := range 6 {
		r := newRig(t, nil, "young", first+uint64(i), func(*spec) {})
		r.untilAcked(1)
		r.cut(r.mode(), false)
		r.settle()
		if r.lost.Lost > 0 || len(r.acked) == 0 {
			t.Errorf("of %d acknowledged records %d were lost", len(r.acked), r.lost.Lost)
		}
		r.end()
	}
}

// live lets a life go on until an instant to cut at: while it starts, before the link is up or after, and after more or less data.
func (r *rig) live() {
	r.t.Helper()
	switch r.rand.IntN(6) {
	case 0:
		pause(r.t.Context(), time.Duration(r.rand.IntN(1200))*time.Millisecond) // the power comes back and goes at once
	case 1, 2:
		r.settle()
		r.untilAcked(1 + r.rand.IntN(500))
	default:
		r.settle()
		r.untilArrived()
		r.untilAcked(len(r.life.acknowledged()) + r.rand.IntN(1000))
	}
}

// mode picks what a cut leaves of the unflushed blocks.
func (r *rig) mode() disk.Mode {
	return []disk.Mode{disk.CutNone, disk.CutRandom, disk.CutRandom, disk.CutAll}[r.rand.IntN(4)]
}

// TestRigSees takes one protection after the other away: the rig must report what that costs, or its zeros mean nothing.
func TestRigSees(t *testing.T) {
	need(t)
	h := startHub(t, "nosync", "liar", "blind")
	t.Run("a missing sync call", func(t *testing.T) { seesMissingSync(t, h) })
	t.Run("a card that ignores flushes", func(t *testing.T) { seesLyingCard(t, h) })
	t.Run("sequences used twice", func(t *testing.T) { seesReusedSequences(t, h) })
}

// seesMissingSync takes the leaf's sync call away: acknowledged records are lost.
func seesMissingSync(t *testing.T, h *hub.Cluster) {
	r := newRig(t, h, "nosync", pick(t), func(s *spec) { s.Fault = noSync })
	r.untilArrived()
	r.untilAcked(500)
	r.cut(disk.CutNone, false)
	r.settle()
	t.Log(r.lost)
	if r.lost.Lost == 0 {
		t.Error("a leaf without the sync call lost nothing")
	}
}

// seesLyingCard lets the card drop flushes: acknowledged records are lost, whatever the leaf does.
func seesLyingCard(t *testing.T, h *hub.Cluster) {
	r := newRig(t, h, "liar", pick(t), func(*spec) {})
	r.untilArrived()
	lying := card
	lying.IgnoreFlush = true
	if err := r.disk.Tune(lying); err != nil {
		t.Fatal(err)
	}
	r.untilAcked(len(r.life.acknowledged()) + 500)
	r.cut(disk.CutNone, false)
	r.settle()
	t.Log(r.lost)
	if r.lost.Lost == 0 {
		t.Error("on a card that ignores flushes nothing was lost")
	}
}

// seesReusedSequences puts a leaf back to an older copy of its card, without a handshake: the hub ignores records whose sequence it has seen.
func seesReusedSequences(t *testing.T, h *hub.Cluster) {
	r := newRig(t, h, "blind", pick(t), func(s *spec) { s.Fault, s.Batch = blind, 50 })
	r.untilArrived()
	r.untilAcked(200)
	old := filepath.Join(r.dir, "old.img")
	onCopy := r.life.acknowledged()
	if _, err := r.disk.Cut(old, disk.CutAll, 1); err != nil {
		t.Fatal(err)
	}
	r.untilAcked(len(onCopy) + 500)
	newest := r.life.acknowledged()[len(onCopy)+499].id.String()
	r.life.until("the newest record at the hub", func() bool { return r.watch.holds(newest) })
	r.unplug(false)
	r.remember(onCopy)
	r.cuts++
	r.power(old)
	r.settle()
	r.untilAcked(300)
	account := r.finish(t.Context(), 8*time.Second)
	t.Log(account)
	if account.Lost > 0 {
		t.Error("acknowledged records were lost: this control keeps the sync")
	}
	if account.Missing == 0 {
		t.Error("a leaf that uses sequences twice lost nothing on the way to the hub")
	}
}
