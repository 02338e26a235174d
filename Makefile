# Needs make and Python 3.10 or newer; everything else goes into .venv, once, and again when pyproject.toml changes.

PYTHON ?= python3
WORKERS ?= 2

VENV := .venv
BIN := $(VENV)/bin
MADE := $(VENV)/.made
CORE := $(VENV)/.core
DEV := $(VENV)/.dev

# What the tests touch beside the core. Torch gets one thread per worker, or the workers wait for each other.
EXTRAS := dev,hf,plot,bench,ray,web
PYTEST := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS)

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow lint docs bench clean
.NOTPARALLEL:

help: ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r name what; do \
		printf '  make %-10s %s\n' "$$name" "$$what"; done

demo: $(CORE) ## explain scenes of the bundled world; the result is in demo/
	$(BIN)/vitreous demo --out demo

test: lint ## lint, then the quick tests
	$(PYTEST)

test-slow: $(DEV) ## the tests that take minutes
	$(PYTEST) -m slow

lint: $(DEV) ## the order of the rooms, style, types
	$(BIN)/lint-imports
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: $(DEV) ## the manual, into site/
	$(BIN)/mkdocs build --strict

bench: $(CORE) ## what watching a model costs
	$(BIN)/python benchmarks/overhead.py

clean: ## remove everything made here, .venv too
	rm -rf $(VENV) build demo dist site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(MADE):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || \
		{ echo "Vitreous needs Python 3.10 or newer and '$(PYTHON)' is not: try 'make PYTHON=python3.12'." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "'$(PYTHON)' cannot make environments: install its venv module (Debian, Ubuntu: python3-venv)." >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@

# Either stamp is one installation, and the second one brings only what the first left out.
$(CORE): pyproject.toml | $(MADE)
	@echo "Installing into $(VENV); the first time this fetches torch and takes minutes."
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(DEV): pyproject.toml | $(MADE)
	@echo "Installing into $(VENV); the first time this fetches torch and takes minutes."
	$(BIN)/python -m pip install --quiet --editable '.[$(EXTRAS)]'
	@touch $(CORE) $@
