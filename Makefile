# Needs make and Python 3.10 or newer; everything else goes into .venv, once, and again when pyproject.toml or the
# locked versions change.

PYTHON ?= python3
WORKERS ?= 2

VENV ?= .venv
BIN := $(VENV)/bin
MADE := $(VENV)/.made
CORE := $(VENV)/.core
DEV := $(VENV)/.dev

# Exact versions, one file for each Python (`make lock` writes them). Empty: the ranges of pyproject.toml.
SUPPORTED := 3.10 3.11 3.12 3.13
VERSION := $(shell $(or $(wildcard $(BIN)/python),$(PYTHON)) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
CONSTRAINTS ?= $(wildcard constraints/python$(VERSION).txt)
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check $(addprefix --constraint ,$(CONSTRAINTS))

# What the tests touch beside the core. Torch gets one thread per worker, or the workers wait for each other.
RUNTIME_EXTRAS := hf,plot,bench,ray,web
EXTRAS := dev,$(RUNTIME_EXTRAS)
PYTEST := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS)

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-latest test-oldest lint docs bench lock clean
.NOTPARALLEL:

help: ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r name what; do \
		printf '  make %-12s %s\n' "$$name" "$$what"; done

demo: $(CORE) ## explain scenes of the bundled world; the result is in demo/
	$(BIN)/vitreous demo --out demo

test: lint ## lint, then the quick tests
	$(PYTEST)

test-slow: $(DEV) ## the tests that take minutes
	$(PYTEST) -m slow --timeout 3600

test-latest: ## lint and the quick tests with the newest version of every dependency
	rm -rf .venv-latest
	$(MAKE) test VENV=.venv-latest CONSTRAINTS=

# Linters are left out: what they say about the code does not depend on the versions that a user has.
test-oldest: ## the quick tests with the lowest versions that pyproject.toml allows
	rm -rf .venv-oldest
	$(MAKE) .venv-oldest/constraints.txt VENV=.venv-oldest
	$(MAKE) test-only VENV=.venv-oldest CONSTRAINTS=.venv-oldest/constraints.txt

test-only: $(DEV)
	$(PYTEST)

lint: $(DEV) ## the order of the packages, style, types
	$(BIN)/lint-imports
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: $(DEV) ## the manual, into site/
	$(BIN)/mkdocs build --strict

bench: $(CORE) ## what explaining a model costs
	$(BIN)/python benchmarks/overhead.py

lock: | $(MADE) ## write constraints/, the exact versions that make installs, and try them in an empty environment
	$(BIN)/python constraints/lock.py --extras $(EXTRAS) --pythons $(SUPPORTED)

clean: ## remove everything made here, .venv too
	rm -rf .venv .venv-latest .venv-oldest build demo dist site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(MADE):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || \
		{ echo "Vitreous needs Python 3.10 or newer and '$(PYTHON)' is not: try 'make PYTHON=python3.12'." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "'$(PYTHON)' cannot make environments: install its venv module (Debian, Ubuntu: python3-venv)." >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@

# Either stamp is one installation, and the second one brings only what the first left out. The build backend is installed
# first, from the same versions, instead of being fetched into an environment of its own.
define install
	@echo "Installing into $(VENV); the first time this fetches torch and takes minutes."
	@$(if $(CONSTRAINTS),,echo "No locked versions for Python $(VERSION): the newest of every dependency is installed.")
	$(INSTALL) hatchling editables
	$(INSTALL) --no-build-isolation --editable '$(1)'
endef

$(CORE): pyproject.toml $(CONSTRAINTS) | $(MADE)
	$(call install,.)
	@touch $@

$(DEV): pyproject.toml $(CONSTRAINTS) | $(MADE)
	$(call install,.[$(EXTRAS)])
	@touch $(CORE) $@

$(VENV)/constraints.txt: pyproject.toml | $(MADE)
	$(BIN)/python constraints/lock.py --oldest $@ --extras $(RUNTIME_EXTRAS) --pythons $(VERSION)
