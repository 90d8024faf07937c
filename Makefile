# Everything a developer needs. `make demo` and `make test` set up a fresh clone by themselves.
SHELL := /bin/bash
VERSIONS := 3.11 3.12 3.13 3.14
ifndef PYTHON
# Without PYTHON=... the first suitable Python is used, in `.venv`. A named one has a folder with its version.
IS_SUITABLE := -c 'import ensurepip, sys; sys.exit("%d.%d" % sys.version_info[:2] not in "$(VERSIONS)".split())' 2>/dev/null
PYTHON := $(or $(shell for p in python3 $(VERSIONS:%=python%); do $$p $(IS_SUITABLE) && echo $$p && break; done),python3)
VENV := .venv
else
VENV := .venv-$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
endif
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
export LOCKGATE_DATA_DIR ?= $(CURDIR)/.lockgate

.NOTPARALLEL:
.PHONY: help system system-run system-test install setup demo test test-services test-all test-clean tests lint format bench bench-peers soak walk docs screenshots protos graphs lock clean
help:
	@echo "make demo     a guarded library to talk to, in your browser (Ctrl-C stops it)"
	@echo "make test     lint, type-check and run all tests; PYTHON=python3.13 chooses a Python"
	@echo "make test-all  the same with every Python that is found;  make test-clean  on fresh Debian systems (needs root)"
	@echo "make test-services  clients of OpenAI, LangChain, Vercel and Ollama, llama.cpp, PgBouncer, as they are, around the gateway"
	@echo "make install  only set up .venv;  make setup  also the weight files of the models that run here"
	@echo "make bench    CPU and memory beside a floor of the same run;  make bench-peers  beside LiteLLM"
	@echo "make soak     the long runs; SEED=n repeats one, SECONDS=n limits each"
	@echo "make walk     the way of a request: the functions and files that it visits on four surfaces"
	@echo "make docs     the documentation as a site, in site/"
	@echo "make screenshots  the pictures of the playground anew, in docs/images/"
	@echo "make format   format the code;  make lock  renew requirements.lock"
	@echo "make protos   renew the generated code of lockgate/protos;  make graphs  the ONNX graphs"
	@echo "make clean    remove the virtualenvs and caches; the weights in .lockgate stay"

# What the machine must have. A missing package is named before anything is downloaded.
system:
	@scripts/system.sh "$(PYTHON)"
system-run:
	@scripts/system.sh "$(PYTHON)" run
system-test:
	@scripts/system.sh "$(PYTHON)" test

install: $(STAMP)

$(BIN)/uv:
	@$(MAKE) install

$(STAMP): pyproject.toml requirements.lock | system
	@scripts/install.sh $(PYTHON) $(VENV)
	@touch $@

setup: system-run $(STAMP)
	@$(BIN)/lockgate setup

demo: setup
	@$(BIN)/lockgate demo

test: system-test setup lint tests

# Real clients and servers around the gateway. Their packages have their own folders: .venv-clients-* and node_modules.
test-services: system-test setup
	@tests/services/install.sh $(VENV)
	@echo "Services"
	@$(BIN)/pytest -q tests/services

# One run after the other, with every supported Python that is on the path or in pyenv.
test-all:
	@found=; for version in $(VERSIONS); do \
		for python in python$$version $$HOME/.pyenv/versions/$$version.*/bin/python$$version ""; do \
			test -n "$$python" || { echo "== Python $$version: not found, not tested =="; break; }; \
			$$python -c 'import ensurepip' 2>/dev/null || continue; \
			echo "== $$($$python --version) =="; $(MAKE) test PYTHON=$$python || exit 1; found=yes; break; \
		done; \
	done; test -n "$$found"

# The two commands of the README on fresh Debian systems, in folders. Needs root.
test-clean:
	@tests/clean_machine.sh

# Two processes; the tests of a file stay together.
tests: $(STAMP)
	@echo "Tests"
	@$(BIN)/pytest -q -n 2 --dist loadfile

lint: $(STAMP)
	@echo "Lint and types"
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --check --quiet
	@$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: setup
	$(BIN)/python -m benchmarks

bench-peers: $(STAMP)
	$(BIN)/python -m benchmarks.peers

soak: setup
	$(BIN)/python -m tests.soak $(if $(SEED),--seed $(SEED)) $(if $(SECONDS),--seconds $(SECONDS))

walk: $(STAMP)
	@$(BIN)/python -m tests.surfaces.walk

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

PROTOS := lockgate/protos
protos: $(STAMP)
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. $(PROTOS)/*.proto
	sed -i.bak -e '1i\'$$'\n''# SPDX-License-Identifier: Apache-2.0' \
		-e 's/^from google.protobuf import descriptor_pool .*/from lockgate.protos import POOL as _POOL/' \
		-e 's/_descriptor_pool\.Default()/_POOL/' $(PROTOS)/*_pb2.py $(PROTOS)/*_pb2.pyi
	rm $(PROTOS)/*.bak

# The graphs point into the weight files, so these must be there.
graphs: setup
	$(BIN)/python -m scripts.graphs

# One lock for every supported Python, by environment markers. Versions stay as they are where they can;
# `make lock UPGRADE=--upgrade` takes the newest.
lock: $(BIN)/uv
	$(BIN)/uv pip compile --universal --python-version $(firstword $(VERSIONS)) --all-extras --generate-hashes --no-annotate \
		--no-header --no-emit-index-url -q $(UPGRADE) -o requirements.lock pyproject.toml

clean:
	rm -rf .venv .venv-* tests/services/clients/node_modules build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis site
