package storage

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// TestMarksAfterCrash gives sources back what they noted with records whose streams a checkpoint has not made durable, and sends none of it on.
func TestMarksAfterCrash(t *testing.T) {
	b := newBed(t)
	b.start()
	source := ""
	for source = range b.options.Sources {
		break
	}
	r := b.record(source, 1)
	r.Mark = []byte("packet 7")
	plain := b.record(source, 2)
	if err := b.s.Append(b.ctx(), r, plain); err != nil {
		t.Fatal(err)
	}
	epoch := b.s.Epoch()
	if got := b.s.Marks(source); got != nil {
		t.Errorf("Marks = %v in the epoch that made them", got)
	}
	b.crash()

	b.open()
	want := []Mark{{Epoch: epoch, Seq: 1, Data: []byte("packet 7")}}
	if got := b.s.Marks(source); !reflect.DeepEqual(got, want) {
		t.Errorf("Marks after a crash = %v, want %v", got, want)
	}
	if got := b.s.Marks(source); got != nil {
		t.Errorf("Marks a second time = %v", got)
	}
	b.serve()
	b.attach()
	b.settle()
	for _, k := range b.captured(r.Stream) {
		if all := fmt.Sprint(k.Subject, k.Header, k.Data); strings.Contains(all, "packet 7") {
			t.Errorf("the stream has the mark: %s", all)
		}
	}
	long := b.record(source, 1)
	long.Mark = make([]byte, maxMark+1)
	if err := b.s.Append(b.ctx(), long); err == nil {
		t.Error("a mark of any length is taken")
	}
	b.stop() // every record is in its stream, and the journal lets go
	b.open()
	if got := b.s.Marks(source); got != nil {
		t.Errorf("Marks after a clean stop = %v", got)
	}
}
