package storage

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/holdfast-edge/holdfast/storage/blocks"
)

// checkStreams walks the streams of all accounts.
func (r *CheckReport) checkStreams(counts *counterState) error {
	root := filepath.Join(r.Dir, "jetstream")
	accounts, err := os.ReadDir(root)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.add(Loss, root, err.Error(), "it is set aside and the streams begin anew")
		return nil
	}
	for _, a := range accounts {
		dir := filepath.Join(root, a.Name(), "streams")
		names, err := os.ReadDir(dir)
		if errors.Is(err, fs.ErrNotExist) || strings.HasPrefix(a.Name(), ".") {
			continue
		}
		if err != nil {
			r.add(Loss, dir, err.Error(), "it is set aside and the streams begin anew")
			continue
		}
		for _, n := range names {
			if !n.IsDir() || strings.HasPrefix(n.Name(), ".") {
				continue
			}
			var count *streamCount
			if counts != nil && a.Name() == account {
				count = counts.Streams[n.Name()]
			}
			if err := r.checkStream(a.Name(), n.Name(), filepath.Join(dir, n.Name()), count); err != nil {
				return err
			}
		}
	}
	if counts != nil {
		r.checkMissing(counts)
	}
	slices.SortFunc(r.Streams, func(a, b StreamCheck) int { return strings.Compare(a.Account+"/"+a.Name, b.Account+"/"+b.Name) })
	return nil
}

// checkMissing names streams that the counters know and that have no directory.
func (r *CheckReport) checkMissing(counts *counterState) {
	for name, c := range counts.Streams {
		dir := filepath.Join(r.Dir, "jetstream", account, "streams", name)
		if _, err := os.Stat(dir); err == nil || c == nil {
			continue
		}
		st := StreamCheck{Account: account, Name: name, Lost: lostOf(c, nil)}
		if len(st.Lost) > 0 {
			r.Streams = append(r.Streams, st)
			r.lost(dir, st)
		}
	}
}

func (r *CheckReport) lost(dir string, st StreamCheck) {
	for _, l := range st.Lost {
		r.add(Loss, dir, fmt.Sprintf("%d records between %d and %d are gone", l.Count, l.First, l.Last), "a gap record will tell")
	}
}

func (r *CheckReport) checkStream(account, name, dir string, count *streamCount) error {
	m := metaCopies{streams: filepath.Dir(dir), copies: filepath.Join(r.Dir, "store", metadataFolder(account))}
	why, file, err := metaFault(dir, name)
	switch {
	case err != nil:
		r.add(Damage, dir, err.Error(), "it is set aside")
	case why != "" && m.copyOf(name) != nil:
		r.add(Damage, filepath.Join(dir, file), why, "put back from its copy at the next start; the records are kept")
	case why != "":
		r.add(Damage, filepath.Join(dir, file), why, "the stream is made anew at the next start; the records are kept")
	}
	consumers, _ := os.ReadDir(filepath.Join(dir, serverConsumers)) // none is the usual
	for _, c := range consumers {
		path := filepath.Join(dir, serverConsumers, c.Name())
		if file, why, err := consumerFault(path, name); err == nil && why != "" && isTorn(path, name) {
			r.add(Note, filepath.Join(path, serverMetaSum), tornText, "the next start puts it right")
		} else if err != nil || why != "" {
			r.add(Damage, filepath.Join(path, file), errors.Join(errors.New(why), err).Error(), "the consumer is set aside at the next start and begins anew")
		}
	}
	st := StreamCheck{Account: account, Name: name, Lost: []LostRange{}, Damaged: []blocks.Block{}}
	s := blocks.Stream{Dir: dir, Name: name, Key: r.key}
	rep, err := s.Walk(nil)
	if errors.Is(err, blocks.ErrEncrypted) {
		st.Skipped = err.Error()
		r.Streams = append(r.Streams, st)
		r.add(Note, dir, "encrypted: its blocks were not read", "nothing was found about them, good or bad")
		return nil
	}
	if err != nil {
		r.add(Loss, dir, err.Error(), "it is set aside")
		r.Streams = append(r.Streams, st)
		return nil
	}
	st.Messages, st.Blocks = rep.Messages, len(rep.Blocks)
	if n := len(rep.Live); n > 0 {
		st.First, st.Last = rep.Live[0].First, rep.Live[n-1].Last
	}
	if count != nil {
		st.Lost = lostOf(count, rep.Live)
	}
	if rep.Index.Problem != "" {
		r.add(Note, filepath.Join(dir, "msgs", "index.db"), rep.Index.Problem, "the server makes it anew")
	}
	if count == nil && rep.Index.Last > rep.End {
		r.add(Loss, filepath.Join(dir, "msgs"), fmt.Sprintf("the end is gone: there were sequences up to %d, and are up to %d", rep.Index.Last, rep.End), "nothing gives it back")
	}
	r.checkBlocks(s, rep, &st, count != nil)
	r.lost(dir, st)
	r.Streams = append(r.Streams, st)
	return nil
}

