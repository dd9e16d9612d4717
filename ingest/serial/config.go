package serial

import (
	"fmt"
	"path/filepath"
	"time"
)

// Defaults and bounds of the configuration.
const (
	DefaultBaud   = 9600
	DefaultBuffer = 1 << 20 // bytes
	MinBaud       = 50
	MaxBaud       = 12_000_000
	minBuffer     = 4 << 10
	maxBuffer     = 256 << 20
)

// Config is the serial section of a source: the port and how its line is set.
type Config struct {
	Port     string        `yaml:"port" doc:"device file; best the link below /dev/serial/by-id or by-path, which is followed anew at each open"`
	Baud     int           `yaml:"baud" doc:"bits per second; any speed that the port's driver can make"`
	DataBits int           `yaml:"data_bits" doc:"data bits of a character, 5 to 8"`
	Parity   string        `yaml:"parity" enum:"none,odd,even,mark,space" doc:"parity bit of a character"`
	StopBits int           `yaml:"stop_bits" doc:"stop bits of a character, 1 or 2"`
	Silence  time.Duration `yaml:"silence" doc:"how long the line may be without a message before the source is reported as silent; 0: for ever"`
	Buffer   int64         `yaml:"buffer" unit:"bytes" doc:"how many bytes of messages are kept in memory while the store takes none; what comes then is counted as overrun"`
}

// SetDefaults sets every key but port: 9600 baud, 8 data bits, no parity, 1 stop bit.
func (c *Config) SetDefaults() {
	c.Baud, c.DataBits, c.Parity, c.StopBits, c.Buffer = DefaultBaud, 8, "none", 1, DefaultBuffer
}

// Validate reports what cannot work on any port.
func (c Config) Validate(fault func(key, problem, remedy string)) {
	switch {
	case c.Port == "":
		fault("port", "is missing", "give the device file; ls -l /dev/serial/by-id shows the links that stay the same")
	case !filepath.IsAbs(c.Port):
		fault("port", fmt.Sprintf("%q is not an absolute path", c.Port), "give the device file with its directory, such as /dev/serial/by-id/usb-...")
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
	if c.Silence < 0 {
		fault("silence", fmt.Sprintf("%s is negative", c.Silence), "give a duration such as 30s, or 0 for no alarm")
	}
	if c.Buffer < minBuffer || c.Buffer > maxBuffer {
		fault("buffer", fmt.Sprintf("%d bytes are out of range", c.Buffer), "give 4KiB to 256MiB")
	}
}
