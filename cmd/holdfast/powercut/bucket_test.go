package powercut

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sys/unix"

	"github.com/holdfast-edge/holdfast/cmd/holdfast/apps"
	"github.com/holdfast-edge/holdfast/leaf"
	"github.com/holdfast-edge/holdfast/storage"
)

// bootAnew makes this process see a boot of the kernel that nobody has seen before, as after a power cut.
func bootAnew(dir string) error {
	id := make([]byte, 16)
	rand.Read(id)
	path := filepath.Join(dir, "boot_id")
	if err := os.WriteFile(path, []byte(hex.EncodeToString(id)+"\n"), 0o600); err != nil {
		return err
	}
	return unix.Mount(path, "/proc/sys/kernel/random/boot_id", "", unix.MS_BIND, "")
}

// bucket is a local application: it tells what its bucket holds, and puts into it until ctx ends. The keeper beside it is the daemon's.
func (c *child) bucket(ctx context.Context, srv *leaf.Server, store *storage.Store) error {
	nc, err := srv.AppConnect()
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	kv, err := js.CreateOrUpdateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: "state", History: 64})
	if err != nil {
		return err
	}
	keeper := apps.New(srv, store, c.log)
	if err := errors.Join(keeper.Reserve(), keeper.Sync()); err != nil {
		return err
	}
	all, err := kv.WatchAll(ctx, jetstream.IncludeHistory())
	if err != nil {
		return err
	}
	for e := range all.Updates() {
		if e == nil {
			break
		}
		c.say("found %d %s", e.Revision(), e.Value())
	}
	if err := all.Stop(); err != nil {
		return err
	}
	c.say("flushed 0")
	for n, last := 0, uint64(0); ctx.Err() == nil; n++ {
		value := fmt.Sprintf("%d/%d", store.Epoch(), n)
		if last, err = kv.PutString(ctx, fmt.Sprintf("k%d", n%500), value); err != nil {
			return err
		}
		c.say("given %d %s", last, value)
		if n%200 == 100 {
			if err := errors.Join(keeper.Reserve(), keeper.Sync()); err != nil {
				return err
			}
			c.say("flushed %d", last)
		}
	}
	return nil
}

// bucketSeen is what a life has told of the bucket.
type bucketSeen struct {
	found   map[uint64]string // what it held at the start: revision and value
	listed  bool              // found is complete
	given   map[uint64]string // what has got a revision since
	flushed uint64            // revisions that are on flash
}

func newBucketSeen() bucketSeen {
	return bucketSeen{found: map[uint64]string{}, given: map[uint64]string{}}
}

// hearBucket takes a line about the bucket. Needs mu.
func (l *life) hearBucket(word, rest string) {
	var revision uint64
	var value string
	if n, err := fmt.Sscan(rest, &revision, &value); n == 0 {
		l.faults = append(l.faults, fmt.Sprintf("line %q: %v", rest, err))
		return
	}
	switch word {
	case "found":
		l.bucket.found[revision] = value
	case "given":
		l.bucket.given[revision] = value
	case "flushed":
		l.bucket.flushed, l.bucket.listed = revision, true
	}
}

// TestPowerCutsOfApplications cuts the power under a local application that puts into a bucket: a revision never stands for two values, and what was flushed
// before the cut is there. What was not may be gone, which the rig must see, or it tests nothing.
func TestPowerCutsOfApplications(t *testing.T) {
	need(t)
	t.Parallel()
	first := pick(t)
	lost, sum := 0, 0
	for i := range uint64(1 + *cuts/100) {
		given := map[uint64]string{}
		r := newRig(t, nil, "apps", first+i, func(s *spec) { s.Bucket, s.Sealed = true, (first+i)%2 == 1 })
		for range 4 {
			n := 50 + r.rand.IntN(400)
			r.life.until("puts into the bucket", func() bool { return len(r.life.bucket.given) >= n })
			before := r.life
			r.cut(r.mode(), false) // which has read all that the life said
			r.settle()
			for revision, value := range before.bucket.given {
				if old, twice := given[revision]; twice {
					t.Errorf("cut %d: revision %d was given to %s and to %s", r.cuts, revision, old, value)
				}
				given[revision] = value
			}
			r.life.until("what the bucket holds", func() bool { return r.life.bucket.listed })
			r.life.mu.Lock()
			for revision, value := range before.bucket.given {
				switch found, there := r.life.bucket.found[revision]; {
				case there && found != value:
					t.Errorf("cut %d: revision %d was %s, and is %s", r.cuts, revision, value, found)
				case !there && revision <= before.bucket.flushed:
					t.Errorf("cut %d: revision %d, %s, was on flash and is gone", r.cuts, revision, value)
				case !there:
					lost++
				}
			}
			r.life.mu.Unlock()
		}
		if r.lost.Lost > 0 {
			t.Errorf("%d captured records were lost", r.lost.Lost)
		}
		r.end()
		sum += len(given)
	}
	t.Logf("%d revisions given, %d of them lost between two flushes", sum, lost)
	if lost == 0 {
		t.Error("no cut took anything that was not flushed: the rig did not test what it is for")
	}
}
