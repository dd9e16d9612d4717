package serial

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-edge/holdfast/ingest/frame"
)

// Defaults and bounds of the configuration.
const (
	DefaultBaud   = 9600
	DefaultBuffer = 1 << 20 // bytes
	MinBaud       = 50
	MaxBaud       = 12_000_000
	minBuffer     = 4 << 10
	maxBuffer     = 256 << 20
	maxSettle     = time.Minute
)

// Config is the serial section of a source: the port and how its line is set.
type Config struct {
	Port     string        `yaml:"port" doc:"device file, best the link below /dev/serial/by-id or by-path; or vid:pid[:serial][:interface] of a USB port; looked up anew at each open"`
	Baud     int           `yaml:"baud" doc:"bits per second; any speed that the port's driver can make"`
	DataBits int           `yaml:"data_bits" doc:"data bits of a character, 5 to 8"`
	Parity   string        `yaml:"parity" enum:"none,odd,even,mark,space" doc:"parity bit of a character"`
	StopBits int           `yaml:"stop_bits" doc:"stop bits of a character, 1 or 2"`
	Flow     string        `yaml:"flow" enum:"none,rtscts,xonxoff" doc:"how a receiver stops the sender; refused when the port's driver cannot do it"`
	DTR      string        `yaml:"dtr" enum:"auto,on,off" doc:"the line DTR while the port is open; auto: as the driver does, which is on; it is on for a moment at each open"`
	RTS      string        `yaml:"rts" enum:"auto,on,off" doc:"the line RTS, likewise"`
	HangUp   bool          `yaml:"hang_up" doc:"whether DTR and RTS go off when the port is closed; false for a board that restarts by DTR"`
	Settle   time.Duration `yaml:"settle" doc:"how long after an open bytes are dropped, and counted, such as those of a board that restarts"`
	Silence  time.Duration `yaml:"silence" doc:"how long the line may be without a message before the source is reported as silent; 0: for ever"`
	Poke     string        `yaml:"poke" doc:"bytes that are sent when the line is silent, and again after each further silence, with \\r \\n \\t \\0 \\xHH and \\\\, or hex:0d0a"`
	Reopen   time.Duration `yaml:"reopen" doc:"the port is closed and opened anew when the line was without a message for so long; 0: never"`
	Buffer   int64         `yaml:"buffer" unit:"bytes" doc:"how many bytes of messages are kept in memory while the store takes none; what comes then is counted as overrun"`
	Command  Command       `yaml:"command" doc:"how commands are sent"`
}

// Command is the command section: how commands are sent on the line, and how they are answered.
type Command struct {
	End    string `yaml:"end" doc:"bytes that are put behind each command, such as \\r\\n; written like poke"`
	Reply  string `yaml:"reply" enum:"none,message" doc:"none: a command is done when it is sent; message: when a message came that began after it"`
	Prefix string `yaml:"prefix" doc:"reply: what the message begins with; others are no reply; written like poke"`
}

// What Command.Reply may be.
const (
	ReplyNone    = "none"
	ReplyMessage = "message"
)

// SetDefaults sets every key but port: 9600 baud, 8 data bits, no parity, 1 stop bit.
func (c *Config) SetDefaults() {
	*c = Config{Baud: DefaultBaud, DataBits: 8, Parity: "none", StopBits: 1, Flow: FlowNone, DTR: LineAuto, RTS: LineAuto, HangUp: true, Buffer: DefaultBuffer,
		Command: Command{Reply: ReplyNone}}
}

// Validate reports what cannot work on any port.
func (c Config) Validate(fault func(key, problem, remedy string)) {
	if problem, remedy := CheckPort(c.Port); problem != "" {
		fault("port", problem, remedy)
	}
	if c.Baud < MinBaud || c.Baud > MaxBaud {
		fault("baud", fmt.Sprintf("%d is out of range", c.Baud), fmt.Sprintf("give %d to %d bits per second", MinBaud, MaxBaud))
	}
	if c.DataBits < 5 || c.DataBits > 8 {
		fault("data_bits", fmt.Sprintf("%d is out of range", c.DataBits), "give 5, 6, 7 or 8")
	}
	if _, ok := parities[c.Parity]; !ok {
		fault("parity", fmt.Sprintf("%q is unknown", c.Parity), "give none, odd, even, mark or space")
	}
	if c.StopBits != 1 && c.StopBits != 2 {
		fault("stop_bits", fmt.Sprintf("%d is not supported", c.StopBits), "give 1 or 2; Linux has no 1.5")
	}
	c.validateLines(fault)
	for _, d := range []struct {
		key   string
		value time.Duration
	}{{"settle", c.Settle}, {"silence", c.Silence}, {"reopen", c.Reopen}} {
		if d.value < 0 {
			fault(d.key, fmt.Sprintf("%s is negative", d.value), "give a duration such as 30s, or 0 for none")
		}
	}
	if c.Settle > maxSettle {
		fault("settle", fmt.Sprintf("%s is very long", c.Settle), fmt.Sprintf("give up to %s: all that comes is dropped", maxSettle))
	}
	if c.Reopen > 0 && c.Reopen < c.Silence {
		fault("reopen", "is shorter than silence", "give at least as long as silence, or the alarm never comes")
	}
	if c.Poke != "" && c.Silence == 0 {
		fault("poke", "is sent when the line is silent, and there is no silence", "set silence, such as 30s")
	}
	if c.Buffer < minBuffer || c.Buffer > maxBuffer {
		fault("buffer", fmt.Sprintf("%d bytes are out of range", c.Buffer), "give 4KiB to 256MiB")
	}
	for _, b := range []struct{ key, text string }{{"poke", c.Poke}, {"command.end", c.Command.End}, {"command.prefix", c.Command.Prefix}} {
		if _, err := frame.Unescape(b.text); err != nil {
			fault(b.key, err.Error(), `write \r \n \t \0 \xHH, \\ for a backslash, or hex: and pairs of digits`)
		}
	}
	if c.Command.Prefix != "" && c.Command.Reply != ReplyMessage {
		fault("command.prefix", "is for a reply, and none is waited for", "set command.reply to message, or remove it")
	}
}

func (c Config) validateLines(fault func(key, problem, remedy string)) {
	for _, enum := range []struct {
		key, value string
		of         []string
	}{
		{"flow", c.Flow, []string{FlowNone, FlowRTSCTS, FlowXONXOFF}},
		{"dtr", c.DTR, []string{LineAuto, LineOn, LineOff}},
		{"rts", c.RTS, []string{LineAuto, LineOn, LineOff}},
		{"command.reply", c.Command.Reply, []string{ReplyNone, ReplyMessage}},
	} {
		if !slices.Contains(enum.of, enum.value) {
			fault(enum.key, fmt.Sprintf("%q is unknown", enum.value), "give "+strings.Join(enum.of, ", "))
		}
	}
	if c.Flow == FlowRTSCTS && c.RTS != LineAuto {
		fault("rts", "is set by flow rtscts", "leave it at auto, or use flow: none")
	}
}
