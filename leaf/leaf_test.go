package leaf

import (
	"testing"

	"github.com/holdfast-edge/holdfast/rig/hub"
	"github.com/holdfast-edge/holdfast/rig/leak"
)

func TestLinkFollowsEnable(t *testing.T) {
	leak.Check(t)
	h := startHub(t, hub.Options{})
	s := startLeaf(t, Options{Hub: Hub{URLs: withUser(t, h.LeafURLs()...)}})
	if l := s.Link(); l.State != LinkOff {
		t.Fatalf("link after Start is %v, want off", l)
	}
	enable(t, s)
	l := waitState(t, s, LinkUp, patience)
	t.Logf("%+v", l)
	if err := s.Enable(false); err != nil {
		t.Fatal(err)
	}
	waitState(t, s, LinkOff, patience)
	enable(t, s)
	waitState(t, s, LinkUp, patience)
}
