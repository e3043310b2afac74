# What a person who works on Migratory types. `make help` lists it; each target runs alone.
SHELL := /bin/bash
.DELETE_ON_ERROR:
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Tests share the machine with the clusters they start: as many workers as cores, four at most.
WORKERS ?= $(shell n=$$(nproc); echo $$(( n > 4 ? 4 : n )))
INTEGRATION_WORKERS ?= $(shell echo $$(( $$(nproc) + 1 )))
SEEDS ?= 1000
SAMPLE ?= 60
MINUTES ?=
TARGET ?=
DEMO ?=

.PHONY: help install compiled compiled-check demo test quick check lint types layers unit js browser fuzz fuzz-check model holes sim planted mutants integration integration-together integration-alone chaos bench attack bench-test nightly truth bench-peers bench-compare bench-readme evaluation capacity bench-sla debian crds locks sbom licences audit cluster cluster-down cluster-kubeconfig images cluster-prepare cluster-test chaos-k8s manifests debian-cluster clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed, $$($(PYTHON) --version) is what '$(PYTHON)' names; try make PYTHON=python3.12" >&2; exit 1; }
	@echo "Making $(VENV) with $$($(PYTHON) --version)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'

# pip's own cache makes a second run quick; the stamps keep `make demo` from asking the index each time.
$(VENV)/.product: pyproject.toml | $(VENV)/bin/python
	@echo "Installing the product and its libraries into $(VENV) (some minutes the first time: Spark alone is 450 MB)"
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --editable '.[all]'
	@touch $@

$(VENV)/.tests: pyproject.toml $(VENV)/.product
	$(BIN)/python -m pip install --quiet --group dev
	@touch $@

# Compiled where that is possible (docs/decisions/0008-compiled-cores.md); MIGRATORY_COMPILED=0 leaves it out.
install: $(VENV)/.product ## make .venv with the product at .venv/bin/migratory, its cores compiled where a C compiler is
	@[ "$$MIGRATORY_COMPILED" != 0 ] || exit 0; \
	missing=$$($(BIN)/python -m migratory_compiled.compiler) || exit 1; \
	if [ -z "$$missing" ]; then $(MAKE) --no-print-directory compiled; \
	else echo "Protocol and cores run interpreted, not compiled: $$missing"; fi

CORE_SOURCES := $(shell find protocol broker clients/python/migratory_client/core -name '*.py')
$(VENV)/.compiled: hatch_build.py pyproject.toml $(CORE_SOURCES) $(VENV)/.product
	@echo "Compiling protocol and cores (two minutes of CPU time)"
	MIGRATORY_COMPILED=1 $(BIN)/python -m pip install --quiet --no-deps --editable .
	@touch $@

compiled: $(VENV)/.compiled ## compile protocol and cores; after an edit they run interpreted until the next time

# It does not wait for the compiler; after `make install` it runs compiled.
demo: $(VENV)/.product ## three brokers, 2,000 subscribers, one broker killed, an SLA report (options: make demo DEMO='--kill coordinator')
	$(BIN)/migratory demo --html demo.html $(DEMO)

# The real processes of `integration` often wait. `planted` has the cores meanwhile, at the lowest priority and in a session
# of its own, because the kernel shares out cores by session; its output follows at the end. The tests that need the machine
# for themselves follow when it has ended.
test: check unit fuzz-check model compiled-check sim ## everything that can fail, cheapest first
	@log=$$(mktemp); \
	setsid bash -c '{ echo 19 >/proc/self/autogroup; } 2>/dev/null || true; exec nice -n 19 "$$@"' -- \
	    $(MAKE) --no-print-directory planted >"$$log" 2>&1 & planted=$$!; \
	trap 'kill -- "-$$planted" 2>/dev/null && wait "$$planted" || true; cat "$$log"; rm "$$log"' EXIT; \
	trap 'exit 130' INT TERM; \
	$(MAKE) --no-print-directory integration-together && wait "$$planted" && $(MAKE) --no-print-directory integration-alone

check: lint types layers ## style, types and import layers

quick: $(VENV)/.tests layers ## style, import layers, unit tests of protocol and cores: less than a minute
	$(BIN)/ruff check -q .
	$(BIN)/python -m pytest $(COVERED) -q -n $(WORKERS) --dist worksteal

lint: $(VENV)/.tests ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.tests ## mypy --strict, of tests and benchmarks as well
	$(BIN)/mypy

layers: $(VENV)/.tests ## which part may import what
	$(BIN)/lint-imports

