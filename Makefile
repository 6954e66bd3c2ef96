# The commands that developers and CI share. All of them use .venv, which the first of them makes.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
OLDEST := .venv-oldest
PIP := $(BIN)/python -m pip --disable-pip-version-check -q

.PHONY: help demo test test-oldest check format bench validate clean

help:
	@echo "make demo    plan ResNet-50 from the shipped profiles and prices (needs no GPU, no account)"
	@echo "make test    install what the tests need (PyTorch, on the CPU) and run them all"
	@echo "make test-oldest  the tests that need no PyTorch, with the oldest versions allowed"
	@echo "make check   formatting, lint and strict types"
	@echo "make format  put the formatting right"
	@echo "make bench   predicted against measured, and speed"
	@echo "make validate  real runs on shaped links of this machine, predicted beforehand (Linux, root)"

demo: $(VENV)/.plans
	@mkdir -p out
	@echo '$$ srifty plan --sample resnet50 --samples 1281167 --epochs 90 --batch 1024 --within 12h -o out/plan.json'
	@$(BIN)/srifty plan --sample resnet50 --samples 1281167 --epochs 90 --batch 1024 --within 12h -o out/plan.json
	@echo
	@echo "The plan is in out/plan.json. Next: 'srifty plan --help', and the README for a model of your own"
	@echo "(the program is $(BIN)/srifty)."

test: $(VENV)/.tests
	$(BIN)/python -m pytest

# Everything but the profiling, with the oldest versions that pyproject.toml allows.
test-oldest:
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip --disable-pip-version-check -q install -c constraints-oldest.txt -e '.[fit]' pytest hypothesis
	$(OLDEST)/bin/python -m pytest --ignore tests/profiling

check: $(VENV)/.tests
	$(BIN)/ruff format --check src tests tools benchmarks examples
	$(BIN)/ruff check src tests tools benchmarks examples
	$(BIN)/mypy

format: $(VENV)/.tests
	$(BIN)/ruff format src tests tools benchmarks examples
	$(BIN)/ruff check --fix src tests tools benchmarks examples

bench: $(VENV)/.tests
	$(BIN)/python -m benchmarks.accuracy
	$(BIN)/python -m benchmarks.speed
	$(BIN)/python -m benchmarks.speed.overhead

validate: $(VENV)/.tests
	$(BIN)/python -m benchmarks.testbed.validate

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Srifty needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Give another: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.plans: pyproject.toml | $(BIN)/python
	$(PIP) install -e .
	@touch $@

$(VENV)/.tests: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install -c constraints.txt -e '.[test]'
	@touch $@ $(VENV)/.plans

clean:
	rm -rf $(VENV) $(OLDEST) out build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
