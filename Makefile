# make demo, make test: each alone creates .venv, installs what it needs and runs.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint mutants bench clean

demo: .venv/runtime
	$(BIN)/unn demo

test: .venv/development
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -q

lint: .venv/development
	$(BIN)/ruff check .
	$(BIN)/mypy

mutants: .venv/development
	OMP_NUM_THREADS=1 $(BIN)/python tests/mutants.py

bench: .venv/runtime
	$(BIN)/unn bench

.venv/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "unn needs Python 3.11 or later: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv .venv
	touch $@

.venv/runtime: .venv/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable .
	touch $@

.venv/development: .venv/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@ .venv/runtime

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
