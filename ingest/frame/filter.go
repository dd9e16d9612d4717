package frame

// filter is a machine that looks into each message another machine finds.
type filter struct {
	machine
	each func(Frame) []Frame // what becomes of a message; nothing: its bytes are terminators

	empty int // bytes of messages that became nothing
}

func (f *filter) take() []Frame {
	var out []Frame
	for _, fr := range f.machine.take() {
		if fr.Reject != "" {
			out = append(out, fr)
			continue
		}
		made := f.each(fr)
		if len(made) == 0 {
			f.empty += fr.Size
		}
		out = append(out, made...)
	}
	return out
}

func (f *filter) terminators() int { return f.empty + f.machine.terminators() }

// newDecoder returns a machine for messages that end with a byte which an encoding keeps out of them. overhead is how many
// bytes more than limit the encoding can make.
func newDecoder(end byte, limit, overhead int, decode func([]byte) (data []byte, why string)) machine {
	raw := &delimiter{end: []byte{end}, limit: limit + overhead}
	return &filter{machine: raw, each: func(f Frame) []Frame {
		data, why := decode(f.Data)
		switch {
		case why == "" && len(data) > limit:
			why = Overlong
		case why == "" && len(data) == 0:
			return nil
		case why == "":
			f.Data = data
		}
		f.Reject = why
		return []Frame{f}
	}}
}
