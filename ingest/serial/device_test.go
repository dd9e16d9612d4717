package serial

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-edge/holdfast/ingest"
)

// opened opens a port for the length of a test.
func opened(t testing.TB, cfg Config) *tty {
	t.Helper()
	dev, err := open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dev.Close() })
	return dev.(*tty)
}

// faulted checks that a port cannot be opened, and how that is explained.
func faulted(t testing.TB, cfg Config, kind ingest.Kind, cause, remedy string) {
	t.Helper()
	dev, err := open(cfg)
	var f *fault
	if !errors.As(err, &f) {
		if dev != nil {
			_ = dev.Close()
		}
		t.Fatalf("open(%s) = %v, want a fault", cfg.Port, err)
	}
	if f.kind != kind || !strings.Contains(f.cause, cause) || !strings.Contains(f.remedy, remedy) {
		t.Errorf("open(%s) = %v, %q, %q; want %v, a cause with %q, a remedy with %q", cfg.Port, f.kind, f.cause, f.remedy, kind, cause, remedy)
	}
}

func TestOpenSetsSpeed(t *testing.T) {
	p := newPlug(t)
	for _, baud := range []int{50, 300, 4800, 115200, 12345, 250000, 4000000, 12000000} {
		cfg := p.config()
		cfg.Baud = baud
		dev := opened(t, cfg)
		if got := p.speed(); got != baud {
			t.Errorf("the line runs at %d baud, want %d", got, baud)
		}
		if err := dev.Close(); err != nil {
			t.Errorf("Close() = %v", err)
		}
	}
}

func TestOpenFaults(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "by-id")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	port := func(path string) Config {
		var c Config
		c.SetDefaults()
		c.Port = path
		return c
	}
	faulted(t, port(filepath.Join(dir, "usb-GPS")), ingest.Waiting, "is not there: no such file", "plug the device in")
	for _, name := range []string{"usb-A", "usb-B", "usb-C", "usb-D"} {
		if err := os.Symlink("/dev/null", filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	faulted(t, port(filepath.Join(dir, "usb-GPS")), ingest.Waiting, "usb-GPS is not there", "usb-A, usb-B, usb-C, and more")
	faulted(t, port(filepath.Join(dir, "usb-A")), ingest.Refused, "does not take 9600 baud", "serial port")
	faulted(t, port(plain), ingest.Refused, "is not a device", "by-id")
	faulted(t, port(dir), ingest.Refused, "is not a device", "by-id")
}

// TestOpenDenied opens ports as a user without rights.
func TestOpenDenied(t *testing.T) {
	t.Run("no rights for a group", func(t *testing.T) {
		p := newPlug(t)
		if err := os.Chmod(p.node, 0); err != nil {
			t.Fatal(err)
		}
		cfg := p.config()
		cfg.Port = p.node // nobody may not search the directory of the link
		asNobody(t, func() { faulted(t, cfg, ingest.Denied, "with mode 0000 and may not be opened by", "udev rule") })
	})
	t.Run("rights for a group", func(t *testing.T) {
		if os.Geteuid() != 0 {
			t.Skip("NEEDS ROOT: only root gives a port to a group it is not in: NOT TESTED")
		}
		p := newPlug(t)
		if err := os.Chown(p.node, 0, 20); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(p.node, 0o660); err != nil {
			t.Fatal(err)
		}
		cfg := p.config()
		cfg.Port = p.node
		asNobody(t, func() { faulted(t, cfg, ingest.Denied, "belongs to root:", "usermod -aG ") })
	})
	t.Run("directory", func(t *testing.T) {
		p := newPlug(t)
		if err := os.Chmod(filepath.Dir(p.link), 0); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.Chmod(filepath.Dir(p.link), 0o700) }) // so that it can be removed
		asNobody(t, func() { faulted(t, p.config(), ingest.Denied, "cannot be looked up", "directories") })
	})
}

// asNobody runs f with the rights of nobody if we are root: Linux looks at the thread's file system identity.
func asNobody(t *testing.T, f func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		f()
		return
	}
	const nobody = 65534
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if _, err := unix.SetfsuidRetUid(nobody); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.SetfsgidRetGid(nobody); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_, _ = unix.SetfsuidRetUid(0) // its result is the identity before, in any case
		_, _ = unix.SetfsgidRetGid(0)
	}()
	if now, _ := unix.SetfsuidRetUid(-1); now != nobody {
		t.Skipf("NEEDS setfsuid(2): the identity stayed %d, so that a denied open was NOT TESTED", now)
	}
	f()
}

// TestManyDescriptors is ING-006: the library's own Read panics on a descriptor above 1023.
func TestManyDescriptors(t *testing.T) {
	t.Run("ING-006", func(t *testing.T) {
		var limit unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			t.Fatal(err)
		}
		if limit.Cur < 1200 {
			t.Skipf("NEEDS 1200 file descriptors, the limit is %d: NOT TESTED", limit.Cur)
		}
		for range 1100 {
			f, err := os.Open(os.DevNull)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = f.Close() })
		}
		p := newPlug(t)
		dev := opened(t, p.config())
		if err := dev.control(func(fd int) error {
			if fd < 1024 {
				t.Fatalf("the port has descriptor %d, want one above 1023", fd)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		p.send("A\n")
		buf := make([]byte, 8)
		if err := dev.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		if n, err := dev.Read(buf); err != nil || string(buf[:n]) != "A\n" {
			t.Errorf("Read() = %q, %v, want A", buf[:n], err)
		}
	})
}

