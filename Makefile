# `demo` and `run` set up what a server and the demo need; the other targets set up the rest, too. Setting up is a no-op
# while each pyproject.toml and constraints.txt are older than the environment.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SMALL := $(VENV)/.installed-small
MQTT := $(VENV)/.installed-mqtt
TESTS := $(VENV)/.installed-test
FUZZ := $(VENV)/.installed-fuzz
DOCS := $(VENV)/.installed-docs
CONSOLE := $(VENV)/.installed-console
ALL := $(VENV)/.installed-dev
VERSIONS := pyproject.toml clients/pyproject.toml clients/metad_amqtt/pyproject.toml constraints.txt

.PHONY: setup demo mqtt log-broker run test test-core test-spark test-fuzz test-long console-test import-test test-fast test-touched check docs soak fuzz peers prometheus clean help
.DEFAULT_GOAL := help

help:
	@echo "make demo       run a reconnect storm of 100,000 sessions on three nodes, in which the leader dies; writes storm.html"
	@echo "make mqtt       real MQTT clients on two brokers and three nodes; a broker and a leader are killed"
	@echo "make log-broker a replicated log whose partitions metad assigns, under faults: nothing acknowledged may be lost"
	@echo "make run        serve on 127.0.0.1:7420 in the foreground"
	@echo "make test       run the tests of test-core, test-spark, test-fuzz and, with Chromium, console-test"
	@echo "make test-core  run every test but those of Spark, the fuzzing and the console; they need 480 MB"
	@echo "make test-spark run the tests of the simulation on Spark and of the source of Spark"
	@echo "make test-long  run the tests that play for long, which no other target runs"
	@echo "make test-fuzz  fuzz the frame decoder and the session, four seconds each (METAD_FUZZ_SECONDS=4)"
	@echo "make console-test  drive the console with a real Chromium, which Debian's packages install (METAD_SCREENSHOTS=DIR,"
	@echo "                   METAD_CONSOLE_SESSIONS=10000000, METAD_CONSOLE_GROUPS=1000: a measurement then)"
	@echo "make import-test  import from a real etcd and a real ZooKeeper, which Debian's packages install"
	@echo "make test-fast  run the quick tests of pure code, golden bytes and contracts"
	@echo "make test-touched  run the tests nearest to what git diff shows, for 20 seconds (SINCE=COMMIT)"
	@echo "make check      ruff, strict mypy, import-linter"
	@echo "make docs       build the documentation site from the pages, without a network: .docs/site/README.html"
	@echo "make soak       fresh seeds of whole simulated clusters for an hour (SOAK_MINUTES=60); prints how to play again what breaks"
	@echo "make peers      install etcd and ZooKeeper from Debian's packages, for metad-perf compare"
	@echo "make prometheus  install Prometheus from Debian's package, for metad-perf lamps"
	@echo "make fuzz       coverage-guided fuzzing of the frame decoder and the session, 60 s each (FUZZ_SECONDS=60)"
	@echo "make setup      set up everything that the tests need, with Java for the simulation if that is possible"
	@echo "Each of them first sets up what it needs in .venv: some 240 MB for demo and run, 260 MB for mqtt, 480 MB for test-core, 1.8 GB for test."

setup: $(ALL)
	@$(PROMETHEUS)

