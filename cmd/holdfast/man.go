package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
)

// manPage writes holdfast(8) in roff: what each command prints when it is asked for help, so that the page cannot be behind the program.
func manPage(ctx context.Context, w io.Writer) error {
	var b strings.Builder
	b.WriteString(`.TH HOLDFAST 8 "" "Holdfast" "System Administration"
.SH NAME
holdfast \- store-and-forward gateway for field sensors
.SH SYNOPSIS
.B holdfast
.I COMMAND
[\fIflags\fR] [\fIarguments\fR]
.SH DESCRIPTION
Holdfast takes data from serial and MQTT devices, keeps it in JetStream streams on flash, and gives it to a hub whenever the
link is up. A service manager runs
.BR "holdfast run" ;
the other commands are for the people who look after it.
Standard output carries the result, standard error the log.
.SH COMMANDS
`)
	for _, c := range commands() {
		var help bytes.Buffer
		if err := c.run(ctx, []string{"-h"}, stdio{out: &help, err: &help}); err != nil && !errors.Is(err, flag.ErrHelp) {
			return fmt.Errorf("help of %s: %w", c.name, err)
		}
		fmt.Fprintf(&b, ".SS %s\n%s\n.PP\n.nf\n%s.fi\n", roff(strings.TrimSpace(c.name+" "+c.args)), roff(sentence(c.summary)), roff(help.String()))
	}
	b.WriteString(`.SH EXIT STATUS
0 done, 1 failed, 2 usage, 3 configuration, 4 store.
.SH FILES
.TP
.I /etc/holdfast/holdfast.yaml
configuration, see
.BR holdfast.yaml (5)
.TP
.I /var/lib/holdfast
the store; nothing but Holdfast may write there
.SH SEE ALSO
.BR holdfast.yaml (5),
.BR journalctl (1),
.BR systemctl (1)
`)
	_, err := io.WriteString(w, b.String())
	return err
}

// sentence makes a sentence of a summary.
func sentence(s string) string { return strings.ToUpper(s[:1]) + s[1:] + "." }

// roff protects text from being read as roff.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text)
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}
