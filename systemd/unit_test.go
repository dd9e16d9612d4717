package systemd

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// unit reads the unit file into "Section.Key" -> values in order.
func unit(t *testing.T) map[string][]string {
	t.Helper()
	b, err := os.ReadFile("holdfast.service")
	if err != nil {
		t.Fatal(err)
	}
	keys := map[string][]string{}
	section := ""
	for i, line := range strings.Split(string(b), "\n") {
		line = strings.TrimSpace(line)
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "["):
			section = strings.Trim(line, "[]")
		default:
			key, value, ok := strings.Cut(line, "=")
			if !ok {
				t.Fatalf("holdfast.service:%d: %q is not an assignment", i+1, line)
			}
			keys[section+"."+key] = append(keys[section+"."+key], value)
		}
	}
	return keys
}

func TestUnitKeys(t *testing.T) {
	keys := unit(t)
	for key, want := range map[string][]string{
		"Unit.StartLimitIntervalSec":     {"0"}, // it never gives up
		"Service.Type":                   {"notify-reload"},
		"Service.Restart":                {"always"},
		"Service.StateDirectory":         {"holdfast"},
		"Service.ConfigurationDirectory": {"holdfast"},
		"Service.User":                   {"holdfast"},
		"Service.SupplementaryGroups":    {"dialout"},
		"Service.NoNewPrivileges":        {"yes"},
		"Service.ProtectSystem":          {"strict"},
		"Service.PrivateTmp":             {"yes"},
		"Service.DevicePolicy":           {"closed"},
		"Service.CapabilityBoundingSet":  {""},
		"Service.ExecStart":              {"/usr/bin/holdfast run -config /etc/holdfast/holdfast.yaml"},
		"Install.WantedBy":               {"multi-user.target"},
	} {
		if got := keys[key]; !slices.Equal(got, want) {
			t.Errorf("%s = %q, want %q", key, got, want)
		}
	}
	for _, class := range []string{"char-ttyS rw", "char-ttyUSB rw", "char-ttyACM rw", "char-ttyAMA rw"} {
		if !slices.Contains(keys["Service.DeviceAllow"], class) {
			t.Errorf("DeviceAllow = %q, want %q in it", keys["Service.DeviceAllow"], class)
		}
	}
	for _, family := range []string{"AF_UNIX", "AF_INET", "AF_INET6", "AF_NETLINK"} {
		if !slices.Contains(strings.Fields(strings.Join(keys["Service.RestrictAddressFamilies"], " ")), family) {
			t.Errorf("RestrictAddressFamilies = %q, want %s in it", keys["Service.RestrictAddressFamilies"], family)
		}
	}
}

// TestUnitLeavesWhatWeNeed names the hardening that would take something away, and orderings that would make capture wait.
func TestUnitLeavesWhatWeNeed(t *testing.T) {
	keys := unit(t)
	for key, why := range map[string]string{
		"Service.PrivateDevices": "it hides the serial lines",
		"Service.ProtectClock":   "it forbids adjtimex, which tells whether the clock is synchronised",
		"Service.ProcSubset":     "it hides the kernel's boot id",
		"Service.PrivateNetwork": "the hub is out there",
		"Service.DynamicUser":    "the data outlives the service, so its owner has to be the same user for ever",
		"Unit.Requires":          "nothing may keep capture from starting",
		"Unit.BindsTo":           "nothing may stop capture",
	} {
		if got, ok := keys[key]; ok {
			t.Errorf("%s = %q, want it absent: %s", key, got, why)
		}
	}
	for _, after := range strings.Fields(strings.Join(keys["Unit.After"], " ")) {
		if slices.Contains([]string{"network.target", "network-online.target", "time-sync.target"}, after) {
			t.Errorf("After has %s: capture would wait for it", after)
		}
	}
}

func TestUnitTimes(t *testing.T) {
	keys := unit(t)
	for key, atLeast := range map[string]time.Duration{
		"Service.WatchdogSec":     30 * time.Second, // a card that stalls is no reason to restart
		"Service.TimeoutStopSec":  25 * time.Second, // more than the daemon's own deadline of 20 s
		"Service.TimeoutStartSec": 5 * time.Minute,
	} {
		got, err := time.ParseDuration(strings.Replace(strings.Join(keys[key], ""), "min", "m", 1))
		if err != nil || got < atLeast {
			t.Errorf("%s = %q, %v, want at least %v", key, keys[key], err, atLeast)
		}
	}
}

func analyze(t *testing.T, args ...string) string {
	t.Helper()
	path, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("SKIPPED: systemd-analyze is not installed")
	}
	out, err := exec.Command(path, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("systemd-analyze %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// TestUnitVerify lets systemd read the unit. The command is replaced by this test, which exists.
func TestUnitVerify(t *testing.T) {
	b, err := os.ReadFile("holdfast.service")
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "holdfast.service")
	if err := os.WriteFile(file, []byte(strings.Replace(string(b), "/usr/bin/holdfast", self, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(analyze(t, "verify", file)) {
		newer := strings.Contains(line, "Unknown key 'RestartSteps'") || strings.Contains(line, "Unknown key 'RestartMaxDelaySec'") || // systemd 254
			strings.Contains(line, "ignoring: notify-reload") // 253; before that the package adds systemd-252.conf
		if strings.Contains(line, "holdfast.service") && !newer {
			t.Errorf("systemd-analyze verify: %s", line)
		}
	}
}

// TestUnitSecurity keeps the score of systemd-analyze, the lower the better, at 2.0 or below.
func TestUnitSecurity(t *testing.T) {
	out := analyze(t, "security", "--offline=true", "holdfast.service")
	score := regexp.MustCompile(`exposure level for holdfast.service: ([0-9.]+)`).FindStringSubmatch(out)
	if score == nil {
		t.Fatalf("systemd-analyze security prints no score:\n%s", out)
	}
	if level, err := strconv.ParseFloat(score[1], 64); err != nil || level > 2.0 {
		t.Errorf("exposure level %s, want at most 2.0:\n%s", score[1], out)
	}
}

// TestUnitSystemCalls looks up whether the filter lets through what a commit and the clock need.
func TestUnitSystemCalls(t *testing.T) {
	allowed := map[string]bool{}
	for _, list := range unit(t)["Service.SystemCallFilter"] {
		groups, deny := strings.CutPrefix(list, "~")
		for _, call := range systemCalls(t, strings.Fields(groups)) {
			allowed[call] = !deny
		}
	}
	for _, call := range []string{"syncfs", "fsync", "fdatasync", "flock", "adjtimex", "clock_adjtime", "ioctl", "statfs", "epoll_pwait"} {
		if !allowed[call] {
			t.Errorf("SystemCallFilter does not allow %s", call)
		}
	}
}

// systemCalls resolves groups such as @system-service to the calls in them.
func systemCalls(t *testing.T, groups []string) []string {
	t.Helper()
	seen := map[string]bool{}
	for len(groups) > 0 {
		group := groups[0]
		groups = groups[1:]
		if seen[group] {
			continue
		}
		seen[group] = true
		if strings.HasPrefix(group, "@") {
			for _, line := range strings.Split(analyze(t, "syscall-filter", group), "\n") {
				if name := strings.TrimSpace(line); name != "" && !strings.HasPrefix(name, "#") {
					groups = append(groups, name)
				}
			}
		}
	}
	return slices.Collect(maps.Keys(seen))
}
