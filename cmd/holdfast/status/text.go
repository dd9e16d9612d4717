package status

import (
	"fmt"
	"io"
	"sort"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// Text writes r for a person at a terminal: the verdict, what to do, then the figures.
func Text(w io.Writer, r Report) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s\n", r.Leaf, r.Verdict.Sentence)
	for _, f := range r.Verdict.Findings {
		fmt.Fprintf(&b, "  %-8s %s %s\n", f.Severity, f.Where, f.What)
		if f.Remedy != "" {
			fmt.Fprintf(&b, "           → %s\n", f.Remedy)
		}
	}
	fmt.Fprintf(&b, "\nlink %s", r.Link.State)
	if r.Link.Remote != "" {
		fmt.Fprintf(&b, " to %s", r.Link.Remote)
	}
	if r.Link.RTT > 0 {
		fmt.Fprintf(&b, ", round trip %.0f ms", r.Link.RTT*1000)
	}
	if r.Link.SentMonth+r.Link.ReceivedMonth > 0 {
		fmt.Fprintf(&b, ", %s sent and %s received today, %s and %s this month", size(uint64(r.Link.SentToday)), size(uint64(r.Link.ReceivedToday)),
			size(uint64(r.Link.SentMonth)), size(uint64(r.Link.ReceivedMonth)))
	}
	fmt.Fprintf(&b, ", clock %s, up for %s (epoch %d)\n", r.Clock, span(r.Now.Sub(r.Started)), r.Epoch)
	b.WriteString(wearLine(r.Wear))
	tw := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	fmt.Fprintln(tw, "STREAM\tSTATE\tSTORED\tAT HUB\tWAITING\tOLDEST\tRATE\tTHERE IN\tUSED")
	for _, s := range r.Streams {
		oldest, eta, used := "-", "-", size(s.Bytes)
		if s.Waiting > 0 && !s.Oldest.IsZero() {
			oldest = span(r.Now.Sub(s.Oldest))
		}
		if s.ETA > 0 {
			eta = span(time.Duration(s.ETA * float64(time.Second)))
		}
		if s.MaxBytes > 0 {
			used += " of " + size(uint64(s.MaxBytes))
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\t%.0f/s\t%s\t%s\n", s.Name, s.State, Count(s.Stored), Count(s.Forwarded), Count(s.Waiting), oldest, s.Rate, eta, used)
	}
	fmt.Fprintln(tw, "\t\t\t\t\t\t\t\t")
	fmt.Fprintln(tw, "SOURCE\tSTATE\tRECEIVED\tSTORED\tREJECTED\tLAST")
	for _, s := range r.Sources {
		var rejected uint64
		for _, n := range s.Rejected {
			rejected += n
		}
		last := "-"
		if !s.Last.IsZero() {
			last = span(r.Now.Sub(s.Last)) + " ago"
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\n", s.Name, s.State, Count(s.Received), Count(s.Stored), Count(rejected), last)
	}
	if len(r.Down) > 0 {
		fmt.Fprintln(tw, "\t\t\t\t\t")
		fmt.Fprintln(tw, "FROM HUB\tSTATE\tNEWEST HERE\tAT HUB\tHEARD\t")
		for _, d := range r.Down {
			heard := "-"
			if !d.Heard.IsZero() {
				heard = span(r.Now.Sub(d.Heard)) + " ago"
			}
			fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t\n", d.Name, d.State, Count(d.Received), Count(d.Behind), heard)
		}
	}
	if err := tw.Flush(); err != nil {
		return fmt.Errorf("lay out the status: %w", err)
	}
	if line := appsLine(r.Apps); line != "" {
		b.WriteString("\n" + line)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// wearLine says what is written to the card and how long it will last, as far as that is known.
func wearLine(w Wear) string {
	if w.PerDay == 0 {
		return "\n"
	}
	s := fmt.Sprintf("%s takes %s a day", w.name(), size(uint64(w.PerDay)))
	if w.PerRecord > 0 {
		s += fmt.Sprintf(", %s a record", size(uint64(w.PerRecord)))
	}
	if w.Endurance > 0 {
		s += fmt.Sprintf("; %s of endurance last for %s", size(uint64(w.Endurance)), span(time.Duration(w.Life*float64(time.Second))))
	}
	return s + "\n\n"
}

// Line is r in one line, for `systemctl status`.
func Line(r Report) string {
	s := r.Verdict.Sentence
	for _, f := range r.Verdict.Findings {
		if f.Severity == Problem {
			return s + " " + f.Where + " " + f.What
		}
	}
	return s
}

func size(n uint64) string {
	switch {
	case n < 1<<10:
		return fmt.Sprintf("%d B", n)
	case n < 1<<20:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	case n < 1<<30:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
}

func acknowledged(n uint64) string {
	return Count(n) + verb(n, " acknowledged record", " acknowledged records")
}

func verb(n uint64, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

func records(n uint64) string {
	return Count(n) + verb(n, " record", " records")
}

func reasons(m map[string]uint64) string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	s := ""
	for i, k := range keys {
		if i > 0 {
			s += ", "
		}
		s += k + " " + Count(m[k])
	}
	return s
}

// Count writes n with a comma between thousands.
func Count(n uint64) string {
	s := strconv.FormatUint(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// span writes a duration in the two largest units that matter to a person.
func span(d time.Duration) string {
	switch d = max(d, 0); {
	case d < time.Second:
		return "under a second"
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h %d min", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%d days", d/(24*time.Hour))
}
