package modbus

import (
	"cmp"
	"slices"
)

// batch is one request and the fields that its reply holds.
type batch struct {
	req    request
	first  int // address of the first register or coil
	coils  bool
	points []int // positions of the fields, by address
}

// plan puts the fields of a device into as few requests as its limits allow.
func plan(d Device, points []*point) []batch {
	byAddress := make([]int, len(points))
	for i := range byAddress {
		byAddress[i] = i
	}
	slices.SortStableFunc(byAddress, func(i, j int) int {
		a, b := points[i], points[j]
		return cmp.Or(cmp.Compare(a.Table, b.Table), cmp.Compare(a.address, b.address))
	})
	var out []batch
	for at := 0; at < len(byAddress); {
		first := points[byAddress[at]]
		most, gap := d.MaxBatch, d.MaxGap
		if first.coil() {
			most = min(16*most, maxCoils)
		}
		end, n := first.address+first.count, 1
		for at+n < len(byAddress) {
			p := points[byAddress[at+n]]
			newEnd := max(end, p.address+p.count)
			if p.Table != first.Table || p.address > end+gap || newEnd-first.address > most {
				break
			}
			end = newEnd
			n++
		}
		out = append(out, newBatch(d, points, byAddress[at:at+n], end-first.address))
		at += n
	}
	return out
}

func newBatch(d Device, points []*point, which []int, count int) batch {
	first := points[which[0]]
	return batch{req: readRequest(byte(d.Unit), first.Table, first.address, count), first: first.address, coils: first.coil(), points: which}
}

// split makes a request for each field: a device that refuses a range may have only some of it.
func (b batch) split(d Device, points []*point) []batch {
	var out []batch
	for i := range b.points {
		out = append(out, newBatch(d, points, b.points[i:i+1], points[b.points[i]].count))
	}
	return out
}

// cut returns a copy of the bytes of a field from the reply to the batch: its registers, or one byte with its coil.
func (b batch) cut(pdu []byte, p *point) []byte {
	data := pdu[2:]
	if b.coils {
		i := p.address - b.first
		return []byte{data[i/8] >> (i % 8) & 1}
	}
	from := 2 * (p.address - b.first)
	return slices.Clone(data[from : from+2*p.count])
}
