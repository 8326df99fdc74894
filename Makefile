# make demo, make test: each alone creates .venv, installs what it needs and runs.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-slow test-lowest coverage lint docs package mutants bench clean

demo: .venv/runtime
	$(BIN)/unn demo

test: .venv/development
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -q

test-slow: .venv/development
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -q -m slow

# with the oldest versions of all dependencies that pyproject.toml allows
test-lowest: .venv-lowest/ready
	OMP_NUM_THREADS=1 .venv-lowest/bin/python -m pytest -n 2 -q

# both together, and how much of the package the fast ones run
coverage: .venv/development
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -q -m "not package" --cov --cov-report=term:skip-covered

lint: .venv/development
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: .venv/development
	$(BIN)/python -m sphinx -W --keep-going -q -j 2 -b html docs docs/_build/html

package: .venv/development
	$(BIN)/python -m pytest -q -m package tests/packaging

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

.venv-lowest/ready: pyproject.toml constraints-lowest.txt
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints-lowest.txt --editable '.[testing]' \
	    pytest-xdist networkx entmax conllu diffusers
	touch $@

clean:
	rm -rf .venv .venv-lowest build dist docs/_build .coverage *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
