# Every target first calls `setup`, which is a no-op while pyproject.toml is older than the environment.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup demo run test check fuzz peers clean help
.DEFAULT_GOAL := help

help:
	@echo "make demo   set everything up, then run a reconnect storm of 100,000 sessions on three nodes; the leader dies in it"
	@echo "make test   set everything up, then run every test"
	@echo "make run    set everything up, then serve on 127.0.0.1:7420 in the foreground"
	@echo "make check  ruff, strict mypy, import-linter"
	@echo "make peers  install etcd from Debian's packages, for metad-perf compare"
	@echo "make fuzz   coverage-guided fuzzing of the frame decoder and the session, 60 s each (FUZZ_SECONDS=60)"

setup: $(STAMP)

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@$(JDK)
	touch $(STAMP)

# Spark runs on Java 17 or newer. Only the simulation needs it, so a machine without one is set up all the same.
JDK = $(BIN)/python -m metad_spark.pipeline.java 2>/dev/null || { \
	[ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	apt-get update --quiet=2 && apt-get install --quiet=2 --yes openjdk-17-jre-headless; } || $(BIN)/python -m metad_spark.pipeline.java || true

demo: setup
	$(BIN)/metad-perf demo

run: setup
	$(BIN)/metad serve --data-dir .data --listen 127.0.0.1:7420

test: setup
	cd tests && ../$(BIN)/python -m pytest

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

FUZZ_SECONDS ?= 60
fuzz: setup
	$(BIN)/python tests/fuzz/fuzz_wire.py frame --seconds $(FUZZ_SECONDS)
	$(BIN)/python tests/fuzz/fuzz_wire.py session --seconds $(FUZZ_SECONDS)

# The Debian package starts a service of its own where there is a service manager; it is not wanted.
peers:
	command -v etcd >/dev/null || { apt-get update && apt-get install -y etcd-server; }
	systemctl disable --now etcd 2>/dev/null || true

clean:
	rm -rf $(VENV) .data build *.egg-info
