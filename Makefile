# Every target works from a fresh clone with Python 3.11+, make and the package registries; none needs root.
UV_VERSION := 0.13.8
UV := $(shell command -v uv 2>/dev/null || echo .uv/bin/uv)
PY := .venv/bin/python
PYTEST := $(PY) -m pytest --dist loadgroup
WORKERS ?= 3# most end-to-end tests wait for a cluster; five make each slower, and the whole no faster
DEMO := .moorage-demo
CORPUS ?= ../shared/data/argo# Argo's manifests, with what must come out of them

# Bytecode is kept whatever the shell says: without it each of the many processes of the suite compiles its imports.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help setup demo quick affected unit test bytecode explore test-all argo-conformance bench lint types docs pictures site manifests
.DEFAULT_GOAL := help

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

# What uv does is shown, without its lists of packages. The pipe hides its exit code: the file says that it succeeded.
# .ready: all packages; .product: those that users install, which is enough for the demo.
.venv/.product: GROUPS := --no-default-groups --inexact
.venv/.ready .venv/.product: pyproject.toml uv.lock $(wildcard packages/*/pyproject.toml)
	@command -v $(UV) >/dev/null 2>&1 || { echo "setup: fetching uv $(UV_VERSION), which installs packages, into .uv" && \
		python3 -m venv .uv && .uv/bin/pip install -q uv==$(UV_VERSION); }
	@echo "setup: installing the locked packages into .venv; one to four minutes the first time"
	@rm -f $@
	@{ $(UV) sync --frozen --all-packages --compile-bytecode $(GROUPS) 2>&1 && touch $@; } | sed -u '/^ [-+~] /d; /^ *Downloaded /d; s/^ */  /'
	@test -f $@ || { echo "setup: the installation failed; see above" >&2; exit 1; }
	@$(PY) -m compileall -q packages/*/src
	@echo "setup: done; to type moor in this terminal: . .venv/bin/activate"

setup: .venv/.ready ## Make the virtual environment (.venv), fetching uv if it is missing

demo: $(if $(wildcard .venv/.ready),setup,.venv/.product) ## The platform on this machine: runs, a drain half-way, a map, a dataset, a workspace; under 3 minutes
	@.venv/bin/moor demo --folder $(DEMO)

quick: setup ## Lint, types and the unit tests that your change affects, side by side; at most 75 s on two cores
	@$(MAKE) --no-print-directory -j 3 lint types affected

affected: setup ## Unit tests that your change affects; make affected ARGS=--list shows them
	@$(PY) -m moorage_testing.affected -n 2 $(ARGS)

unit: setup ## All unit tests, two at a time
	@$(PYTEST) -n 2 -m "not processes" packages/*/tests/unit

test: setup ## Lint, types and the whole test suite
	@$(MAKE) --no-print-directory -j 2 lint types bytecode
	@$(PYTEST) -n $(WORKERS)

# What cannot be collected, the run shows.
bytecode: setup ## Compile the tests once, which each worker would do
	@$(PYTEST) --collect-only -qq >/dev/null 2>&1 || true

explore: setup ## Property tests, fuzzers and random kills with new draws: what they find becomes a fixed case
	@MOORAGE_TEST_EXPLORE=1 MOORAGE_TEST_FULL=1 $(PYTEST) -n 2 -s -m "not browser" \
		$$(grep -rlE "^from hypothesis|schemathesis|\bseed: int|, seed\)" packages/*/tests --include='*.py')

test-all: setup lint types bytecode ## The whole suite with all examples, on the control plane in KUBEBUILDER_ASSETS too; short benchmarks
	@MOORAGE_TEST_FULL=1 KUBEBUILDER_ASSETS= $(PYTEST) -n $(WORKERS)
	@test -z "$(KUBEBUILDER_ASSETS)" || $(PYTEST) -n $(WORKERS) packages/*/tests/contract packages/*/tests/integration packages/*/tests/e2e/*_any_cluster.py
	@$(PY) benchmarks/cold_start.py
	@$(PY) benchmarks/webhook_reviews.py
	@$(MAKE) --no-print-directory site

argo-conformance: setup ## Run Argo's manifests of CORPUS on a local cluster; what passed, failed and was refused
	@test -f "$(CORPUS)/expected.json" || { echo "no manifests in $(CORPUS): make argo-conformance CORPUS=FOLDER" >&2; exit 2; }
	@$(PY) benchmarks/argo_conformance.py --corpus "$(CORPUS)" $(ARGS)

bench: setup ## Run the benchmarks, or those of ARGS, such as ARGS=cold_start; hours, and a table at the end
	@$(PY) benchmarks $(ARGS)

lint: setup ## Style, formatting, the import rules and plain words
	@.venv/bin/ruff check packages benchmarks examples docs hatch_build.py
	@.venv/bin/ruff format --check packages benchmarks examples docs hatch_build.py
	@for package in packages/*/; do grep -q importlinter $$package/pyproject.toml || continue; \
		(cd $$package && (../../.venv/bin/lint-imports --no-cache >/dev/null || ../../.venv/bin/lint-imports --no-cache)) || exit 1; done
	@$(PY) -m moorage_testing.wording

types: setup ## mypy --strict on src
	@.venv/bin/mypy

docs: setup ## Write the generated pages of docs/reference anew
	@$(PY) -m moorage_testing.reference.pages --write docs/reference

pictures: setup ## Draw the pictures of the README anew from real output; the pages need Chromium
	@$(PY) docs/pictures/make.py

site: setup ## Build docs/ as a site, in site/; broken links fail
	@$(UV) sync --frozen --all-packages --quiet --inexact --group site
	@.venv/bin/zensical build --clean --strict

manifests: setup ## Write deploy/ anew from its one source
	@$(PY) -m moorage.cli.main manifests --write deploy
