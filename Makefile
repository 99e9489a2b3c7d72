# Every target sets up .venv by itself when that is needed; `make help` lists them.

VENV := .venv
STAMP := $(VENV)/.installed
PY := $(VENV)/bin/python
PYTHON ?= $(shell for p in python3.11 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null && echo $$p && break; done)
SOURCES := lzero_async zoo tests benchmarks requirements setup.py

.DEFAULT_GOAL := help
.PHONY: help train test check lint types bench soak lock clean

help: ## show this list
	@grep -E '^[a-z]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | expand -t 10

train: ## train PriorZero on the embedded default (not in this version yet)
	@echo "The PriorZero trainer is not part of this version yet; make check, then see the schedules run:"
	@echo "  $(PY) zoo/jericho/priorzero/test_async_training.py"
	@exit 2

test: $(STAMP) ## all tests (about 5 minutes)
	$(PY) -m pytest
	$(VENV)/bin/frontrun $(PY) -m pytest tests/test_frontrun.py

check: lint types ## lint, types and the fast tests
	$(PY) -m pytest -m 'not slow and not soak'

lint: $(STAMP) ## ruff
	$(PY) -m ruff check $(SOURCES)
	$(PY) -m ruff format --check $(SOURCES)

types: $(STAMP) ## mypy, strict on the library
	$(PY) -m mypy

bench: $(STAMP) ## the measured bars, as a table and as benchmarks/results/core.json (about 6 minutes)
	$(PY) -m benchmarks.core

soak: $(STAMP) ## long random runs: a million steps of the state machine, the deep walk (about 10 minutes)
	$(PY) -m pytest -m soak -p no:cacheprovider

lock: $(STAMP) ## resolve requirements/*.in into the locks again (UPGRADE=1: let the pins move)
	$(PY) requirements/lock.py $(if $(UPGRADE),--upgrade)

clean: ## remove the environment and everything that was built
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find $(wildcard lzero_async zoo tests benchmarks) -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): requirements/stack.lock.txt requirements/dev.lock.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 is needed for the locked stack (LightZero has no wheels for 3.12 and newer); \
	install it, or say where it is: make PYTHON=/path/to/python3.11"; exit 2; }
	@$(PY) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@$(PY) requirements/install.py $(STAMP)
