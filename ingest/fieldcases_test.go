package ingest

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fieldCases are the troubles that people had in the field, of which the files named cases.jsonl tell, by their numbers.
var fieldCases = []int{1, 2, 3, 4, 6, 11, 14, 15, 17, 18, 19, 21, 22, 23, 24, 25, 26, 27, 30, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 43, 44, 45, 46, 48,
	49, 50, 52, 53, 57, 58, 59, 60, 61, 62, 63, 64, 66, 67, 68, 70, 72, 76, 77, 78, 79, 80, 83, 85, 86, 87, 89, 90, 91, 92, 93, 94, 95, 97, 98, 99, 102,
	103, 104, 105, 106, 108, 109, 110}

// elsewhere says of the cases that no test below this folder is named after what becomes of them.
var elsewhere = map[int]string{
	83:  "what the broker drops while we are away is the broker's to say: OPERATIONS names the setting",
	85:  "a fault of some brokers: OPERATIONS names the settings that matter",
	91:  "QoS 2 is taken and promised to be no better than QoS 1",
	102: "the MQTT listener of nats-server is not used",
	103: "the MQTT listener of nats-server is not used",
	104: "the MQTT listener of nats-server is not used",
	105: "the MQTT listener of nats-server is not used",
	106: "records carry the state of the clock and the time since boot, and are ordered by epoch and number: tests of storage",
	109: "Sparkplug is stored as it comes, and not decoded",
}

// TestFieldCasesAreTested looks for a test with the number of each case in its source.
func TestFieldCasesAreTested(t *testing.T) {
	var tests strings.Builder
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") || path == "fieldcases_test.go" {
			return err
		}
		text, err := os.ReadFile(path)
		tests.Write(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range fieldCases {
		id := fmt.Sprintf("ING-%03d", n)
		named := strings.Contains(tests.String(), id) || strings.Contains(tests.String(), fmt.Sprintf("func TestING%03d", n))
		if !named && elsewhere[n] == "" {
			t.Errorf("%s has no test, and no reason why not", id)
		}
	}
}
