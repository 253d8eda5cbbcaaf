PYTHON ?= python3
VENV ?= .venv
ARGS ?=

# A path may have spaces in it: quoted in a recipe, escaped as a target.
EMPTY :=
ESCAPED_VENV := $(subst $(EMPTY) $(EMPTY),\ ,$(VENV))

BIN := "$(VENV)/bin"
PIP_INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt

# A stamp says which set of packages the environment holds; dev holds all that run needs.
VENV_STAMP := $(ESCAPED_VENV)/.stamp-venv
RUN_STAMP := $(ESCAPED_VENV)/.stamp-run
DEV_STAMP := $(ESCAPED_VENV)/.stamp-dev

APT_INSTALL := DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends
SIDE_BY_SIDE := --numprocesses 4 --dist loadscope
# The tests use Schemathesis without its plugin, which takes a second to load in each worker.
PYTEST := $(BIN)/python -m pytest -p no:schemathesis

# Else each worker would compile pytest's plugins and all tests again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help run test quick check browser format bench docs clean

help: ## show this list
	@echo "Tupelo: make <target>"
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  %-8s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo '  ARGS="-k name"     pass arguments to pytest (test, quick) or to the benchmarks (bench)'
	@echo '  PYTHON=python3.12  the interpreter to build the environment with'
	@echo '  VENV=.venv-3.12    where the environment lives'

run: $(RUN_STAMP) ## see the product: a host with its console, crashes, hosts that meet, Spark
	@$(BIN)/tupelo tour

test: $(DEV_STAMP) browser ## check, and meanwhile run the tests side by side
	@$(MAKE) --no-print-directory check & check=$$!; \
		$(PYTEST) $(SIDE_BY_SIDE) $(ARGS); tested=$$?; \
		wait $$check || { echo "make check failed: its messages are above." >&2; exit 1; }; \
		exit $$tested

quick: $(DEV_STAMP) ## run the tests only
	@$(PYTEST) $(ARGS)

check: $(DEV_STAMP) ## lint, formatting, types and layers
	@echo "ruff check";  $(BIN)/ruff check --quiet .
	@echo "ruff format"; $(BIN)/ruff format --quiet --check . || \
		{ echo "Some files are not formatted: run make format." >&2; exit 1; }
	@echo "mypy";        $(BIN)/mypy --no-error-summary
	@echo "lint-imports"; report=$$($(BIN)/lint-imports --no-logo 2>&1) || { echo "$$report" >&2; exit 1; }

browser: # the tests of the console use the system's Chromium
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || \
		{ test "$$(id -u)" = 0 && command -v apt-get >/dev/null && echo "Installing Chromium" && \
		{ $(APT_INSTALL) chromium || { apt-get update -qq && $(APT_INSTALL) chromium; } } >/dev/null 2>&1; } || \
		echo "No Chromium here: the tests of the console's page are skipped."

format: $(DEV_STAMP) ## format the code and fix what can be fixed safely
	@$(BIN)/ruff check --quiet --fix-only .
	@$(BIN)/ruff format .

bench: $(DEV_STAMP) ## run the benchmarks
	@$(BIN)/python -m benchmarks $(ARGS)

docs: $(DEV_STAMP) ## build the site into build/site
	@$(BIN)/mkdocs build --quiet --strict
	@echo "build/site/index.html"

clean: ## remove the environment, caches and build results
	@if [ -e "$(VENV)/.stamp-venv" ]; then rm -rf "$(VENV)"; fi
	@rm -rf build dist src/*.egg-info benchmarks/out
	@rm -rf .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	@find src tests benchmarks -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

$(VENV_STAMP):
	@version=$$("$(PYTHON)" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || \
		{ echo "Cannot run $(PYTHON). Name a Python 3.11 or newer: make PYTHON=/path/to/python3" >&2; exit 1; }; \
	"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Tupelo needs Python 3.11 or newer; $(PYTHON) is $$version. Name another: make PYTHON=python3.12" >&2; exit 1; }; \
	echo "Creating $(VENV) with Python $$version"
	@"$(PYTHON)" -m venv "$(VENV)"
	@touch "$@"

$(RUN_STAMP): pyproject.toml constraints.txt | $(VENV_STAMP)
	@echo "Installing Tupelo into $(VENV)"
	@$(PIP_INSTALL) -e ".[cli,hosts,console,pipeline,patterns$$(command -v java >/dev/null || echo ,java)]"
	@touch "$@"

$(DEV_STAMP): pyproject.toml constraints.txt | $(VENV_STAMP)
	@echo "Installing Tupelo and its development tools into $(VENV)"
	@$(PIP_INSTALL) -e '.[dev]'
	@touch "$(VENV)/.stamp-run" "$@"