# Measured, a test takes two to three times as long. Those that simulate minutes are marked `unmeasured`: they cover nothing
# that others do not.
COVERED := tests/unit/core tests/unit/protocol tests/scenarios tests/conformance
unit: $(VENV)/.tests js ## unit, property, scenario and conformance tests; full branch coverage of protocol and cores
	rm -f .coverage.unit*
	COVERAGE_FILE=.coverage.unit $(BIN)/python -m pytest $(COVERED) -m 'not unmeasured' -n $(WORKERS) --dist worksteal \
	    --cov=migratory_protocol --cov=migratory_broker.core --cov-branch --cov-report=term-missing:skip-covered --cov-fail-under=100
	$(BIN)/python -m pytest $(COVERED) -m unmeasured -n $(WORKERS) --dist worksteal
	$(BIN)/python -m pytest tests/unit tests/properties --ignore tests/unit/core --ignore tests/unit/protocol \
	    --ignore tests/unit/benchmarks -n $(WORKERS) --dist worksteal

# Node.js and npm of PATH where they are new enough, else from PyPI: Debian 12 has Node.js 18.
JS := clients/js
WITH_NODE := PATH=$(abspath $(BIN)):$$PATH
$(VENV)/.node: pyproject.toml $(VENV)/.tests
	@command -v npm >/dev/null && node -e 'process.exit(process.versions.node.split(".")[0] < 20 ? 1 : 0)' 2>/dev/null \
	    || $(BIN)/python -m pip install --quiet --group js
	@touch $@

$(JS)/node_modules/.installed: $(JS)/package-lock.json $(VENV)/.node
	cd $(JS) && $(WITH_NODE) npm ci --silent --ignore-scripts
	@touch $@

js: $(JS)/node_modules/.installed ## the JavaScript client: types, size, unit tests, conformance
	cd $(JS) && $(WITH_NODE) npm run --silent types && $(WITH_NODE) npm test --silent

# The compiled form of what `unit` and `sim` test: the sources stay the reference for everything else. `sim` follows it
# in `test`, and so runs compiled.
compiled-check: debian $(VENV)/.tests ## compile protocol and cores, and run their tests in the compiled form
	@$(MAKE) --no-print-directory compiled
	MIGRATORY_COMPILED=1 $(BIN)/python -m pytest tests/compiled $(COVERED) tests/unit/client tests/unit/runtime tests/properties -m 'not interpreted' -n $(WORKERS) --dist worksteal

fuzz: $(VENV)/.tests ## coverage-guided fuzzers of everything that reads what others wrote (MINUTES=10 for each, TARGET=codec)
	PYTHONPATH=tests/support $(BIN)/python -m migratory_fuzz run --minutes $(or $(MINUTES),10) $(TARGET)

fuzz-check: $(VENV)/.tests ## the fuzzers' kept inputs, and some thousand new ones for each fuzzer
	$(BIN)/python -m pytest tests/fuzz -n $(WORKERS) --dist worksteal

sim: $(VENV)/.tests ## simulated clusters under faults, on all cores, compiled where that is there (SEEDS=1000)
	$(BIN)/python -m pytest tests/simulation -n $(WORKERS) --dist worksteal
	PYTHONPATH=tests/support $(BIN)/python -m migratory_simulation run --seeds $(SEEDS)

planted: $(VENV)/.tests ## small wrong versions of the cores, each of which the simulation must catch
	PYTHONPATH=tests/support $(BIN)/python -m migratory_simulation planted --jobs $(WORKERS)

mutants: $(VENV)/.tests ## a sample of one-token changes of the cores, against unit tests and simulation (SAMPLE=60 of each core)
	PYTHONPATH=tests/support $(BIN)/python -m migratory_mutation --sample $(SAMPLE) --jobs $(WORKERS)

model: debian ## the replication rules explored to exhaustion on small configurations (half a minute; needs g++)
	$(MAKE) --no-print-directory -C tests/model check

holes: debian ## what each replication rule is there for: the model with the rule off, and what is lost then
	$(MAKE) --no-print-directory -C tests/model holes

# Debian packages that the integration tests and benchmarks use; nothing of the product needs them.
DEBIAN_PACKAGES := g++ iproute2 iptables prometheus chromium firefox-esr strace nginx-light $(if $(filter /usr/bin/%,$(shell command -v $(PYTHON))),python3-dev)
debian:
	@missing=$$(for p in $(DEBIAN_PACKAGES); do dpkg -s $$p >/dev/null 2>&1 || echo -n "$$p "; done); \
	if [ -n "$$missing" ]; then \
	  root=""; [ "$$(id -u)" = 0 ] || root=sudo; \
	  command -v apt-get >/dev/null && { [ -z "$$root" ] || command -v sudo >/dev/null; } || { echo "The tests want these Debian packages: $$missing; install them, or expect skips" >&2; exit 0; }; \
	  echo "Installing Debian packages for the tests: $$missing"; \
	  $$root apt-get update -qq && DEBIAN_FRONTEND=noninteractive $$root apt-get install -y -qq --no-install-recommends $$missing >/dev/null; \
	fi

