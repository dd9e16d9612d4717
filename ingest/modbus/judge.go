package modbus

import (
	"fmt"
	"strings"

	"github.com/holdfast-edge/holdfast/ingest"
)

// judge shows how the bus is, as far as the last polls say.
func (b *bus) judge() {
	if b.wire == nil {
		return // why it is not open was said
	}
	var mute, garbled, partly, refused []string
	for _, s := range b.stations {
		name := fmt.Sprintf("%s (unit %d)", s.cfg.Name, s.cfg.Unit)
		switch {
		case s.fails > 0 && s.why == Garbled:
			garbled = append(garbled, name)
		case s.fails > 0:
			mute = append(mute, name)
		case s.missing != "":
			partly = append(partly, name+" does not answer for "+s.missing)
		case s.refused != "":
			refused = append(refused, name+" refuses "+s.refused)
		}
	}
	where := " on " + b.cfg.device()
	switch {
	case len(mute) == len(b.stations):
		b.cond.Set(ingest.Silent, "no device answers"+where, b.muteRemedy())
	case len(mute)+len(garbled)+len(partly) > 0:
		causes := partly
		if len(mute) > 0 {
			causes = append(causes, strings.Join(mute, ", ")+does(len(mute), " does not answer", " do not answer"))
		}
		if len(garbled) > 0 {
			causes = append(causes, strings.Join(garbled, ", ")+does(len(garbled), " answers", " answer")+" without a right checksum")
		}
		b.cond.Set(ingest.Silent, strings.Join(causes, "; ")+where,
			"check the device's power, wiring and unit number; if bytes are garbled: baud, parity, termination, and that no two have one unit number")
	case len(refused) > 0:
		b.cond.Set(ingest.Refused, strings.Join(refused, "; "), "compare table, address, address_base and type with the device's manual")
	default:
		b.cond.Set(ingest.Running, "", "")
	}
}

func (b *bus) muteRemedy() string {
	if b.cfg.Mode == ModeRTU {
		return "check power, that A and B are not swapped, baud, parity, and the unit numbers"
	}
	return "check the unit numbers, and that the gateway's own line works"
}

func does(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}
