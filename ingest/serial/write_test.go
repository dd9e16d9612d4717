package serial

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-edge/holdfast/ingest"
	"github.com/holdfast-edge/holdfast/ingest/frame"
	"github.com/holdfast-edge/holdfast/rig/leak"
	"github.com/holdfast-edge/holdfast/rig/poll"
)

// hears reads what the source has written, until it is want.
func (p *plug) hears(want string) {
	p.t.Helper()
	got := make([]byte, len(want))
	if err := p.master.SetReadDeadline(time.Now().Add(patience)); err != nil {
		p.t.Fatal(err)
	}
	if n, err := io.ReadFull(p.master, got); err != nil || string(got) != want {
		p.t.Fatalf("the device heard %q, %v, want %q", got[:n], err, want)
	}
}

// listens is hears beside what follows, until the function it returns is called.
func (p *plug) listens(want string) (heard func()) {
	done := make(chan struct{})
	go func() { defer close(done); p.hears(want) }()
	return func() { <-done }
}

// order sends a command with a time-out of its own.
func (r *run) order(t *testing.T, data string, timeout time.Duration) ingest.Outcome {
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	return r.Command(ctx, ingest.Command{ID: "c", Source: "gps", Data: []byte(data)})
}

func TestCommand(t *testing.T) {
	leak.Check(t)
	p := newPlug(t)
	cfg := p.config()
	cfg.Command.End = `\r`
	r := start(t, cfg, lines)
	r.becomes(t, ingest.Running)
	heard := p.listens("VALVE 1 OPEN\r")
	if out := r.order(t, "VALVE 1 OPEN", patience); out.State != ingest.OutcomeDone {
		t.Errorf("Command() = %+v", out)
	}
	heard()
	if out := r.order(t, "", patience); out.State != ingest.OutcomeRefused {
		t.Errorf("an empty command: %+v", out)
	}
	p.out()
	r.becomes(t, ingest.Waiting)
	if out := r.order(t, "x", patience); out.State != ingest.OutcomeFailed || !strings.Contains(out.Cause, "not open") {
		t.Errorf("Command() without the device = %+v", out)
	}
}

// TestCommandReply waits for the message that answers: neither one that began before, nor one that begins otherwise.
func TestCommandReply(t *testing.T) {
	leak.Check(t)
	p := newPlug(t)
	cfg := p.config()
	cfg.Command = Command{End: `\r\n`, Reply: ReplyMessage, Prefix: "OK"}
	r := start(t, cfg, lines)
	r.becomes(t, ingest.Running)
	p.send("OK bef")
	r.hears(t, 6)
	done := make(chan ingest.Outcome, 1)
	go func() { done <- r.order(t, "SET 5", patience) }()
	p.hears("SET 5\r\n")
	p.send("ore\ntemp=4\nOK 5\n")
	if out := <-done; out.State != ingest.OutcomeDone || string(out.Reply) != "OK 5" {
		t.Errorf("Command() = %+v, reply %q", out, out.Reply)
	}
	r.wants(t, "OK before", "temp=4", "OK 5")

	heard := p.listens("SET 6\r\n")
	if out := r.order(t, "SET 6", 200*time.Millisecond); out.State != ingest.OutcomeUnknown || !strings.Contains(out.Cause, "no reply") {
		t.Errorf("Command() without a reply = %+v", out)
	}
	heard()
	go func() { done <- r.order(t, "SET 7", patience) }()
	p.hears("SET 7\r\n")
	p.out()
	if out := <-done; out.State != ingest.OutcomeUnknown || !strings.Contains(out.Cause, "lost") {
		t.Errorf("Command() of a port that is lost = %+v", out)
	}
}

// TestCommandToAStuckPeer sends more than the line holds to a device that does not read: the command ends in time, what it left is not
// sent later, and reading goes on all the while.
func TestCommandToAStuckPeer(t *testing.T) {
	leak.Check(t)
	p := newPlug(t)
	r := start(t, p.config(), lines)
	r.becomes(t, ingest.Running)
	done := make(chan ingest.Outcome, 1)
	go func() { done <- r.order(t, strings.Repeat("x", 256<<10), time.Second) }()
	p.send("read on\n")
	r.wants(t, "read on")
	out := <-done
	if out.State != ingest.OutcomeUnknown || !strings.Contains(out.Cause, "of 262144 bytes") {
		t.Errorf("Command() = %+v", out)
	}
	go func() { _, _ = io.Copy(io.Discard, p.master) }() // ends with the plug
	poll.Until(t, patience, func() bool { return r.order(t, "y", time.Second).State == ingest.OutcomeDone }, "a command to be done when the device reads again")
}

func TestStopDuringCommand(t *testing.T) {
	leak.Check(t)
	p := newPlug(t)
	r := start(t, p.config(), lines)
	r.becomes(t, ingest.Running)
	done := make(chan ingest.Outcome, 1)
	go func() { done <- r.order(t, strings.Repeat("x", 256<<10), time.Minute) }()
	poll.Until(t, patience, func() bool {
		n, err := unix.IoctlGetInt(int(p.master.Fd()), unix.TIOCINQ)
		return err == nil && n > 0
	}, "bytes on the line")
	_ = r.stop() // the end of its context
	if out := <-done; out.State != ingest.OutcomeUnknown {
		t.Errorf("Command() = %+v when the source stops, want unknown", out)
	}
}