# Most of these tests wait for sessions to expire and processes to start, so one worker more than cores still leaves cores
# idle. A file stays on one worker: its tests share clusters and the Spark session.
REAL := tests/integration tests/chaos --ignore tests/integration/benchmarks
integration: integration-together integration-alone ## real processes: ZooKeeper ensembles, brokers, Spark, the demo

integration-together: $(VENV)/.tests debian $(JS)/node_modules/.installed
	$(BIN)/python -m pytest $(REAL) -m 'not alone' -n $(INTEGRATION_WORKERS) --dist loadfile --durations=30

integration-alone: $(VENV)/.tests debian $(JS)/node_modules/.installed
	$(BIN)/python -m pytest $(REAL) -m alone --durations=10

browser: $(VENV)/.tests debian $(JS)/node_modules/.installed ## the JavaScript client on real brokers, in Node.js, Chromium and Firefox; part of integration
	$(BIN)/python -m pytest tests/integration/browser

chaos: $(VENV)/.tests debian ## a real cluster under real faults, histories checked (MINUTES=2 JSON=FILE SEED=N CHAOS='--mix network')
	PYTHONPATH=tests/support $(BIN)/python -m migratory_chaos run --minutes $(or $(MINUTES),2) $(if $(SEED),--seed $(SEED)) \
	    $(if $(JSON),--json $(abspath $(JSON))) $(CHAOS)

bench: $(VENV)/.tests debian ## the product beside its peers and the raw limit (JSON=FILE PLOTS=DIR BENCH='--only fanout')
	$(BIN)/python -m benchmarks $(if $(JSON),--json $(JSON)) $(if $(PLOTS),--plots $(PLOTS)) $(BENCH)

attack: $(VENV)/.tests debian ## attacks on a broker: latency and lost connections of others, memory (JSON=FILE PLOTS=DIR ATTACK='--rounds 3')
	$(BIN)/python -m benchmarks --only attack $(if $(JSON),--json $(JSON)) $(if $(PLOTS),--plots $(PLOTS)) $(ATTACK)

bench-test: $(VENV)/.tests debian ## tests of the benchmarks; they measure nothing and are not part of `make unit` and `make integration`
	$(BIN)/python -m pytest tests/unit/benchmarks tests/integration/benchmarks --durations=10

nightly: bench-test licences $(VENV)/.compiled ## long runs that are not part of the gate: licences, 100,000 seeds and an hour of chaos (compiled), fuzzers, exhaustive holes of the model, cycles of 10,000 clients
	MIGRATORY_COMPILED=1 PYTHONPATH=tests/support $(BIN)/python -m migratory_simulation run --seeds 100000
	MIGRATORY_COMPILED=1 PYTHONPATH=tests/support $(BIN)/python -m migratory_simulation run --seeds 20000 --profile losses --no-coverage
	MIGRATORY_SLA_SEEDS=200 $(BIN)/python -m pytest -q tests/unit/spark/test_federated_samples.py
	$(MAKE) --no-print-directory truth
	$(MAKE) --no-print-directory holes
	MIGRATORY_CYCLE_CLIENTS=10000 $(BIN)/python -m pytest tests/integration/resources/test_cycles.py
	MIGRATORY_COMPILED=1 $(MAKE) --no-print-directory chaos MINUTES=60
	$(MAKE) --no-print-directory fuzz
	PYTHONPATH=tests/support $(BIN)/python -m migratory_fuzz run cost --inputs 2000000
	$(MAKE) --no-print-directory chaos-k8s MINUTES=60

truth: $(VENV)/.tests debian ## SLA reports of random data sets with known counts, from Parquet and Prometheus (SETS=200 FIRST=1 JSON=FILE RESUME=1)
	PYTHONPATH=tests/support $(BIN)/python -m migratory_truth --sets $(or $(SETS),200) --first $(or $(FIRST),1) $(if $(JSON),--json $(JSON)) $(if $(RESUME),--resume)

bench-peers: $(VENV)/.tests ## get Mosquitto, NATS and Centrifugo into a folder of the user's cache (needs Go, Debian)
	$(BIN)/python -m benchmarks.peers

bench-readme: $(VENV)/.tests ## the README's table from one result of the benchmarks (JSON=FILE)
	$(BIN)/python -m benchmarks.readme $(JSON)

evaluation: $(VENV)/.tests ## the published evaluation's tables from runs on this machine: docs/reference/evaluation.md (JSON=FILE)
	$(BIN)/python -m benchmarks.evaluation $(if $(JSON),--json $(JSON)) $(EVALUATION)

capacity: $(VENV)/.tests ## costs fitted to runs at several sizes, and what larger clusters need: docs/reference/capacity.md (JSON=FILE)
	$(BIN)/python -m benchmarks.capacity $(if $(JSON),--json $(JSON)) $(CAPACITY)

