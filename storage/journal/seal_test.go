package journal

import (
	"bytes"
	"errors"
	"reflect"
	"testing"
)

// TestSealed opens a ring with the right key, with another and with none, and looks for the entries on the medium.
func TestSealed(t *testing.T) {
	key, other := bytes.Repeat([]byte{7}, 32), bytes.Repeat([]byte{8}, 32)
	secret := []byte("what nobody may read who finds the card")
	g := []Entry{{Kind: 1, Incarnation: 5, Sequence: 9, Payload: secret}, {Kind: 2, Incarnation: 5, Sequence: 10}}
	with := func(key []byte) Options {
		o := small
		o.Key = key
		return o
	}
	for _, c := range []struct {
		name  string
		made  []byte
		opens []byte
		ok    bool
	}{
		{"the right key", key, key, true},
		{"another key", key, other, false},
		{"no key", key, nil, false},
		{"a key, and the ring is plain", nil, key, false},
		{"plain", nil, nil, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMedium()
			r, _ := mustOpen(t, with(c.made), m)
			mustAppend(t, r, g)
			mustAppend(t, r, g)
			found := false
			for _, n := range m.cached {
				found = found || bytes.Contains(n.data, secret)
			}
			if found != (c.made == nil) {
				t.Errorf("payload found on the medium: %v", found)
			}
			before := m.image()
			r, _, err := open(with(c.opens), m)
			if !c.ok {
				if !errors.Is(err, ErrKey) {
					t.Errorf("open() = %v, want ErrKey", err)
				}
				for name, n := range m.cached {
					if !bytes.Equal(n.data, before.cached[name].data) {
						t.Errorf("%s was written to", name)
					}
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := replayed(t, r); len(got) != 4 || !reflect.DeepEqual(got[2].Payload, secret) || len(got[3].Payload) != 0 {
				t.Errorf("Replay() = %s", list(got))
			}
		})
	}
}

// TestSealedTwice appends the same entry in two places and in two runs: nothing of what is on the medium repeats.
func TestSealedTwice(t *testing.T) {
	m := newMedium()
	o := small
	o.Key = bytes.Repeat([]byte{7}, 32)
	g := []Entry{{Kind: 1, Payload: bytes.Repeat([]byte("abcdefgh"), 32)}}
	seen := map[string]bool{}
	for range 3 {
		r, _ := mustOpen(t, o, m)
		for range 3 {
			at := mustAppend(t, r, g) - block
			file := m.cached[r.file(r.number(at))].data
			off := r.offset(at) + groupHeader + entryHeader
			text := string(file[off : off+256])
			if seen[text] {
				t.Fatal("the same payload gave the same bytes")
			}
			seen[text] = true
		}
		if err := r.Checkpoint(r.State().Tail); err != nil {
			t.Fatal(err)
		}
	}
}

// TestSealedDamage flips a byte of an encrypted entry: that is damage, not another key.
func TestSealedDamage(t *testing.T) {
	m := newMedium()
	o := small
	o.Key = bytes.Repeat([]byte{7}, 32)
	r, _ := mustOpen(t, o, m)
	at := r.State().Tail
	mustAppend(t, r, group(1, 1, 100))
	mustAppend(t, r, group(2, 1, 100))
	for _, n := range []*node{m.cached[r.file(0)]} {
		off := r.offset(at) + groupHeader + entryHeader + 50
		n.data[off] ^= 1
		n.flash[off] ^= 1
	}
	r, rec := mustOpen(t, o, m)
	if got := replayed(t, r); len(got) != 1 || got[0].Sequence != 2 || len(rec.Damage) != 1 {
		t.Errorf("Replay() = %s, damage %v, want the second entry and one damage", list(got), rec.Damage)
	}
}