# Alerts are played on a real one. Where it cannot be installed, these tests are left out, and that is said.
PROMETHEUS = command -v prometheus >/dev/null || { \
	[ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	apt-get update --quiet=2 && apt-get install --quiet=2 --yes --no-install-recommends prometheus; } >/dev/null 2>&1 || true

$(SMALL): $(VERSIONS)
	@$(PYTHON) .ci/install.py $(VENV) quic,perf
	@touch $@

$(MQTT): $(VERSIONS)
	@$(PYTHON) .ci/install.py $(VENV) quic,perf,amqtt
	@touch $(SMALL) $@

$(TESTS): $(VERSIONS)
	@$(PYTHON) .ci/install.py $(VENV) test
	@touch $(SMALL) $(MQTT) $(DOCS) $@

$(FUZZ): $(VERSIONS)
	@$(PYTHON) .ci/install.py $(VENV) fuzz
	@touch $(SMALL) $(MQTT) $(DOCS) $(TESTS) $@

$(CONSOLE): $(VERSIONS)
	@$(PYTHON) .ci/install.py $(VENV) console-test
	@touch $(SMALL) $(MQTT) $(DOCS) $(TESTS) $@

$(DOCS): $(VERSIONS)
	@$(PYTHON) .ci/install.py $(VENV) docs
	@touch $@

$(ALL): $(VERSIONS)
	@$(PYTHON) .ci/install.py $(VENV) dev
	@$(JDK)
	@$(COMPILED)
	@$(DELTA)
	@touch $(SMALL) $(MQTT) $(TESTS) $(FUZZ) $(DOCS) $(CONSOLE) $@

# Spark runs on Java 17 or newer. Only the simulation needs it, so a machine without one is set up all the same.
JDK = $(BIN)/python -m metad_spark.pipeline.java 2>/dev/null || { \
	[ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	apt-get update --quiet=2 && apt-get install --quiet=2 --yes openjdk-17-jre-headless; } || $(BIN)/python -m metad_spark.pipeline.java || true

# A storm has numba compile the model, which takes seconds, and keep it beside the source: else each of the processes that
# run tests compiles it.
COMPILED = $(BIN)/metad-spark simulate --model vector --clients 100000 >/dev/null || true

# DEMO='--sessions 1e6': see `metad-perf demo --help`.
demo: $(SMALL)
	@$(BIN)/metad-perf demo $(DEMO)

# mosquitto's clients take part in it. Where they cannot be installed, their steps are left out, and that is said.
MOSQUITTO = command -v mosquitto_sub >/dev/null || { \
	[ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	apt-get update --quiet=2 && apt-get install --quiet=2 --yes mosquitto-clients; } >/dev/null 2>&1 || true

mqtt: $(MQTT)
	@$(MOSQUITTO)
	@$(BIN)/metad-perf mqtt

# LOG_BROKER='--seconds 600 --seed 7': see `metad-perf log-broker --help`.
log-broker: $(SMALL)
	@$(BIN)/metad-perf log-broker $(LOG_BROKER)

run: $(SMALL)
	$(BIN)/metad serve --data-dir .data --listen 127.0.0.1:7420

# The jars of Delta Lake, from Maven Central; where that is not reached, its test is left out, and that is said.
DELTA = $(BIN)/python tests/spark/delta_jars.py >/dev/null 2>&1 || true

# Several processes run the tests, and where one of them crashes the run ends; tests that measure run after the others. Tests
# start hundreds of programs, so bytecode is kept even where the environment says otherwise.
SIDE_BY_SIDE := -n auto --max-worker-restart=0
PYTEST := cd tests && ../$(BIN)/python -m pytest
# What fails is run once more with nothing beside it, and both runs are shown. Tests of real processes share the machine with
# hundreds of others, which now and then makes one late; a fault fails again. Exit code 1 of pytest: tests have failed.
ONCE_MORE = || { [ $$? -eq 1 ] && echo "=== These failed. Once more, with nothing beside them: ===" && \
	../$(BIN)/python -m pytest --last-failed$(1); }
# What needs the packages of Spark, the fuzzer, or the console and a browser.
APART := spark unit/spark fuzz console
test test-core test-spark test-fuzz test-long console-test import-test test-fast test-touched: export PYTHONDONTWRITEBYTECODE :=
test: setup
	$(PYTEST) $(SIDE_BY_SIDE) -m 'not alone and not long' $(call ONCE_MORE)
	$(PYTEST) -m 'alone and not long' e2e $(call ONCE_MORE)

test-core: $(TESTS)
	$(PYTEST) $(SIDE_BY_SIDE) -m 'not alone and not long' $(APART:%=--ignore=%) $(call ONCE_MORE,$(APART:%= --ignore=%))
	$(PYTEST) -m 'alone and not long' e2e $(call ONCE_MORE,$(APART:%= --ignore=%))

# Storms and soaks, for the nights: a shorter test of the same code is in the other targets.
test-long: setup
	$(PYTEST) $(SIDE_BY_SIDE) -m long $(call ONCE_MORE)

test-spark: setup
	$(PYTEST) $(SIDE_BY_SIDE) -m 'not long' spark unit/spark

test-fuzz: $(FUZZ)
	$(PYTEST) -m 'not long' fuzz

# Without a browser `make test` skips these tests, and says so; here that is an error.
BROWSER = { command -v chromium && command -v chromedriver; } >/dev/null || { \
	[ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update --quiet=2 && \
	apt-get install --quiet=2 --yes --no-install-recommends chromium chromium-driver >/dev/null; } || { \
	echo "make console-test needs Chromium: install the packages chromium and chromium-driver" >&2; exit 1; }

console-test: export METAD_REQUIRE_BROWSER := 1
console-test: $(CONSOLE)
	@$(BROWSER)
	$(PYTEST) -rP -m 'not long' console $(call ONCE_MORE, console)

# Without the two `make test` skips these tests, and says so; here that is an error.
IMPORTS := e2e/test_import_etcd.py e2e/test_import_zookeeper.py
import-test: export METAD_REQUIRE_PEERS := 1
import-test: $(TESTS) peers
	$(PYTEST) -rP -m 'not long' $(IMPORTS) $(call ONCE_MORE, $(IMPORTS))

test-fast: $(TESTS)
	$(PYTEST) -q $(SIDE_BY_SIDE) -m 'not slow and not alone and not long' --ignore=unit/spark golden contract unit

SINCE ?= HEAD
test-touched: $(TESTS)
	cd tests && ../$(BIN)/python touched.py --since $(SINCE)

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(DOCS)
	@$(BIN)/python docs/site.py

# Numbers that nobody has run before, of three and of five nodes in turn; for the nights.
SOAK_MINUTES ?= 60
SOAK_PROCESSES ?= $(shell nproc)
soak: setup
	nice $(BIN)/python tests/simulate.py --minutes $(SOAK_MINUTES) --processes $(SOAK_PROCESSES)

FUZZ_SECONDS ?= 60
fuzz: $(FUZZ)
	$(BIN)/python tests/fuzz/fuzz_wire.py frame --seconds $(FUZZ_SECONDS)
	$(BIN)/python tests/fuzz/fuzz_wire.py session --seconds $(FUZZ_SECONDS)

# The Debian packages start services of their own where there is a service manager; they are not wanted.
PEERS := etcd-server zookeeper openjdk-17-jre-headless
peers:
	dpkg -s $(PEERS) >/dev/null 2>&1 || { apt-get update && apt-get install -y --no-install-recommends $(PEERS); }
	systemctl disable --now etcd zookeeper 2>/dev/null || true

# Debian's package starts a service where there is a service manager; it is not wanted.
prometheus:
	@$(PROMETHEUS)
	systemctl disable --now prometheus 2>/dev/null || true

clean:
	rm -rf $(VENV) .data .docs build *.egg-info
