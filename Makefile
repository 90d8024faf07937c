# Everything a developer needs. `make demo` and `make test` set up a fresh clone by themselves.
SHELL := /bin/bash
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
export LOCKGATE_DATA_DIR ?= $(CURDIR)/.lockgate

.PHONY: help install setup demo test tests lint format bench bench-peers soak docs screenshots protos lock clean
help:
	@echo "make demo     a guarded library to talk to, in your browser (Ctrl-C stops it)"
	@echo "make test     lint, type-check and run all tests"
	@echo "make install  only set up .venv;  make setup  also the weight files of the models that run here"
	@echo "make bench    CPU and memory beside a floor of the same run;  make bench-peers  beside LiteLLM"
	@echo "make soak     the long runs; SEED=n repeats one, SECONDS=n limits each"
	@echo "make docs     the documentation as a site, in site/"
	@echo "make screenshots  the pictures of the playground anew, in docs/images/"
	@echo "make format   format the code;  make lock  renew requirements.lock"
	@echo "make protos   renew the generated code of lockgate/wire/protos"

install: $(STAMP)

$(STAMP): pyproject.toml requirements.lock
	@test -n "$(PYTHON)" || { echo "Lockgate needs Python 3.11 or newer with venv (on Debian: apt-get install python3-venv)"; exit 1; }
	@echo "Setting up $(VENV) with $$($(PYTHON) --version); this takes two to four minutes the first time, the second half of it in silence."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --disable-pip-version-check --require-hashes -r requirements.lock | \
		sed -un 's/^Collecting \([^ ]*\).*/  \1/p'; test $${PIPESTATUS[0]} -eq 0
	@$(BIN)/python -m pip install --disable-pip-version-check -q --no-deps --no-build-isolation -e .
	@$(BIN)/python -m pip check
	@touch $@

setup: $(STAMP)
	@$(BIN)/lockgate setup

demo: setup
	@$(BIN)/lockgate demo

test: setup lint tests

# Two processes; the tests of a file stay together.
tests: $(STAMP)
	$(BIN)/pytest -n 2 --dist loadfile

lint: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: setup
	$(BIN)/python -m benchmarks

bench-peers: $(STAMP)
	$(BIN)/python -m benchmarks.peers

soak: setup
	$(BIN)/python -m tests.soak $(if $(SEED),--seed $(SEED)) $(if $(SECONDS),--seconds $(SECONDS))

docs: $(STAMP)
	@$(BIN)/mkdocs build --strict
	@echo "Built: open site/index.html"

# The browser tests take a picture of every state; these are the ones that the documentation shows.
PICTURES := playground playground-masked playground-dark playground-phone playground-detect playground-raw
screenshots: setup
	$(BIN)/pytest tests/browser/test_demo.py
	@mkdir -p docs/images
	@cp $(PICTURES:%=artifacts/screenshots/%.png) docs/images/
	@ls -l $(PICTURES:%=docs/images/%.png)

PROTOS := lockgate/wire/protos
protos: $(STAMP)
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. $(PROTOS)/*.proto
	sed -i.bak -e '1i\'$$'\n''# SPDX-License-Identifier: Apache-2.0' \
		-e 's/^from google.protobuf import descriptor_pool .*/from lockgate.wire.protos import POOL as _POOL/' \
		-e 's/_descriptor_pool\.Default()/_POOL/' $(PROTOS)/*_pb2.py $(PROTOS)/*_pb2.pyi
	rm $(PROTOS)/*.bak

lock: $(STAMP)
	$(BIN)/python -m pip install -q pip-tools
	$(BIN)/pip-compile -q --all-extras --generate-hashes --allow-unsafe --strip-extras --no-emit-index-url \
		--no-emit-trusted-host --no-header --no-annotate -o requirements.lock pyproject.toml

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis site
