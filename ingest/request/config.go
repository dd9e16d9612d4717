package request

import "fmt"

// DefaultQueue is the size of the queue unless configured, in bytes.
const DefaultQueue = 4 << 20

// Config is the append section of a source.
type Config struct {
	Queue int64 `yaml:"queue" unit:"bytes" doc:"messages that wait while the store takes nothing; what comes beyond is not answered"`
}

// SetDefaults sets what the file may leave out.
func (c *Config) SetDefaults() { c.Queue = DefaultQueue }

// Validate reports every fault of the section.
func (c Config) Validate(fault func(key, problem, remedy string)) {
	if c.Queue < 64<<10 || c.Queue > 64<<20 {
		fault("queue", fmt.Sprintf("is %d", c.Queue), "choose 64KiB to 64MiB")
	}
}
