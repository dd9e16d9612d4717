package mqtt

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-edge/holdfast/ingest"
)

// sysTime is how long the broker's own topics are waited for.
const sysTime = 2 * time.Second

// mosquittoConfig is where Debian keeps the configuration of Mosquitto.
const mosquittoConfig = "/etc/mosquitto"

// Topics on which Mosquitto tells of itself.
const (
	sysVersion = "$SYS/broker/version"
	sysDropped = "$SYS/broker/publish/messages/dropped"
)

// Examine connects to every address of a source's broker and says what it found: whether it is reached and lets us in, whether the
// subscriptions are granted, whether it keeps a session, and settings by which brokers lose data. It uses a client id of its own, so that the
// daemon's session is not disturbed, and leaves nothing at the broker.
func Examine(ctx context.Context, o Options) (list []ingest.Finding) {
	dir, err := os.MkdirTemp("", "holdfast-doctor-")
	if err != nil {
		return []ingest.Finding{{What: "examine", Level: ingest.Unsure, Cause: err.Error(), Remedy: "make room for a temporary directory"}}
	}
	defer func() { _ = os.RemoveAll(dir) }() // a few empty files
	o.StateDir, o.Last, o.Log = dir, nil, slog.New(slog.DiscardHandler)
	s, err := New(o)
	if err != nil {
		return []ingest.Finding{{What: "configuration", Level: ingest.Failure, Cause: err.Error(), Remedy: "holdfast check"}}
	}
	s.client += "-doctor"
	s.openState()
	defer s.closeState()
	if o.Config.QoS == 0 {
		list = append(list, ingest.Finding{What: "qos", Level: ingest.Warning, Cause: "with QoS 0 every lost connection and every restart loses messages", Remedy: "set qos: 1"})
	}
	for _, a := range s.addrs {
		s.addr = a
		list = append(list, s.examine(ctx)...)
	}
	return list
}

// examine looks at one address.
func (s *Source) examine(ctx context.Context) (list []ingest.Finding) {
	add := func(what string, level ingest.Level, cause, remedy string) {
		list = append(list, ingest.Finding{What: what + " " + s.addr.url, Level: level, Cause: cause, Remedy: remedy})
	}
	l, err := s.open(ctx)
	if err != nil {
		st := s.explain(err)
		add("broker reached", ingest.Failure, st.Cause, st.Remedy)
		return list
	}
	add("broker reached", ingest.Fine, "", "")
	refused, weak, err := s.ask(ctx, l, s.cfg.Topics)
	switch {
	case err != nil:
		add("subscriptions granted", ingest.Failure, err.Error(), "look at the broker's log")
	case len(refused) > 0:
		add("subscriptions granted", ingest.Failure, "the broker does not allow "+s.who()+" to read "+quoted(refused)+" (asked as client "+s.client+")", "allow it in the broker's access rules")
	case len(weak) > 0:
		add("subscriptions granted", ingest.Warning, "the broker grants "+quoted(weak)+" with QoS 0 only", "allow QoS 1 at the broker")
	default:
		add("subscriptions granted", ingest.Fine, "", "")
	}
	told := s.askBroker(ctx, l)
	l.close()

	switch l, err = s.open(ctx); {
	case err != nil:
		add("session kept", ingest.Unsure, s.explain(err).Cause, "try again")
	default:
		if l.guard.sessionPresent() {
			add("session kept", ingest.Fine, "", "")
		} else {
			add("session kept", ingest.Failure, "the broker forgets a session between two connections, so that it queues nothing while the daemon is away",
				"allow persistent sessions at the broker, and more than one connection for each user")
		}
		l.close()
	}
	s.clean = true // ends the session
	if l, err := s.open(ctx); err == nil {
		l.close()
	}
	s.clean = false
	for _, f := range brokerHints(told, s.addr.host, mosquittoConfig) {
		add(f.What, f.Level, f.Cause, f.Remedy)
	}
	return list
}

// askBroker returns what the broker says of itself, by topic.
func (s *Source) askBroker(ctx context.Context, l *link) map[string]string {
	told := map[string]string{}
	if refused, _, err := s.ask(ctx, l, []string{sysVersion, sysDropped}); err != nil || len(refused) > 0 {
		return told
	}
	ctx, cancel := context.WithTimeout(ctx, sysTime)
	defer cancel()
	for {
		for _, m := range s.queue.take(maxQueued, 1<<30) {
			if strings.HasPrefix(m.topic, "$SYS/") {
				told[m.topic] = string(m.payload)
			}
		}
		if len(told) == 2 {
			return told
		}
		select {
		case <-s.queue.ready:
		case <-ctx.Done():
			return told
		}
	}
}

// brokerHints says by what the broker may lose data, from what it says of itself, and from its configuration when it runs on this
// machine.
func brokerHints(told map[string]string, host, dir string) (list []ingest.Finding) {
	add := func(level ingest.Level, cause, remedy string) {
		list = append(list, ingest.Finding{What: "broker keeps data", Level: level, Cause: cause, Remedy: remedy})
	}
	if n, err := strconv.Atoi(told[sysDropped]); err == nil && n > 0 {
		add(ingest.Warning, fmt.Sprintf("the broker says that it has dropped %d messages since its start", n), "set max_queued_messages 0 at Mosquitto, or give its clients larger queues")
	}
	version, mosquitto := strings.CutPrefix(told[sysVersion], "mosquitto version ")
	if !mosquitto {
		add(ingest.Unsure, "what this broker keeps through a crash cannot be found out from here",
			"make sure that it writes sessions and queued messages to disk as they come, and that it queues enough while the daemon is away")
		return list
	}
	if v := strings.Split(version, "."); len(v) == 3 && v[0] == "2" && v[1] == "0" {
		if n, err := strconv.Atoi(v[2]); err == nil && n >= 12 && n <= 18 {
			add(ingest.Warning, "Mosquitto "+version+" does not queue for absent sessions with per_listener_settings true", "set it to false, or take 2.0.19 or newer")
		}
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		add(ingest.Unsure, "the settings of Mosquitto on another machine cannot be read", mosquittoWants)
		return list
	}
	set, err := mosquittoSettings(dir)
	if err != nil {
		add(ingest.Unsure, "its configuration cannot be read: "+err.Error(), mosquittoWants)
		return list
	}
	before := len(list)
	if set["persistence"] != "true" {
		add(ingest.Warning, "persistence is off: a restart of the broker takes all it has queued", "set persistence true")
	} else if set["autosave_on_changes"] != "true" || set["autosave_interval"] != "1" {
		add(ingest.Warning, "it saves every half hour by default, so that a crash or power cut takes what it has queued since", "set autosave_on_changes true and autosave_interval 1")
	}
	if set["max_queued_messages"] != "0" {
		add(ingest.Warning, "it queues 1000 messages by default while the daemon is away, and drops the rest", "set max_queued_messages 0")
	}
	if len(list) == before {
		add(ingest.Fine, "", "")
	}
	return list
}

const mosquittoWants = "set persistence true, autosave_on_changes true, autosave_interval 1 and max_queued_messages 0 there"

// mosquittoSettings reads the settings of mosquitto.conf and conf.d, the last of each.
func mosquittoSettings(dir string) (map[string]string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "conf.d", "*.conf"))
	if err != nil {
		return nil, err
	}
	set := map[string]string{}
	for _, file := range append([]string{filepath.Join(dir, "mosquitto.conf")}, files...) {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(text)) {
			if key, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok && !strings.HasPrefix(key, "#") {
				set[key] = strings.TrimSpace(value)
			}
		}
	}
	return set, nil
}