// checkBlocks says what is wrong with single blocks, and counts losses by them where the counters cannot.
func (r *CheckReport) checkBlocks(s blocks.Stream, rep blocks.Report, st *StreamCheck, counted bool) {
	for i, b := range rep.Blocks {
		path := s.BlockPath(b.Number)
		if b.Problem != "" {
			r.add(Loss, path, b.Problem, "it is set aside at the next start")
		}
		if b.Mended > 0 {
			r.add(Damage, path, fmt.Sprintf("%d records have damaged bytes, and their checksum proves what they were", b.Mended), "put right at the next start or by `holdfast repair`")
		}
		if b.Mended > 0 || len(b.Damage) > 0 || b.Problem != "" {
			st.Damaged = append(st.Damaged, b)
		}
		st.Mended += b.Mended
		last := i == len(rep.Blocks)-1
		for n, d := range b.Damage {
			switch {
			case d.Before == 0 && last && len(st.Lost) == 0 && counted:
				r.add(Note, path, fmt.Sprintf("the last %d bytes are no record (%s): a write that was cut off; nothing that was acknowledged is in them", d.Bytes, d.Why), "they are dropped")
				continue
			case d.Before > 0:
				r.add(Damage, path, fmt.Sprintf("%d bytes at %d cannot be read (%s); whole records follow, from %d on", d.Bytes, d.Offset, d.Why, d.Before),
					"`holdfast repair`, or the next start, gives back what follows")
			default:
				r.add(Damage, path, fmt.Sprintf("%d bytes at %d cannot be read (%s); nothing whole follows in this block", d.Bytes, d.Offset, d.Why), "they are left out")
			}
			if n == 0 {
				st.Behind += countIn(rep.Live, d.After+1, b.Last)
			}
			if !counted {
				r.guess(rep, i, d, st)
			}
		}
	}
}

// guess says what damage may have taken, by the sequences around it.
func (r *CheckReport) guess(rep blocks.Report, i int, d blocks.Damage, st *StreamCheck) {
	first, last := d.After+1, d.Before
	for n := i - 1; d.After == 0 && n >= 0; n-- {
		if rep.Blocks[n].Last > 0 {
			first = rep.Blocks[n].Last + 1
			break
		}
	}
	for n := i + 1; last == 0 && n < len(rep.Blocks); n++ {
		last = rep.Blocks[n].First
	}
	if last == 0 {
		last = max(rep.Index.Last, first) + 1
	}
	if first > 1 && last > first {
		gone := blocks.Runs{{First: first, Last: last - 1}}.Without(rep.Deleted)
		if n := gone.Count(); n > 0 {
			st.Lost = append(st.Lost, LostRange{Position(first), Position(last - 1), n})
		}
	}
}

func countIn(live blocks.Runs, first, last uint64) uint64 {
	if first > last {
		return 0
	}
	return live.Count() - live.Without(blocks.Runs{{First: first, Last: last}}).Count()
}

// lostOf compares what a stream is known to hold with what is there.
func lostOf(count *streamCount, live blocks.Runs) []LostRange {
	held := count.Held
	held.runs = slices.Clone(held.runs)
	held.trim(count.Floor)
	var there census
	for _, run := range live {
		there.runs = append(there.runs, span{first: Position(run.First), last: Position(run.Last)})
	}
	lost := []LostRange{}
	for _, hole := range holesOf(held, there) {
		if captured, _ := held.count(hole.first, hole.last); captured > 0 {
			lost = append(lost, LostRange{hole.first, hole.last, captured})
		}
	}
	return lost
}
