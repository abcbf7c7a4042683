# The commands of the project; each does its own set-up in .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: help install demo check test test-slow clean
.DEFAULT_GOAL := help

help:  ## list the commands
	@grep -hE "^[a-z-]+:.*## " $(MAKEFILE_LIST) | sed -E "s/^([a-z-]+):.*## (.*)/  make \1	\2/" | expand -t 20

install: $(INSTALLED)  ## make .venv with the package and the tested versions of what it needs

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11))" || \
	  { echo "Python 3.11 or newer is needed: make install PYTHON=python3.12"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $@

demo: $(INSTALLED)  ## train a small GPT-2 on 4 processes, merge it, let it write (some minutes)
	$(BIN)/python tools/demo.py

check: $(INSTALLED)  ## style, types, house rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest tests/test_architecture.py

test: $(INSTALLED)  ## all tests but the slow ones (some minutes)
	$(BIN)/pytest -m "not slow" --numprocesses 2 --dist loadfile

test-slow: $(INSTALLED)  ## the proofs that take minutes each
	$(BIN)/pytest -m slow

clean:  ## remove .venv and caches; runs stay
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