// TestClose looks at what the library's Close does not do: it ends a Write that waits, and later calls fail.
func TestClose(t *testing.T) {
	p := newPlug(t)
	dev := opened(t, p.config())
	ended := make(chan error, 2)
	go func() {
		_, err := dev.Read(make([]byte, 1))
		ended <- err
	}()
	full := make([]byte, 1<<20) // nobody reads the other end
	go func() {
		_, err := dev.Write(full)
		ended <- err
	}()
	select {
	case err := <-ended:
		t.Fatalf("a call ended before Close: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	if err := dev.Close(); err != nil {
		t.Errorf("Close() = %v", err)
	}
	for range 2 {
		select {
		case err := <-ended:
			if !errors.Is(err, os.ErrClosed) {
				t.Errorf("a waiting call ended with %v, want os.ErrClosed", err)
			}
		case <-time.After(patience):
			t.Fatal("a call did not end by Close")
		}
	}
	if _, err := dev.Write([]byte("AT")); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Write() after Close = %v, want os.ErrClosed", err)
	}
	if err := dev.Close(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("second Close() = %v, want os.ErrClosed", err)
	}
}

func TestConfigValidate(t *testing.T) {
	for _, tc := range []struct {
		name string
		edit func(*Config)
		want []string
	}{
		{"defaults", func(*Config) {}, nil},
		{"all set", func(c *Config) {
			c.Baud, c.DataBits, c.Parity, c.StopBits, c.Silence, c.Buffer = 12345, 7, "even", 2, time.Minute, 4096
		}, nil},
		{"no port", func(c *Config) { c.Port = "" }, []string{"port"}},
		{"relative port", func(c *Config) { c.Port = "ttyUSB0" }, []string{"port"}},
		{"negative baud", func(c *Config) { c.Baud = -5 }, []string{"baud"}},
		{"no baud", func(c *Config) { c.Baud = 0 }, []string{"baud"}},
		{"everything", func(c *Config) { *c = Config{Silence: -1} }, []string{"port", "baud", "data_bits", "parity", "stop_bits", "flow", "dtr", "rts", "command.reply", "silence", "buffer"}},
		{"usb port", func(c *Config) { c.Port = "0403:6001:A50285BI:00" }, nil},
		{"usb port without serial number", func(c *Config) { c.Port = "10c4:ea60::1" }, nil},
		{"half a usb port", func(c *Config) { c.Port = "0403:60" }, []string{"port"}},
		{"commands and alarms", func(c *Config) {
			c.Flow, c.DTR, c.RTS, c.HangUp, c.Settle, c.Silence, c.Poke, c.Reopen = "xonxoff", "off", "on", false, time.Second, time.Minute, `\r\n`, time.Hour
			c.Command = Command{End: `\r`, Reply: "message", Prefix: "hex:06"}
		}, nil},
		{"flow", func(c *Config) { c.Flow = "hardware" }, []string{"flow"}},
		{"rts is flow's", func(c *Config) { c.Flow, c.RTS = "rtscts", "off" }, []string{"rts"}},
		{"poke without silence", func(c *Config) { c.Poke = "?" }, []string{"poke"}},
		{"bad poke", func(c *Config) { c.Poke, c.Silence = `\q`, time.Minute }, []string{"poke"}},
		{"reopen before the alarm", func(c *Config) { c.Reopen, c.Silence = time.Second, time.Minute }, []string{"reopen"}},
		{"settle for hours", func(c *Config) { c.Settle = time.Hour }, []string{"settle"}},
		{"prefix without reply", func(c *Config) { c.Command.Prefix = "OK" }, []string{"command.prefix"}},
		{"bad end", func(c *Config) { c.Command.End = "hex:0" }, []string{"command.end"}},
		{"stop bits 3", func(c *Config) { c.StopBits = 3 }, []string{"stop_bits"}},
		{"data bits 9", func(c *Config) { c.DataBits = 9 }, []string{"data_bits"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := (&plug{link: "/dev/ttyUSB0"}).config()
			tc.edit(&cfg)
			var keys []string
			cfg.Validate(func(key, problem, remedy string) {
				if problem == "" || remedy == "" {
					t.Errorf("fault of %s: problem %q, remedy %q, want both", key, problem, remedy)
				}
				keys = append(keys, key)
			})
			if !slices.Equal(keys, tc.want) {
				t.Errorf("faults of %q, want %q", keys, tc.want)
			}
			if _, err := New("gps", cfg, lines, slog.New(slog.DiscardHandler)); tc.want != nil && (err == nil || !strings.Contains(err.Error(), tc.want[0])) {
				t.Errorf("New() = %v, want an error that names %s", err, tc.want[0])
			}
		})
	}
}
