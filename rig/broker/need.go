package broker

import "testing"

// Need starts Mosquitto for a test and closes it after the test. In -short, and where Mosquitto is not installed, the test is
// skipped with a message that says so.
func Need(t testing.TB, opts Options) *Mosquitto {
	t.Helper()
	if testing.Short() {
		t.Skip("SKIPPED: runs a Mosquitto process, not done with -short")
	}
	if _, err := Find(); err != nil {
		t.Skipf("SKIPPED, so this is NOT TESTED here: %v", err)
	}
	b, err := Start(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}
