# Every target sets itself up: .venv is made and filled on first use, and again when a list of packages changes.
#   make demo PYTHON=python3.12          another interpreter
#   make demo PIP_ARGS="--index-url URL" where the packages come from
PYTHON   ?= python3
VENV     ?= .venv
PIP_ARGS ?=
JOBS     ?= 2
export NO_MKDOCS_2_WARNING := 1
# Containers often forbid .pyc files. Then each worker compiles all tests again, and each command the package.
export PYTHONDONTWRITEBYTECODE :=

BIN   := $(VENV)/bin
STAMP := $(VENV)/.installed
RUN   := $(BIN)/python

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow lint format notebooks notebooks-of-ci site serve clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 12

# pip runs quietly but says how long it took; its errors are shown as they are.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "needs Python >= 3.10, and $(PYTHON) is $$($(PYTHON) -V 2>&1): make PYTHON=python3.11 ..."; exit 1; }
	@test -x $(RUN) || { echo "making $(VENV)"; $(PYTHON) -m venv $(VENV); } || \
	  { rm -rf $(VENV); echo "$(PYTHON) has no venv module (on Debian: apt install python3-venv)"; exit 1; }
	@echo "installing into $(VENV) (the first time downloads gigabytes, for torch brings its CUDA libraries: a few minutes)"
	@start=$$(date +%s); \
	  $(RUN) -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -e '.[dev,site]' -c constraints.txt && \
	  echo "installed in $$(( $$(date +%s) - start )) s"
	@touch $@

demo: $(STAMP)  ## check two GEMMs at every level that needs no GPU; where there is one, run and time them too
	@$(BIN)/cookbook check ampere/ldmatrix_gemm hopper/tma_wgmma_gemm

test: $(STAMP) lint  ## lint and tests; the strict build of the site is one, and a GPU's run where there is one
	@$(RUN) -m pytest -q -n $(JOBS) --dist worksteal -m "not slow"

$(VENV)/.release: $(STAMP)
	@$(RUN) -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -e '.[release]' -c constraints.txt || \
	  echo "tests in a browser, and of wheel and sdist, will be skipped"
	@touch $@

test-slow: $(VENV)/.release  ## the tests that `test` leaves out: every target, variant, planted fault and request to the solver
	@$(RUN) -m pytest -q -n $(JOBS) --dist worksteal -m slow

lint: $(STAMP)  ## ruff, which room imports which (import-linter), types (basedpyright)
	@$(BIN)/ruff check --quiet . && $(BIN)/ruff format --check --quiet . && echo "ruff: clean"
	@$(BIN)/lint-imports --no-logo | tail -n 1
	@$(BIN)/basedpyright --pythonpath $(RUN)

format: $(STAMP)  ## rewrite the code in the one format
	@$(BIN)/ruff check --quiet --fix . ; $(BIN)/ruff format --quiet .

notebooks: $(STAMP)  ## make and execute notebooks/ from recipes/: all, or NAMES="hopper/first_gemm ..."
	@$(RUN) -m tools.publish.pages notebooks $(NAMES)

notebooks-of-ci:  ## take notebooks/ as CI executed them, so that `site` executes only what is other here
	@git fetch --quiet --depth 1 origin notebooks && git archive FETCH_HEAD notebooks | tar -x

site: $(STAMP)  ## execute the pages that changed, and build the website into site/
	@$(RUN) -m tools.publish.pages notebooks --changed
	@$(BIN)/mkdocs build --strict --quiet && echo "site/index.html is ready"

serve: $(STAMP)  ## execute the pages that changed, and serve the website at localhost:8000
	@$(RUN) -m tools.publish.pages notebooks --changed
	@$(BIN)/mkdocs serve

clean:  ## remove what the targets made, .venv too
	rm -rf $(VENV) site build dist .pytest_cache .ruff_cache .hypothesis
