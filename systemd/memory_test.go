package systemd

import (
	"testing"
	"testing/fstest"
)

func TestMemoryMax(t *testing.T) {
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	for _, test := range []struct {
		name string
		root fstest.MapFS
		want int64
	}{
		{"no control groups", fstest.MapFS{}, 0},
		{"version 1", fstest.MapFS{"proc/self/cgroup": file("4:memory:/a\n"), "sys/fs/cgroup/a/memory.max": file("9")}, 0},
		{"no limit", fstest.MapFS{"proc/self/cgroup": file("0::/system.slice/holdfast.service\n"),
			"sys/fs/cgroup/system.slice/holdfast.service/memory.max": file("max\n")}, 0},
		{"the service's", fstest.MapFS{"proc/self/cgroup": file("0::/system.slice/holdfast.service\n"),
			"sys/fs/cgroup/system.slice/holdfast.service/memory.max": file("268435456\n"),
			"sys/fs/cgroup/system.slice/memory.max":                  file("max\n")}, 256 << 20},
		{"the slice's is lower", fstest.MapFS{"proc/self/cgroup": file("1:name=systemd:/x\n0::/system.slice/holdfast.service\n"),
			"sys/fs/cgroup/system.slice/holdfast.service/memory.max": file("268435456\n"),
			"sys/fs/cgroup/system.slice/memory.max":                  file("134217728\n")}, 128 << 20},
		{"controller off below", fstest.MapFS{"proc/self/cgroup": file("0::/a/b\n"), "sys/fs/cgroup/a/memory.max": file("1048576\n")}, 1 << 20},
		{"in the root group", fstest.MapFS{"proc/self/cgroup": file("0::/\n")}, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := memoryMax(test.root); got != test.want {
				t.Errorf("memoryMax = %d, want %d", got, test.want)
			}
		})
	}
}
