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
		"Service.ReadWritePaths":         {"-/var/lib/holdfast"},
		"Unit.WantsMountsFor":            {"/var/lib/holdfast"},
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
		"Unit.RequiresMountsFor": "a missing data partition would keep the daemon from saying so, and Restart= does not try again",
		"Service.StateDirectory": "it implies RequiresMountsFor",
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

// unitDir makes a folder of units as the package installs them. The command is replaced by this test, which exists.
func unitDir(t *testing.T, files map[string]string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for to, from := range files {
		b, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, to)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(strings.Replace(string(b), "/usr/bin/holdfast", self, 1)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// newer are the complaints of a systemd that is older than what the unit says: 256, 254 and 253.
var newer = []string{"Unknown key 'WantsMountsFor'", "Unknown key 'RestartSteps'", "Unknown key 'RestartMaxDelaySec'", "ignoring: notify-reload"}

// TestUnitVerify lets systemd read the units, the service as it is and with the drop-in for systemd 252.
func TestUnitVerify(t *testing.T) {
	for name, files := range map[string]map[string]string{
		"trixie":   {"holdfast.service": "holdfast.service", "holdfast.socket": "holdfast.socket", "holdfast-mqtt.socket": "holdfast-mqtt.socket"},
		"bookworm": {"holdfast.service": "holdfast.service", "holdfast.service.d/10-systemd-252.conf": "systemd-252.conf"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := unitDir(t, files)
			t.Setenv("SYSTEMD_UNIT_PATH", dir+":")
			for file := range files {
				if strings.HasSuffix(file, ".conf") {
					continue
				}
				for line := range strings.Lines(analyze(t, "verify", filepath.Join(dir, file))) {
					known := slices.ContainsFunc(newer, func(s string) bool { return strings.Contains(line, s) })
					if strings.Contains(line, "holdfast") && !known {
						t.Errorf("systemd-analyze verify %s: %s", file, line)
					}
				}
			}
		})
	}
}

// TestUnitFor252 keeps the drop-in to what an older systemd does not know, and makes sure that what it is left with can reload.
func TestUnitFor252(t *testing.T) {
	b, err := os.ReadFile("systemd-252.conf")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"[Service]\n", "\nType=notify\n", "\nExecReload=/bin/sh -c 'kill -HUP $MAINPID'\n"} {
		if !strings.Contains(string(b), want) {
			t.Errorf("systemd-252.conf lacks %q:\n%s", want, b)
		}
	}
}

// TestUnitNotesAKillForWantOfMemory runs what the unit runs after the daemon's end.
func TestUnitNotesAKillForWantOfMemory(t *testing.T) {
	line := strings.Join(unit(t)["Service.ExecStopPost"], "")
	script, ok := strings.CutPrefix(line, "-/bin/sh -c '")
	script, quoted := strings.CutSuffix(script, "'")
	if !ok || !quoted {
		t.Fatalf("ExecStopPost = %q", line)
	}
	dir := t.TempDir()
	script = strings.ReplaceAll(script, "/var/lib/holdfast", dir)
	run := func(result string) string {
		t.Helper()
		cmd := exec.Command("sh", "-c", script)
		cmd.Env = []string{"SERVICE_RESULT=" + result}
		if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("%s: %v: %s", result, err, out)
		}
		note, _ := os.ReadFile(filepath.Join(dir, "crash")) // absent: nothing was noted
		return string(note)
	}
	if note := run("oom-kill"); note != "" {
		t.Errorf("without a store it noted %q", note)
	}
	if err := os.Mkdir(filepath.Join(dir, "store"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, result := range []string{"success", "exit-code", "signal", "watchdog", "timeout"} {
		if note := run(result); note != "" {
			t.Errorf("%s noted %q", result, note)
		}
	}
	if note := run("oom-kill"); note != "killed by the kernel for want of memory\n" {
		t.Errorf("oom-kill noted %q", note)
	}
}

// TestUnitSecurity keeps the score of systemd-analyze, the lower the better, at 2.0 or below.
func TestUnitSecurity(t *testing.T) {
	out := analyze(t, "security", "--offline=true", "holdfast.service")
	score := regexp.MustCompile(`exposure level for holdfast.service: ([0-9.]+)`).FindStringSubmatch(out)
	if score == nil {
		t.Fatalf("systemd-analyze security prints no score:\n%s", out)
	}
	t.Logf("exposure level %s", score[1])
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
