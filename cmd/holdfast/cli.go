package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/holdfast-edge/holdfast/systemd"
)

// stdio is where a command writes: results to out, log and errors to err.
type stdio struct{ out, err io.Writer }

// result is a command's standard output. It remembers a failed write, so that printing need not be checked line by line.
type result struct {
	w   io.Writer
	err error
}

func (r *result) Write(p []byte) (int, error) {
	n, err := r.w.Write(p)
	if r.err == nil {
		r.err = err
	}
	return n, err
}

// subcommand is one word of the command line. run gets what follows the word.
type subcommand struct {
	name, args, summary string
	run                 func(ctx context.Context, args []string, std stdio) error
}

func commands() []subcommand {
	return []subcommand{
		{"run", "", "run the gateway daemon", runCommand},
		{"check", "", "say what is wrong with configuration or stored data", checkCommand},
		{"plan", "[FILE]", "show what a changed configuration would change", planCommand},
		{"reload", "", "make the daemon read its configuration again", reloadCommand},
		{"init", "", "write a first configuration for this machine", initCommand},
		{"status", "", "is my data safe, what waits, when is it at the hub", statusCommand},
		{"tail", "STREAM", "show records as they are stored", tailCommand},
		{"command", "SOURCE DATA", "send a command to a device", commandCommand},
		{"probe", "PORT", "find out what a device sends, and how to configure it", probeCommand},
		{"doctor", "", "look at brokers, users and certificates from outside", doctorCommand},
		{"ports", "", "list the serial ports of this machine", portsCommand},
		{"repair", "", "put damaged blocks right, keep what is whole in them", repairCommand},
		{"backup", "FILE", "take everything that is stored to another machine", backupCommand},
		{"restore", "FILE", "take everything that is stored to another machine", restoreCommand},
		{"export", "--to DIR", "take what waits to the hub by file", exportCommand},
		{"import", "FILE...", "take what waits to the hub by file", importCommand},
		{"adopt", "STORE", "take the name over from a store that is gone", adoptCommand},
		{"password", "", "hash a password of a local program or MQTT device", passwordCommand},
		{"hub", "COMMAND", "make a hub of NATS servers, and look after its fleet", hubCommand},
		{"demo", "", "the whole of it on this machine, with a link that is cut", demoCommand},
		{"version", "", "print the version", versionCommand},
	}
}

// Exit codes, as docs/OPERATIONS.md lists them.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
	exitConfig = 3
	exitStore  = 4
)

// exitError carries the exit code that fits an error. An empty message means that everything has been said already.
type exitError struct {
	code int
	err  error
}

func (e exitError) Error() string { return e.err.Error() }
func (e exitError) Unwrap() error { return e.err }

func usageErrorf(format string, args ...any) error {
	return exitError{exitUsage, fmt.Errorf(format, args...)}
}

// errSaid ends a command whose output has told the reason.
var errSaid = errors.New("the output tells the reason")

// execute runs the command that args name and returns the exit code.
func execute(ctx context.Context, args []string, std stdio) int {
	if len(args) == 2 && args[0] == "help" && args[1] == "--man" {
		if err := manPage(ctx, std.out); err != nil {
			fmt.Fprintf(std.err, "holdfast help: %v\n", err)
			return exitFailed
		}
		return exitDone
	}
	if len(args) == 0 || args[0] == "help" || args[0] == "-h" || args[0] == "--help" {
		usage(std.out)
		if len(args) == 0 {
			return exitUsage
		}
		return exitDone
	}
	for _, c := range commands() {
		if c.name != args[0] {
			continue
		}
		out := &result{w: std.out}
		err := c.run(ctx, args[1:], stdio{out: out, err: std.err})
		if err == nil && out.err != nil {
			err = fmt.Errorf("write the result: %w", out.err)
		}
		if errors.Is(err, flag.ErrHelp) {
			return exitDone
		}
		if err == nil {
			return exitDone
		}
		if !errors.Is(err, errSaid) {
			fmt.Fprintf(std.err, "holdfast %s: %v\n", c.name, err)
		}
		var coded exitError
		if errors.As(err, &coded) {
			return coded.code
		}
		return exitFailed
	}
	fmt.Fprintf(std.err, "holdfast: no command %q; `holdfast help` lists them\n", args[0])
	return exitUsage
}

