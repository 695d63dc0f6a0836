# Two commands do everything on a fresh machine: `make demo` and `make test`. Both create .venv themselves.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help demo test lint soak bench results docs clean

help:
	@grep -hE '^## ' $(MAKEFILE_LIST) | sed 's/^## //'

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

## make demo    train on drawn characters, test on unseen ones, and write a report to look at
demo: .venv/ready
	$(BIN)/tuplet demo --out runs/demo

## make test    lint, type-check and test everything (under 10 minutes on 2 cores)
test: lint
	$(BIN)/pytest -n auto

## make lint    ruff (lint and format) and mypy
lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

## make soak    the long tests at their full counts
soak: .venv/ready
	$(BIN)/pytest -n auto --soak

## make bench   the CPU benchmarks; each writes its table into docs/
bench: .venv/ready
	$(BIN)/python benchmarks/losses.py
	$(BIN)/python benchmarks/evaluation.py
	$(BIN)/python benchmarks/data.py

## make results docs/results.md, from the runs in benchmarks/results
results: .venv/ready
	$(BIN)/python benchmarks/results_page.py

## make docs    the API reference, built from the docstrings into site/
docs: .venv/ready
	$(BIN)/python -c 'from pdoc.__main__ import cli; from tuplet import load, train; cli()' \
		--docformat google --template-directory docs/reference --output-directory site tuplet

clean:
	rm -rf .venv site build dist *.egg-info
