package blocks

import (
	"errors"
	"fmt"
	"slices"
)

// Visit reads one block and calls visit for every whole message, as Walk does.
func (s Stream) Visit(number int, visit func(Message) error) (Block, error) {
	b, _, err := s.walkBlock(&scanner{}, number, &Report{}, visit, false)
	return b, err
}

// Cut takes everything from a sequence on away, so that the stream ends in front of it. Blocks that change are kept aside as they were, and returned. The
// index goes first and the newest block next: a power cut on the way leaves a stream that ends a little later. Nobody else may have the stream open.
func (s Stream) Cut(h Hands, seq uint64) (aside []string, err error) {
	if err := s.dropIndex(); err != nil {
		return nil, err
	}
	numbers, err := s.numbers()
	if err != nil {
		return nil, err
	}
	for _, n := range slices.Backward(numbers) {
		kept, later, err := s.before(n, seq)
		if err != nil {
			return aside, fmt.Errorf("cut stream %s: %w", s.Name, err)
		}
		if !later {
			return aside, nil
		}
		where, err := s.shorten(h, n, kept)
		if err != nil {
			return aside, fmt.Errorf("cut stream %s: %w", s.Name, err)
		}
		if where != "" {
			aside = append(aside, where)
		}
	}
	return aside, nil
}

// before returns the records of a block that are in front of a sequence, and whether there are others.
func (s Stream) before(n int, seq uint64) (kept []byte, later bool, err error) {
	image, _, err := s.read(n)
	if errors.Is(err, ErrEncrypted) {
		return nil, false, err
	}
	if err != nil {
		return nil, true, nil // nothing of it is readable
	}
	sc := &scanner{hash: newHash(s.blockName(n))}
	_, err = sc.block(image, func(at int, r record) error {
		if r.kind != deletion && r.Seq >= seq {
			later = true
			return nil
		}
		if r.fix != nil {
			kept = append(kept, r.fix...)
		} else {
			kept = append(kept, image[at:at+r.size]...)
		}
		return nil
	})
	return kept, later, err
}

// shorten leaves only some records in a block, or removes it if there are none.
func (s Stream) shorten(h Hands, n int, kept []byte) (aside string, err error) {
	path := s.BlockPath(n)
	if len(kept) == 0 {
		return h.Away(path)
	}
	if aside, err = h.Copy(path); err != nil {
		return "", err
	}
	if err := s.crypt(n, kept); err != nil {
		return aside, err
	}
	return aside, h.Write(path, kept)
}
