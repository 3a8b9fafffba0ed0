# One command each; `make` alone lists them. Every target sets up first, which does nothing where nothing changed.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup up demo test test-slow native-test bench gpu-check check fmt proto clean

VENV := $(or $(ROUSE_VENV),.venv)
PY := $(VENV)/bin/python
BIN := $(VENV)/bin
# The Python of an existing environment is kept; `make PYTHON=python3.12 setup` makes it anew with another.
PYTHON ?= $(if $(wildcard $(PY)),$(PY),python3)
SOURCES := libs services tests scripts native/python $(wildcard examples loadtest)
# Arguments for pytest and for the mesh: make test ARGS="tests/unit -k config", make up ARGS="--nodes 2"
ARGS ?=

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## make .venv with everything that Rouse needs
	@$(PYTHON) scripts/setup.py

up: setup ## run the mesh on this machine until Ctrl-C (ARGS="--help" lists the flags)
	@exec $(PY) -m rouse_embedded up $(ARGS)

demo: setup ## deploy and call models that do not fit on the device together, and show what happens
	@exec $(PY) scripts/demo.py $(ARGS)

test: setup ## run every test but the slow ones
	$(PY) -m pytest -m "not slow" $(ARGS)

test-slow: setup ## run the slow tests
	@# Code 5: there was none to run.
	$(PY) -m pytest -m slow $(ARGS) || [ $$? -eq 5 ]

native-test: setup ## build and run the native tests, also under sanitizers (ARGS="-k tsan" for one kind)
	$(PY) -m pytest -m slow tests/native/test_ctest.py $(ARGS)

bench: setup ## measure (SCENARIO=name JSON=path; without a scenario they are listed)
	@PYTHONPATH=$(CURDIR)/loadtest $(PY) -m rouse_loadtest $(SCENARIO) $(if $(JSON),--json $(JSON)) $(ARGS)

gpu-check: setup ## build, and check what runs on this machine's GPU; writes docs/benchmarks/gpu-DATE.md
	@PYTHONPATH=$(CURDIR)/loadtest $(PY) -m rouse_loadtest.gpu_check

check: setup ## check format, lint, types, contracts and the walls between packages
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy libs services scripts native/python
	$(BIN)/mypy loadtest
	$(BIN)/mypy tests
	$(BIN)/buf lint
	$(BIN)/buf format --diff --exit-code --exclude-path proto/inference
	$(PY) -m pytest -q tests/arch

fmt: setup ## format the sources
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix --exit-zero $(SOURCES)
	$(BIN)/buf format --write --exclude-path proto/inference

proto: setup ## generate the contracts' Python code
	$(PY) libs/contracts/generate.py

clean: ## remove the environment, generated code and caches
	rm -rf native/build native/python/rouse_native/bin native/python/rouse_native/*.so
	rm -rf $(VENV) libs/contracts/rouse_contracts/gen .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find libs services tests scripts -name __pycache__ -type d -prune -exec rm -rf {} +
