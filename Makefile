# Everything that CI or a developer runs is a target here. `make help` lists them.

GO      ?= go
BIN     := bin/holdfast
MAIN    := ./cmd/holdfast
TOOL    := $(GO) tool -modfile=tools.mod
LDFLAGS := -s -w
# Packages off the path of a record are compiled without inlining: 0.7 MB less in the binary, and in memory.
COLD    := net/http github.com/expr-lang/... github.com/eclipse/... github.com/fxamacker/... go.yaml.in/... encoding/gob crypto/tls crypto/x509
GCFLAGS := $(foreach p,$(COLD),-gcflags=$(p)=-l)

# Packages are tested one after another: the tests start real servers, disks and brokers, and two cores are all that is asked for.
TEST_P       ?= 2
# So many tests of one package run side by side where they mostly wait.
TEST_PARALLEL ?= 3
TEST_TIMEOUT ?= 20m
FUZZ_TIME    ?= 60s
CUTS         ?= 200
LONG         ?= 0
MACHINE_CUTS ?= 100
# The stripped arm64 binary has to stay below this many bytes.
MAX_ARM64    ?= 25000000

.PHONY: help build test test-short test-deps test-386 test-arch lint vuln cross deb image demo bench links soak jetstream fuzz powercut image-test clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "%-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## build bin/holdfast for this machine
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' $(GCFLAGS) -o $(BIN) $(MAIN)

test-deps: ## install what the tests use beside Go (root on Debian), else say what will be skipped
	@scripts/test-deps

test: test-deps ## all tests but the long rigs
	$(GO) build ./...
	$(GO) test -count=1 -p $(TEST_P) -parallel $(TEST_PARALLEL) -timeout $(TEST_TIMEOUT) ./...
	@GO='$(GO)' scripts/test-arch small

test-short: ## tests that need no network, no root and less than a minute
	$(GO) test -short -count=1 -timeout 5m ./...

test-386: ## the same as test-short, on 32 bits
	GOARCH=386 CGO_ENABLED=0 $(GO) test -short -count=1 -p $(TEST_P) -timeout 10m ./...

test-arch: test-deps ## the parts that look at bytes, and the daemon, on arm64, armhf and 386, emulated where need be
	@GO='$(GO)' scripts/test-arch

lint: ## gofmt, go vet, staticcheck, errcheck
	@out=$$(gofmt -l $$(git ls-files --cached --others --exclude-standard '*.go')); \
	  if [ -n "$$out" ]; then echo "not formatted, run gofmt -w on:"; echo "$$out"; exit 1; fi
	$(GO) vet ./...
	$(TOOL) staticcheck ./...
	$(TOOL) errcheck -exclude scripts/errcheck.txt ./...

vuln: ## known vulnerabilities in what we call
	$(TOOL) govulncheck ./...

cross: ## release binaries for arm64, arm (v7) and amd64, with their sizes
	@GO='$(GO)' LDFLAGS='$(LDFLAGS)' GCFLAGS='$(GCFLAGS)' MAX_ARM64='$(MAX_ARM64)' scripts/cross

deb: cross ## Debian packages for amd64, arm64 and armhf in dist/
	scripts/deb

image: cross ## image for Raspberry Pi boards, with its list of contents and checksums, in dist/image/ (root)
	scripts/image

demo: build ## the whole thing on this machine: hub, leaf, devices, a link that is cut
	$(BIN) demo

bench: build cross ## what a commit costs, beside the raw cost of the same bytes and other forms: tables in bench.md (root); shorter or judged: BENCH='-even 10s -check'
	$(GO) test -run '^$$' -bench . -benchmem -count=1 -p 1 -timeout 60m ./...
	$(GO) test -run Report -count=1 -timeout 120m -v $(MAIN)/bench -report $(CURDIR)/bench.md $(BENCH) -daemon $(CURDIR)/$(BIN) \
	  -binaries $(CURDIR)/dist/holdfast-linux-arm64,$(CURDIR)/dist/holdfast-linux-armv7,$(CURDIR)/dist/holdfast-linux-amd64
	@cat bench.md

links: ## the link rig in full length, with figures: slow, cut, silent and flapping links
	$(GO) test -count=1 -timeout 2h -v ./forward -run 'Links|BesideBare|IdleLinkCost|FirstRecordAfterOutage|RoundTripTooLong' -full

soak: test-deps fuzz links ## the long rigs, full length
	$(GO) test -count=1 -timeout 12h -v $(MAIN) -full
	$(GO) test -count=1 -timeout 2h -v ./ingest/mqttserver -run Kill -kills 1000
	$(GO) test -count=1 -timeout 1h -v ./ingest/serial -run FullSpeed -minute
	HOLDFAST_LEAVES=1000 HOLDFAST_FLEET=200 HOLDFAST_BACKLOG=3600 HOLDFAST_AUDIT=10000000 \
	  $(GO) test -count=1 -timeout 4h -v ./forward/hub -run 'Fleet|AuditOfMany'

jetstream: ## walk the examples of docs/JETSTREAM.md with the stock nats tool
	@GO='$(GO)' scripts/jetstream-walk

fuzz: ## every fuzz target for FUZZ_TIME each
	@GO='$(GO)' FUZZ_TIME='$(FUZZ_TIME)' scripts/fuzz

powercut: test-deps ## CUTS power cuts with a hub attached; LONG=30m adds lives of minutes
	$(GO) test -count=1 -parallel 4 -timeout 4h -v $(MAIN)/powercut -cuts $(CUTS) -long $(LONG) -patience 3m

image-test: test-deps image ## start the image: virtual arm64 board, Raspberry Pi 3 and PC; MACHINE_CUTS power cuts of a whole machine and of the image; the package on Debian bookworm (root)
	ARCH=amd64 scripts/image
	$(GO) test -count=1 -timeout 2h -v ./image -run TestPackage -suite bookworm
	$(GO) test -count=1 -timeout 12h -v ./image -board virt -run TestImage -skip PowerCuts
	$(GO) test -count=1 -timeout 24h -v ./image -board amd64 -run PowerCuts -cuts $(MACHINE_CUTS) -imagecuts $(MACHINE_CUTS)

clean: ## remove what make made
	rm -rf bin dist bench.md
