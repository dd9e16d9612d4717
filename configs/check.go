package configs

import (
	"fmt"
	"math"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/holdfast-edge/holdfast/ingest/convert"
	"github.com/holdfast-edge/holdfast/ingest/modbus"
	"github.com/holdfast-edge/holdfast/ingest/serial"
)

// system is what the checks ask the machine.
type system struct {
	disk   func(dir string) int64   // size in bytes of the file system that holds dir or will hold it, 0 when unknown
	device func(path string) string // where a device's path leads in the end
}

// machine asks the machine we are on.
func machine() system { return system{disk: diskSize, device: realDevice} }

// check holds a configuration against rules that concern more than one of its sections.
type check struct {
	cfg      *Config
	system   system
	fault    func(path, problem, remedy string)
	doubtful func(path string) bool // the path has a fault already
}

// relations checks everything but the names, which come first because other rules rest on them.
func (c check) relations() {
	c.hub()
	c.routes()
	c.inputs()
	c.devices()
	c.sessions()
	c.listeners()
	c.lengths()
	c.mirrors()
	c.ages()
	c.room()
	c.apps()
}

// nameForm is what a subject token, a JetStream name and a file name can all hold. An underscore in front is kept for records of our own.
var nameForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,31}$`)

const nameRemedy = "use 1 to 32 letters, digits, - and _, beginning with a letter or digit"

func (c check) names() {
	switch name := c.cfg.Leaf.Name; {
	case name == "":
		c.fault("leaf.name", "is missing", "give this gateway a name that no other of the fleet has; "+nameRemedy)
	case !nameForm.MatchString(name):
		c.fault("leaf.name", fmt.Sprintf("%q is not a name", name), nameRemedy)
	}
	streams, sources := map[string]int{}, map[string]int{}
	for i, s := range c.cfg.Streams {
		c.name("streams", i, s.Name, streams)
	}
	for i, s := range c.cfg.Sources {
		c.name("sources", i, s.Name, sources)
	}
}

// name checks the name of an entry and that no entry before it has it. seen maps names to positions.
func (c check) name(list string, i int, name string, seen map[string]int) {
	path := fmt.Sprintf("%s[%d].name", list, i)
	first, twice := seen[name]
	switch {
	case name == "":
		c.fault(path, "is missing", nameRemedy)
	case !nameForm.MatchString(name):
		c.fault(path, fmt.Sprintf("%q is not a name", name), nameRemedy)
	case twice:
		c.fault(path, fmt.Sprintf("%s is the name of %s[%d] already", name, list, first), "rename one of the two")
	default:
		seen[name] = i
	}
}

// hub checks that leaf and hub are two JetStream domains.
func (c check) hub() {
	if len(c.cfg.Hub.URLs) > 0 && strings.EqualFold(c.cfg.Leaf.Name, c.cfg.Hub.Domain) {
		c.fault("leaf.name", fmt.Sprintf("%q is the JetStream domain of the hub", c.cfg.Leaf.Name), "give the gateway another name")
	}
}

// routes checks that every source goes into a stream that is there.
func (c check) routes() {
	var names []string
	sure := !c.doubtful("streams") // all names of streams are known
	for i, s := range c.cfg.Streams {
		if path := fmt.Sprintf("streams[%d].name", i); s.Name == "" || c.doubtful(path) {
			sure = false
			continue
		}
		names = append(names, s.Name)
	}
	known := "there is no stream: add one to streams"
	if len(names) > 0 {
		known = "streams: " + strings.Join(names, ", ")
	}
	for i, s := range c.cfg.Sources {
		path := fmt.Sprintf("sources[%d].into", i)
		near := nearest(s.Into, names)
		switch {
		case s.Into == "":
			c.fault(path, "is missing", known)
		case near == s.Into:
		case near != "":
			c.fault(path, fmt.Sprintf("there is no stream %q", s.Into), "did you mean "+near+"?")
		case sure:
			c.fault(path, fmt.Sprintf("there is no stream %q", s.Into), known)
		}
	}
}

// inputs checks that every source has one device or broker, and what goes with it.
func (c check) inputs() {
	rejects := -1
	for i, s := range c.cfg.Sources {
		path := fmt.Sprintf("sources[%d]", i)
		var given []string
		for _, in := range []struct {
			name  string
			there bool
		}{{"serial", s.Serial != nil}, {"mqtt", s.MQTT != nil}, {"mqttserver", s.MQTTServer != nil}, {"modbus", s.Modbus != nil}, {"append", s.Append != nil},
			{"rejects", s.Rejects != nil}} {
			if in.there {
				given = append(given, in.name)
			}
		}
		switch {
		case len(given) == 0:
			c.fault(path, "says not where its records come from", "add a section serial, mqtt, mqttserver, modbus, append or rejects")
		case len(given) > 1:
			c.fault(path, "has more than one input: "+strings.Join(given, " and "), "make one source of each")
		case s.Serial != nil && s.Frame == nil:
			c.fault(path+".frame", "is missing, so the bytes of the line cannot be cut into records", "add it, such as frame: line or frame: nmea")
		case (s.MQTT != nil || s.MQTTServer != nil) && s.Frame != nil:
			c.fault(path+".frame", "is for serial lines: an MQTT message is a record already", "remove it")
		case s.Modbus != nil && s.Frame != nil:
			c.fault(path+".frame", "is for serial lines: a poll of a Modbus device is a record already", "remove it")
		}
		if s.Append != nil && s.Frame != nil {
			c.fault(path+".frame", "is for serial lines: a request is a record already", "remove it")
		}
		if s.Append != nil && s.Decode != nil {
			c.fault(path+".decode", "is for devices: a program can send what it means", "remove it")
		}
		if s.Rejects != nil && rejects >= 0 {
			c.fault(path+".rejects", fmt.Sprintf("are kept by sources[%d] already", rejects), "remove one of the two")
		} else if s.Rejects != nil {
			rejects = i
		}
		if s.Rejects != nil && (s.Frame != nil || s.Decode != nil) {
			c.fault(path+".rejects", "are kept as they came", "remove frame and decode")
		}
		if s.Decode == nil && s.Transform != nil {
			c.fault(path+".transform", "works on decoded messages, and there is no decode", "add it, such as decode: json")
		}
		if s.Decode == nil && s.Keep != "" && s.Keep != convert.KeepBoth && !c.doubtful(path+".keep") {
			c.fault(path+".keep", "says what to keep of a decoded message, and there is no decode", "add it, such as decode: json, or remove keep")
		}
	}
}

// input is what a source has to itself.
type input struct{ key, device string }

// line returns the device or address that no other source may use; ok is false if there is none.
func (s Source) line() (in input, ok bool) {
	switch {
	case s.Serial != nil:
		in = input{"serial.port", s.Serial.Port}
	case s.Modbus != nil && s.Modbus.Bus.Mode == modbus.ModeRTU:
		in = input{"modbus.bus.port", s.Modbus.Bus.Port}
	case s.Modbus != nil:
		in = input{"modbus.bus.address", s.Modbus.Bus.Address}
	}
	return in, in.device != ""
}

// devices checks that no two sources read from one device, by whatever name.
func (c check) devices() {
	owner := map[string]int{}
	for i, s := range c.cfg.Sources {
		in, ok := s.line()
		if !ok {
			continue
		}
		device := strings.ToLower(in.device)
		if !strings.HasSuffix(in.key, "address") {
			device = c.system.device(in.device)
		}
		first, taken := owner[device]
		if !taken {
			owner[device] = i
			continue
		}
		also := ""
		if other, _ := c.cfg.Sources[first].line(); other.device != in.device {
			also = fmt.Sprintf(" as %s", other.device)
		}
		remedy := "one source reads a line: remove one of the two, or correct its port"
		if s.Modbus != nil {
			remedy = "one source owns a bus: list its devices there, or correct " + in.key
		}
		c.fault(fmt.Sprintf("sources[%d].%s", i, in.key), fmt.Sprintf("%s is the device of sources[%d]%s already", in.device, first, also), remedy)
	}
}

// sessions checks that no two sources use one session at one broker: they would throw each other out for ever.
func (c check) sessions() {
	owner := map[[2]string]int{}
	for i, s := range c.cfg.Sources {
		if s.MQTT == nil || s.MQTT.ClientID == "" {
			continue
		}
		session := [2]string{strings.TrimSuffix(s.MQTT.Broker, "/"), s.MQTT.ClientID}
		if first, taken := owner[session]; taken {
			c.fault(fmt.Sprintf("sources[%d].mqtt.client_id", i), fmt.Sprintf("is the session of sources[%d] at the same broker", first),
				"give each source its own client_id, or leave it out")
			continue
		}
		owner[session] = i
	}
}

// lengths checks that a device is told no longer message than its stream takes: it would be acknowledged and rejected.
func (c check) lengths() {
	for i, s := range c.cfg.Sources {
		if s.MQTTServer == nil {
			continue
		}
		for _, stream := range c.cfg.Streams {
			if stream.Name == s.Into && stream.MaxMsgSize > 0 && s.MQTTServer.MaxMessage > stream.MaxMsgSize {
				c.fault(fmt.Sprintf("sources[%d].mqttserver.max_message", i), fmt.Sprintf("%s is more than a message of stream %s may have, %s",
					about(s.MQTTServer.MaxMessage), stream.Name, about(stream.MaxMsgSize)), "lower it, or raise max_msg_size of the stream")
			}
		}
	}
}

// listeners checks that no two sources listen on one address.
func (c check) listeners() {
	owner := map[string]int{}
	for i, s := range c.cfg.Sources {
		if s.MQTTServer == nil {
			continue
		}
		for _, l := range []struct{ key, addr string }{{"listen", s.MQTTServer.Listen}, {"tls.listen", s.MQTTServer.TLS.Listen}} {
			if l.addr == "" {
				continue
			}
			if first, taken := owner[l.addr]; taken {
				c.fault(fmt.Sprintf("sources[%d].mqttserver.%s", i, l.key), fmt.Sprintf("%s is an address of sources[%d] already", l.addr, first),
					"give each listener a port of its own")
				continue
			}
			owner[l.addr] = i
		}
	}
}

// mirrors checks that no two streams are mirrored into one hub stream: a mirror has one origin.
func (c check) mirrors() {
	owner := map[string]int{}
	for i, s := range c.cfg.Streams {
		target := s.Forward.HubStream
		if s.Forward.Mode == "none" || target == "" {
			continue
		}
		first, taken := owner[target]
		if taken && (s.Forward.Mode == "mirror" || c.cfg.Streams[first].Forward.Mode == "mirror") {
			c.fault(fmt.Sprintf("streams[%d].forward.hub_stream", i), fmt.Sprintf("%s is the hub stream of streams[%d] already, and a mirror has one origin", target, first),
				"give each mirror a hub stream of its own, or use mode source for both")
		}
		if !taken {
			owner[target] = i
		}
	}
}

// room checks that the streams fit into the budget, and the budget onto the disk.
func (c check) room() {
	budget, ring := c.cfg.Storage.Budget, max(c.cfg.Storage.Journal.Size, 0)
	if budget <= 0 {
		return // a fault already
	}
	var sum int64
	for _, s := range c.cfg.Streams {
		if s.MaxBytes > 0 {
			sum += min(s.MaxBytes, 1<<62-sum) // far above any budget is far enough
		}
	}
	if sum > budget {
		c.fault("streams", fmt.Sprintf("max_bytes of %s: %s in all, which is more than storage.budget, %s", count(len(c.cfg.Streams), "stream"), about(sum), about(budget)),
			"lower max_bytes of some, or raise storage.budget")
	}
	// By the size of the disk, not by what is free: a gateway whose disk others have filled must start all the same.
	if at := c.cfg.Storage.Mount; filepath.IsAbs(at) {
		if rel, err := filepath.Rel(at, c.cfg.Leaf.Data); err != nil || rel == ".." || strings.HasPrefix(rel, "../") {
			c.fault("storage.mount", fmt.Sprintf("leaf.data, %s, does not lie below %s", c.cfg.Leaf.Data, at), "give the mount point that leaf.data is on, or leave it out")
		}
		if c.cfg.Storage.CheckMount(c.cfg.Leaf.Data) != nil {
			return // what is there is not the disk of the store, which the daemon says
		}
	}
	disk, free := c.system.disk(c.cfg.Leaf.Data), max(c.cfg.Storage.ReserveFree, 0)
	if disk <= 0 {
		return
	}
	remedy := fmt.Sprintf("lower it to %s at most, or use a larger disk", about(max(disk-free-ring, 0)))
	if disk <= free+ring {
		remedy = "lower storage.reserve_free or storage.journal.size first, or use a larger disk"
	}
	needs := c.cfg.Storage.Needs(c.cfg.StorageStreams()...)
	switch {
	case budget > disk-free-ring:
		c.fault("storage.budget", fmt.Sprintf("%s, reserve_free, %s, and the journal, %s, are more than the disk of %s has: %s", about(budget), about(free), about(ring), c.cfg.Leaf.Data, about(disk)), remedy)
	case needs > disk:
		c.fault("storage.budget", fmt.Sprintf("the streams at their limits, with reserve_free and what the server takes beside, need %s, and the disk of %s has %s", about(needs), c.cfg.Leaf.Data, about(disk)),
			fmt.Sprintf("lower it by %s, or use a larger disk", about(needs-disk)))
	}
}

// ages checks that the sources of a stream agree on a ttl: a stream gives up its records from the oldest on.
func (c check) ages() {
	first := map[string]int{}
	for i, s := range c.cfg.Sources {
		path := fmt.Sprintf("sources[%d].ttl", i)
		if s.TTL < 0 {
			c.fault(path, "is negative", "leave it out to send records however old they are")
			continue
		}
		f, seen := first[s.Into]
		if !seen {
			first[s.Into] = i
			continue
		}
		if other := c.cfg.Sources[f]; other.TTL != s.TTL {
			c.fault(path, fmt.Sprintf("is %s, and that of sources[%d], which goes into the same stream, is %s", s.TTL, f, other.TTL),
				"give them the same ttl, or a stream each: a stream gives up its records from the oldest on")
		}
	}
}

// about writes a size for a person, rounded down to two digits behind the point.
func about(n int64) string {
	for _, unit := range []string{"TiB", "GiB", "MiB", "KiB"} {
		if size := sizeUnits[strings.ToLower(unit)]; n >= size {
			s := fmt.Sprintf("%.2f", math.Floor(100*float64(n)/float64(size))/100)
			return strings.TrimSuffix(strings.TrimRight(s, "0"), ".") + unit
		}
	}
	return fmt.Sprintf("%dB", n)
}

// diskSize looks at the nearest folder that exists on the way to dir.
func diskSize(dir string) int64 {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return 0
	}
	for {
		var st unix.Statfs_t
		if err := unix.Statfs(dir, &st); err == nil {
			return int64(st.Blocks) * int64(st.Bsize)
		}
		up := filepath.Dir(dir)
		if up == dir {
			return 0
		}
		dir = up
	}
}

// realDevice follows links and looks USB ports up, so that all names of one device are equal. A path that is not there stands for itself.
func realDevice(path string) string {
	if real, err := serial.Locate(path); err == nil {
		return real
	}
	return filepath.Clean(path)
}