// TestFlow sets flow control and reads it back. XOFF stops what is written, and XON lets it go.
func TestFlow(t *testing.T) {
	p := newPlug(t)
	cfg := p.config()
	cfg.Flow = FlowXONXOFF
	cfg.HangUp = false
	r := start(t, cfg, lines)
	r.becomes(t, ingest.Running)
	mode, err := unix.IoctlGetTermios(int(p.slave.Fd()), unix.TCGETS)
	if err != nil || mode.Iflag&(unix.IXON|unix.IXOFF) != unix.IXON|unix.IXOFF || mode.Cflag&(unix.CRTSCTS|unix.HUPCL) != 0 {
		t.Fatalf("line is set to iflag %#x, cflag %#x, %v", mode.Iflag, mode.Cflag, err)
	}
	p.send("\x13")
	poll.Until(t, patience, func() bool { return r.order(t, "held back", 100*time.Millisecond).State != ingest.OutcomeDone }, "XOFF to hold a command back")
	p.send("\x11")
	go func() { _, _ = io.Copy(io.Discard, p.master) }() // ends with the plug
	poll.Until(t, patience, func() bool { return r.order(t, "go", time.Second).State == ingest.OutcomeDone }, "XON to let commands go")
	_ = r.stop()

	cfg.Flow = FlowRTSCTS
	dev, err := open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if mode, err = unix.IoctlGetTermios(int(p.slave.Fd()), unix.TCGETS); err != nil || mode.Cflag&unix.CRTSCTS == 0 || mode.Iflag&unix.IXON != 0 {
		t.Errorf("line is set to iflag %#x, cflag %#x, %v", mode.Iflag, mode.Cflag, err)
	}
	_ = dev.Close()
}

// TestRefusedByName asks for what a line cannot do.
func TestRefusedByName(t *testing.T) {
	p := newPlug(t)
	cfg := p.config()
	cfg.DTR = LineOff // a pseudo-terminal has no such line
	r := start(t, cfg, lines)
	if st := r.becomes(t, ingest.Refused); !strings.Contains(st.Cause, "dtr off") || !strings.Contains(st.Remedy, "auto") {
		t.Errorf("State() = %+v, want dtr to be named", st)
	}
	asked := unix.Termios{Cflag: unix.CRTSCTS}
	if err := kept(Config{Port: "/dev/ttyX0", Flow: FlowRTSCTS}, asked, unix.Termios{}); err == nil || !strings.Contains(err.Error(), "no flow control rtscts") {
		t.Errorf("a driver without flow control: %v", err)
	}
}

// TestSettle drops, and counts, what a device says after its port was opened.
func TestSettle(t *testing.T) {
	p := newPlug(t)
	cfg := p.config()
	cfg.Settle = 400 * time.Millisecond
	r := start(t, cfg, lines)
	r.becomes(t, ingest.Running)
	p.send("rst cause: 2\n")
	poll.Until(t, patience, func() bool { return r.Counts().RejectedBytes[ReasonSettling] == 13 }, "the bytes to be counted")
	poll.Until(t, patience, func() bool { p.send("x\n"); return len(r.texts()) > 0 }, "messages after that")
	if got := r.texts()[0]; got != "x" {
		t.Errorf("delivered %q", got)
	}
}

// TestPokeAndReopen wakes a device that is silent, and opens its port anew when that does not help.
func TestPokeAndReopen(t *testing.T) {
	leak.Check(t)
	p := newPlug(t)
	cfg := p.config()
	cfg.Silence, cfg.Poke, cfg.Reopen = 150*time.Millisecond, `\n`, 500*time.Millisecond
	s, log := newSource(t, cfg, frame.Config{Type: frame.TypeLine})
	opens := make(chan struct{}, 100)
	s.open = func(c Config) (device, error) { opens <- struct{}{}; return open(c) }
	r := &run{Source: s, log: log}
	r.begin(t)
	r.becomes(t, ingest.Running)
	p.hears("\n\n")
	if st := r.becomes(t, ingest.Silent); st.Cause == "" {
		t.Errorf("State() = %+v", st)
	}
	<-opens
	<-opens // anew
	<-opens
	if n := strings.Count(log.String(), "was=silent"); n != 0 {
		t.Errorf("the source was taken for no longer silent:\n%s", log)
	}
	poll.Until(t, patience, func() bool { p.send("awake\n"); return len(r.texts()) > 0 }, "a message through the port that is open now")
	r.becomes(t, ingest.Running)
}

// TestPokeAgainstAFullLine lets the device take nothing: reading goes on.
func TestPokeAgainstAFullLine(t *testing.T) {
	p := newPlug(t)
	cfg := p.config()
	cfg.Silence, cfg.Poke = 50*time.Millisecond, "wake up "+strings.Repeat("z", 4000)
	r := start(t, cfg, lines)
	r.becomes(t, ingest.Silent)
	poll.Until(t, patience, func() bool {
		n, err := unix.IoctlGetInt(int(p.master.Fd()), unix.TIOCINQ)
		return err == nil && n > 4000
	}, "the line to be full")
	p.send("here\n")
	r.wants(t, "here")
	if !bytes.Contains([]byte(r.log.String()), []byte("silent")) {
		t.Error("silence was not logged")
	}
}
