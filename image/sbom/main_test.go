package main

import (
	"strings"
	"testing"
	"time"
)

func TestDocument(t *testing.T) {
	status := "Package: libc6\nStatus: install ok installed\nArchitecture: arm64\nSource: glibc\nVersion: 2.41-12\nDescription: library\n of many lines: here\n\n" +
		"Package: gone\nStatus: deinstall ok config-files\nArchitecture: arm64\nVersion: 1\n\n" +
		"Package: libstdc++6\nStatus: install ok installed\nArchitecture: arm64\nVersion: 14+b1\n"
	doc, err := document("image", status, time.Unix(0, 0))
	if err != nil {
		t.Fatal(err)
	}
	if len(doc.Packages) != 2 || len(doc.Relations) != 2 {
		t.Fatalf("document lists %+v, want the two that are installed", doc.Packages)
	}
	if p := doc.Packages[0]; p.Name != "libc6" || p.Source != "built from source package glibc" || p.Refs[0].Locator != "pkg:deb/debian/libc6@2.41-12?arch=arm64&distro=trixie" {
		t.Errorf("libc6 is %+v", p)
	}
	if p := doc.Packages[1]; strings.Contains(p.ID, "+") || !strings.Contains(p.Refs[0].Locator, "14%2Bb1") {
		t.Errorf("an identifier takes letters, digits, dots and dashes: %+v", p)
	}
	for _, bad := range []string{"", "Package: x\nStatus: install ok installed\n"} {
		if _, err := document("image", bad, time.Unix(0, 0)); err == nil {
			t.Errorf("document(%q) succeeds", bad)
		}
	}
}