bench-compare: $(VENV)/.tests ## what became worse between two results (OLD=a.json NEW=b.json)
	$(BIN)/python -m benchmarks.compare $(OLD) $(NEW)

$(VENV)/.cluster: pyproject.toml $(VENV)/.tests
	@command -v kubectl >/dev/null || $(BIN)/python -m pip install --quiet --group cluster
	@touch $@

NODE := PYTHONPATH=tests/support $(BIN)/python -m migratory_node
# What the tests' own Kubernetes and the images' builds use of Debian; besides, they need root and a Go compiler.
debian-cluster: $(VENV)/.tests
	@packages="$$($(NODE) missing)" && { [ -z "$$packages" ] || $(MAKE) --no-print-directory debian DEBIAN_PACKAGES="$$packages"; }

cluster: $(VENV)/.cluster debian-cluster ## a Kubernetes for the tests, and its kubeconfig's path (docs/start/kubernetes.md)
	$(NODE) up

cluster-down: $(VENV)/.tests ## end it
	$(NODE) down

cluster-kubeconfig: ## the path of its kubeconfig (make -s)
	@$(NODE) kubeconfig

images: $(VENV)/.cluster debian-cluster ## build the images and bring them into the cluster
	$(NODE) images

cluster-prepare: $(VENV)/.cluster debian-cluster ## build what cluster-test takes longest for, without a cluster (PREPARE=--behind)
	$(NODE) prepare $(PREPARE)

CLUSTER := $(BIN)/python -m pytest tests/cluster --durations=15
CLUSTER_TOGETHER := $(CLUSTER) -n $(INTEGRATION_WORKERS) --dist loadfile
cluster-test: $(VENV)/.cluster debian-cluster ## tests on a Kubernetes with this tree's images: the one that runs, else one is started and ended
	$(NODE) during bash -c '$(CLUSTER_TOGETHER) -m "not alone and not own_operator" && $(CLUSTER_TOGETHER) -m own_operator && $(CLUSTER) -m alone'

chaos-k8s: $(VENV)/.cluster debian-cluster ## a cluster on a Kubernetes under faults, every delivery accounted for (FAULTS=kill,… MINUTES=N SEED=N JSON=FILE)
	PYTHONPATH=tests/support $(if $(MIGRATORY_KUBECONFIG),,$(BIN)/python -m migratory_node during) \
	    $(BIN)/python -m migratory_chaos kubernetes run $(if $(FAULTS),--faults $(FAULTS)) $(if $(MINUTES),--minutes $(MINUTES)) \
	    $(if $(SEED),--seed $(SEED)) $(if $(JSON),--json $(abspath $(JSON))) $(CHAOS)

manifests: $(VENV)/.tests ## write manifests/install from the chart
	PYTHONPATH=tests/support $(BIN)/python -m migratory_node.chart

crds: $(VENV)/.tests ## write manifests/crds from the models
	$(BIN)/python -m migratory_resources.crd manifests/crds charts/migratory/crds

$(VENV)/.supply: pyproject.toml $(VENV)/.tests
	$(BIN)/python -m pip install --quiet --group supply
	@touch $@

locks: $(VENV)/.supply ## write docker/locks: the newest versions within pyproject.toml's ranges, for the images
	PATH=$(abspath $(BIN)):$$PATH docker/lock

sbom: $(VENV)/.supply ## write out/sbom: what each image has of PyPI, with hashes, as CycloneDX in JSON
	@mkdir -p out/sbom
	for image in broker operator spark zookeeper; do \
	    $(BIN)/python -W ignore -m cyclonedx_py requirements docker/locks/$$image.txt --pyproject pyproject.toml --output-reproducible \
	        --output-format JSON --output-file out/sbom/$$image.json || exit 1; \
	done

licences: $(VENV)/.tests ## the licences of the images' libraries against docker/supply.toml
	PYTHONPATH=tests/support $(BIN)/python -m migratory_supply licences

audit: $(VENV)/.tests ## the images' libraries against advisories in OSV's format (ADVISORIES=FILE, a JSON list)
	PYTHONPATH=tests/support $(BIN)/python -m migratory_supply audit $(or $(ADVISORIES),$(error give ADVISORIES=FILE))

bench-sla: $(VENV)/.tests debian ## samples per second of the Prometheus source, time and memory of reports (MILLIONS=1,10,100 DATA=DIR JSON=FILE)
	$(BIN)/python -m benchmarks.sla $(if $(MILLIONS),--millions $(MILLIONS)) $(if $(DATA),--data $(DATA)) $(if $(JSON),--json $(JSON))

clean: ## remove what make and the tests made
	rm -rf $(VENV) $(JS)/node_modules $(JS)/dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage* build dist out
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
