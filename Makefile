# Every target makes what it needs: a machine with python3 (3.11 or newer), make and a package index
# is enough. MAILBOAT_TEST_REQUIRE_ALL=1 turns a test that would be skipped into a failure.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test e2e lint format crds bench bench-peer clean

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

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --config pyproject.toml
	$(BIN)/python -m pytest --quiet -p no:cacheprovider tests/unit/test_tidy.py

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The files that are written from code: custom resource definitions, their reference, the operator's
# rights.
crds: $(STAMP)
	$(BIN)/python -m mailboat_operator.crds

bench: $(STAMP)
	$(BIN)/python tests/benchmarks/bench.py

bench-peer: $(STAMP)
	$(BIN)/python tests/benchmarks/bench.py --peer --rows all

clean:
	rm -rf $(VENV) .cache dist build
