package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/holdfast-edge/holdfast/ingest/frame"
	"github.com/holdfast-edge/holdfast/ingest/probe"
	"github.com/holdfast-edge/holdfast/ingest/serial"
)

// probeBytes is how much of a line is enough to judge a setting.
const probeBytes = 16 << 10

func probeCommand(ctx context.Context, args []string, std stdio) error {
	if len(args) > 0 && args[0] == "modbus" {
		return probeModbus(ctx, args[1:], std)
	}
	fs := flags("probe", "PORT | modbus PORT|HOST:PORT", "Listens to a serial device with one speed after the other, says what it sends and how to configure it. The daemon must not use the port. For Modbus devices, which never speak first: holdfast probe modbus -h.", std)
	baud := fs.Int("baud", 0, "try this speed only; 0: the usual ones")
	listen := fs.Duration("for", 3*time.Second, "how long each setting is listened to")
	send := fs.String("send", "", `bytes that make the device speak, such as "?\r\n" or hex:05`)
	capture := fs.String("capture", "", "write all that was heard to this `file`, for -replay")
	replay := fs.String("replay", "", "judge a captured `file` instead of a port")
	words, err := parse(fs, args, 1)
	if err != nil {
		return err
	}
	if (*replay == "") == (len(words) == 0) {
		return usageErrorf("give a port, or -replay and a file; `holdfast ports` lists the ports")
	}
	var all []probe.Sample
	port := "PORT"
	if *replay != "" {
		all, err = readCapture(*replay)
	} else {
		port = words[0]
		all, err = listenTo(ctx, port, *baud, *listen, *send, std.err)
	}
	if err != nil && len(all) == 0 {
		return err
	}
	if *capture != "" {
		if err := writeCapture(*capture, all); err != nil {
			return err
		}
		fmt.Fprintf(std.err, "captured to %s\n", *capture)
	}
	if err != nil && ctx.Err() == nil {
		fmt.Fprintf(std.err, "holdfast probe: %v\n", err) // what was heard until then is worth a look
	}
	return printProbe(std.out, port, all)
}

// listenTo listens to a port, and tells progress to w.
func listenTo(ctx context.Context, port string, baud int, listen time.Duration, send string, w io.Writer) ([]probe.Sample, error) {
	o := probe.Options{Port: port, Try: probe.Settings(), Listen: listen, Bytes: probeBytes}
	var err error
	if o.Send, err = frame.Unescape(send); err != nil {
		return nil, usageErrorf("-send: %w", err)
	}
	if problem, remedy := serial.CheckPort(port); problem != "" {
		return nil, usageErrorf("port %s: %s", problem, remedy)
	}
	if baud != 0 {
		if baud < serial.MinBaud || baud > serial.MaxBaud {
			return nil, usageErrorf("-baud %d: give %d to %d", baud, serial.MinBaud, serial.MaxBaud)
		}
		o.Try = []probe.Setting{{Baud: baud, DataBits: 8, Parity: "none"}, {Baud: baud, DataBits: 8, Parity: "even"}}
	}
	o.Heard = func(s probe.Sample) { fmt.Fprintf(w, "%-12s %6d bytes  %x\n", s.Setting, s.Size(), s.Head(16)) }
	o.Certain = func(s probe.Sample) bool {
		g, ok := probe.Best([]probe.Sample{s})
		return ok && g.Certain()
	}
	all, err := probe.Listen(ctx, o)
	if err != nil && len(all) == 0 && ctx.Err() == nil {
		_, cause, remedy := serial.Explain(err)
		return nil, fmt.Errorf("%s; %s", cause, remedy)
	}
	return all, err
}

func readCapture(path string) ([]probe.Sample, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // read only
	all, err := probe.Read(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return all, nil
}

func writeCapture(path string, all []probe.Sample) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(probe.Write(f, all), f.Close())
}

// printProbe says what samples mean. It fails when nothing was heard.
func printProbe(w io.Writer, port string, all []probe.Sample) error {
	g, ok := probe.Best(all)
	if !ok {
		fmt.Fprintln(w, "nothing was heard: is the device on, and does it speak unasked? -send gives it something to answer;")
		fmt.Fprintln(w, "check that its TX goes to our RX and the grounds are joined; RS-485: swap A and B; Modbus: holdfast probe modbus")
		return errSaid
	}
	for _, s := range all {
		if s.Setting.Baud == g.Setting.Baud {
			fmt.Fprintf(w, "first bytes at %s: %x\n", s.Setting, s.Head(32))
		}
	}
	sure := "a guess"
	switch {
	case g.Certain():
		sure = "certain: checksums are right"
	case g.Score >= 0.5:
		sure = "likely"
	}
	fmt.Fprintf(w, "line %s, frame %s (%s): %d messages, %.1f %% garbage\n", g.Setting, g.Frame.Type, sure, g.Messages, 100*g.Garbage)
	for _, m := range g.Examples {
		fmt.Fprintln(w, "  "+printable(m))
	}
	if g.Hint != "" {
		fmt.Fprintln(w, "note: "+g.Hint)
	}
	fmt.Fprint(w, "\n"+suggest(port, g))
	return nil
}

// suggest writes the source to put into the configuration.
func suggest(port string, g probe.Guess) string {
	line := fmt.Sprintf("port: %q, baud: %d", port, g.Setting.Baud)
	if g.Setting.DataBits != 8 {
		line += fmt.Sprintf(", data_bits: %d", g.Setting.DataBits)
	}
	if g.Setting.Parity != "none" {
		line += ", parity: " + g.Setting.Parity
	}
	cut := g.Frame.Type
	var more []string
	for _, k := range []struct{ key, value string }{{"checksum", g.Frame.Checksum}, {"bcc", g.Frame.BCC}} {
		if k.value != "" {
			more = append(more, k.key+": "+k.value)
		}
	}
	if g.Frame.Gap > 0 {
		more = append(more, "gap: "+g.Frame.Gap.String())
	}
	if len(more) > 0 {
		cut = "{type: " + cut + ", " + strings.Join(more, ", ") + "}"
	}
	text := "sources:\n  - name: NAME\n    into: STREAM\n    serial: {" + line + "}\n    frame: " + cut + "\n"
	if advice := serial.Advice(port); advice != "" {
		text = "# " + advice + "\n" + text
	}
	if g.Decode != "" {
		text += "    # decode: " + g.Decode + "    # also stores what each message says, as JSON\n"
	}
	return text
}
