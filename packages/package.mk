# Targets of one package: `make -C packages/kube test`.
VENV := $(abspath $(dir $(lastword $(MAKEFILE_LIST)))/../.venv)
WORKERS ?= 2

.PHONY: setup test lint types
test: setup ## Its tests alone
	@PYTHONDONTWRITEBYTECODE= $(VENV)/bin/python -m pytest -n $(WORKERS) --dist loadgroup

setup:
	@$(MAKE) --no-print-directory -C $(VENV)/.. setup

lint: setup ## Its style and its import rules
	@$(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check . && $(VENV)/bin/lint-imports --no-cache

types: setup ## mypy --strict on its src
	@$(VENV)/bin/mypy --config-file ../../pyproject.toml src
