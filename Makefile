# On a fresh machine run `make demo` or `make test`: both create .venv first.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help demo test test-oldest lint soak bench results docs clean

help:
	@grep -hE '^## ' $(MAKEFILE_LIST) | sed 's/^## //'

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

## make demo    train on drawn characters, test on unseen ones and write a report
demo: .venv/ready
	$(BIN)/tuplet demo --out runs/demo

## make test    lint, type-check and test everything (under 10 minutes on 2 cores)
test: lint
	$(BIN)/pytest -n auto

## make test-oldest  run the tests with the oldest versions that pyproject.toml allows
test-oldest: .venv-oldest/ready
	.venv-oldest/bin/pytest -n auto tests

.venv-oldest/ready: pyproject.toml constraints-oldest.txt
	$(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/pip install --quiet --disable-pip-version-check -c constraints-oldest.txt -e '.[dev]'
	@touch $@

## make lint    run ruff (lint and format) and mypy
lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

## make soak    run the long tests at their full counts
soak: .venv/ready
	$(BIN)/pytest -n auto --soak

## make bench   run the CPU benchmarks and write their tables into docs/
bench: .venv/ready
	$(BIN)/python benchmarks/losses.py
	$(BIN)/python benchmarks/evaluation.py
	$(BIN)/python benchmarks/data.py

## make results write docs/results*.md from benchmarks/results
results: .venv/ready
	$(BIN)/python benchmarks/results_page.py

## make docs    build the documentation into site/; a broken link is an error
docs: .venv/ready
	$(BIN)/mkdocs build --strict

clean:
	rm -rf .venv .venv-oldest site build dist *.egg-info
