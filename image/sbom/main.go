// Command sbom writes what an image consists of, as SPDX 2.3 in JSON, from the package manager's own list. It is used by scripts/image.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/url"
	"os"
	"sort"
	"strings"
	"time"
)

func main() {
	name := flag.String("name", "", "name of the image")
	status := flag.String("status", "", "the image's /var/lib/dpkg/status")
	seconds := flag.Int64("time", 0, "time of the build, in seconds since 1970")
	flag.Parse()
	if err := run(os.Stdout, *name, *status, time.Unix(*seconds, 0)); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

func run(out io.Writer, name, status string, created time.Time) error {
	b, err := os.ReadFile(status)
	if err != nil {
		return err
	}
	doc, err := document(name, string(b), created)
	if err != nil {
		return fmt.Errorf("%s: %w", status, err)
	}
	enc := json.NewEncoder(out)
	enc.SetIndent("", " ")
	return enc.Encode(doc)
}

type spdx struct {
	Version   string         `json:"spdxVersion"`
	License   string         `json:"dataLicense"`
	ID        string         `json:"SPDXID"`
	Name      string         `json:"name"`
	Namespace string         `json:"documentNamespace"`
	Creation  creation       `json:"creationInfo"`
	Packages  []pkg          `json:"packages"`
	Relations []relationship `json:"relationships"`
}

type creation struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

type pkg struct {
	ID       string      `json:"SPDXID"`
	Name     string      `json:"name"`
	Version  string      `json:"versionInfo"`
	Supplier string      `json:"supplier"`
	Download string      `json:"downloadLocation"`
	Analyzed bool        `json:"filesAnalyzed"`
	Source   string      `json:"sourceInfo,omitempty"`
	Refs     []reference `json:"externalRefs"`
}

type reference struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type relationship struct {
	From string `json:"spdxElementId"`
	Kind string `json:"relationshipType"`
	To   string `json:"relatedSpdxElement"`
}

// document lists the installed packages of a dpkg status file.
func document(name, status string, created time.Time) (spdx, error) {
	doc := spdx{Version: "SPDX-2.3", License: "CC0-1.0", ID: "SPDXRef-DOCUMENT", Name: name,
		Namespace: "https://github.com/holdfast-edge/holdfast/sbom/" + url.PathEscape(name),
		Creation:  creation{created.UTC().Format(time.RFC3339), []string{"Tool: holdfast-image-sbom"}}}
	for paragraph := range strings.SplitSeq(status, "\n\n") {
		field := map[string]string{}
		for line := range strings.Lines(paragraph) {
			if key, value, ok := strings.Cut(strings.TrimRight(line, "\n"), ": "); ok && !strings.HasPrefix(line, " ") {
				field[key] = value
			}
		}
		if !strings.HasSuffix(field["Status"], " installed") {
			continue
		}
		p := pkg{Name: field["Package"], Version: field["Version"], Supplier: "Organization: Debian", Download: "NOASSERTION"}
		if p.Name == "" || p.Version == "" {
			return spdx{}, fmt.Errorf("a package without name or version: %.80q", paragraph)
		}
		if p.Name == "holdfast" {
			p.Supplier = "Organization: The Holdfast developers"
		}
		p.ID = "SPDXRef-" + strings.ReplaceAll(p.Name, "+", "-plus")
		if s := field["Source"]; s != "" {
			p.Source = "built from source package " + s
		}
		purl := fmt.Sprintf("pkg:deb/debian/%s@%s?arch=%s&distro=trixie", url.PathEscape(p.Name), url.QueryEscape(p.Version), field["Architecture"])
		p.Refs = []reference{{"PACKAGE-MANAGER", "purl", purl}}
		doc.Packages = append(doc.Packages, p)
	}
	if len(doc.Packages) == 0 {
		return spdx{}, fmt.Errorf("no installed packages")
	}
	sort.Slice(doc.Packages, func(i, j int) bool { return doc.Packages[i].Name < doc.Packages[j].Name })
	for _, p := range doc.Packages {
		doc.Relations = append(doc.Relations, relationship{doc.ID, "DESCRIBES", p.ID})
	}
	return doc, nil
}
