# Everything a developer needs. `make demo` and `make test` set up a fresh clone by themselves.
SHELL := /bin/bash
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
export LOCKGATE_DATA_DIR ?= $(CURDIR)/.lockgate

.PHONY: help install demo test lint format bench soak lock clean
help:
	@echo "make demo     watch a text pass the gate, then try the API (Ctrl-C stops it)"
	@echo "make test     lint, type-check and run all tests"
	@echo "make install  only set up .venv"
	@echo "make bench    CPU and memory beside a floor of the same run"
	@echo "make soak     the long runs; SEED=n repeats one, SECONDS=n limits each"
	@echo "make format   format the code;  make lock  renew requirements.lock"

install: $(STAMP)

$(STAMP): pyproject.toml requirements.lock
	@test -n "$(PYTHON)" || { echo "Lockgate needs Python 3.11 or newer with venv (on Debian: apt-get install python3-venv)"; exit 1; }
	@echo "Setting up $(VENV) with $$($(PYTHON) --version); this takes about a minute the first time."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --disable-pip-version-check --require-hashes -r requirements.lock | \
		sed -un 's/^Collecting \([^ ]*\).*/  \1/p'; test $${PIPESTATUS[0]} -eq 0
	@$(BIN)/python -m pip install --disable-pip-version-check -q --no-deps --no-build-isolation -e .
	@$(BIN)/python -m pip check
	@touch $@

demo: $(STAMP)
	@$(BIN)/lockgate demo

test: lint
	$(BIN)/pytest

lint: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(STAMP)
	$(BIN)/python -m benchmarks

soak: $(STAMP)
	$(BIN)/python -m tests.soak $(if $(SEED),--seed $(SEED)) $(if $(SECONDS),--seconds $(SECONDS))

lock: $(STAMP)
	$(BIN)/python -m pip install -q pip-tools
	$(BIN)/pip-compile -q --all-extras --generate-hashes --allow-unsafe --strip-extras --no-emit-index-url \
		--no-emit-trusted-host --no-header --no-annotate -o requirements.lock pyproject.toml

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