func usage(w io.Writer) {
	fmt.Fprint(w, "usage: holdfast COMMAND [flags]\n\n")
	all := commands()
	for i := 0; i < len(all); i++ {
		head := strings.TrimSpace(all[i].name + " " + all[i].args)
		if i+1 < len(all) && all[i+1].summary == all[i].summary { // two ends of one thing
			head = all[i].name + ", " + all[i+1].name
			i++
		}
		fmt.Fprintf(w, "  %-20s %s\n", head, all[i].summary)
	}
	fmt.Fprint(w, "\n`holdfast COMMAND -h` lists its flags; `holdfast help --man` is a manual page.\nExit codes: 0 done, 1 failed, 2 usage, 3 configuration, 4 store.\n")
}

// flags returns a flag set for one command, whose help goes to std.err and fits 80 columns.
func flags(name, args, about string, std stdio) *flag.FlagSet {
	fs := flag.NewFlagSet(name, flag.ContinueOnError)
	fs.SetOutput(std.err)
	fs.Usage = func() {
		fmt.Fprintf(std.err, "usage: holdfast %s\n\n%s\n", strings.TrimSpace(name+" [flags] "+args), wrap(about, 78, ""))
		fs.VisitAll(func(f *flag.Flag) {
			value, usage := flag.UnquoteUsage(f)
			if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "0" {
				usage += " (default " + f.DefValue + ")"
			}
			const column = 20
			head := fmt.Sprintf("  %-*s", column-2, strings.TrimSpace("-"+f.Name+" "+value))
			fmt.Fprintln(std.err, head+strings.TrimLeft(wrap(usage, 78, strings.Repeat(" ", column)), " "))
		})
	}
	return fs
}

// wrap breaks text into lines of at most width characters, each beginning with indent. Lines that begin with a blank are left as they are.
func wrap(text string, width int, indent string) string {
	var lines []string
	for _, paragraph := range strings.Split(text, "\n") {
		line := indent
		for i, word := range strings.Fields(paragraph) {
			switch {
			case strings.HasPrefix(paragraph, " "):
				line = paragraph
			case i == 0:
				line += word
			case len(line)+1+len(word) > width:
				lines = append(lines, line)
				line = indent + word
			default:
				line += " " + word
			}
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

// parse reads args into fs and returns at most most further words.
func parse(fs *flag.FlagSet, args []string, most int) ([]string, error) {
	var words []string
	for {
		if err := fs.Parse(args); err != nil {
			if errors.Is(err, flag.ErrHelp) {
				return nil, err
			}
			return nil, exitError{exitUsage, errSaid} // the flag set has printed the reason
		}
		if fs.NArg() == 0 {
			break
		}
		words, args = append(words, fs.Arg(0)), fs.Args()[1:] // flags may stand behind words too
	}
	if len(words) > most {
		return nil, usageErrorf("what is %q for? `holdfast %s -h` shows what it takes", words[most], fs.Name())
	}
	return words, nil
}

// daemonLogger logs to journald with fields when standard error is connected to it, else to w as newLogger does. Call done at the end.
func daemonLogger(w io.Writer, debug bool) (log *slog.Logger, done func()) {
	level := slog.LevelInfo
	if debug {
		level = slog.LevelDebug
	}
	if j, ok := systemd.OpenJournal(level); ok {
		return slog.New(j), j.Close
	}
	return newLogger(w, debug), func() {}
}

// newLogger writes to w in the form that suits a person.
func newLogger(w io.Writer, debug bool) *slog.Logger {
	level := slog.LevelInfo
	if debug {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level}))
}
