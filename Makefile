# The commands of this repository. `make help` lists them.
#
# Everything is installed into .venv from the lock files in requirements/, with plain pip and Python 3.11.

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
CONFIG ?= serve_config.yaml

# PyTorch's CPU build. PyPI's build of the same version brings gigabytes of CUDA libraries.
TORCH := torch==2.13.0+cpu
TORCH_INDEX := https://download.pytorch.org/whl/cpu
# Where `make lock` reads that build's metadata: a page of links or a folder with the wheel.
TORCH_WHEELS ?= $(TORCH_INDEX)/torch/

INSTALLED := $(VENV)/.installed
LOCKS := requirements/cpu.txt requirements/model.txt
# As a wheel, urllib3-future (of grafana-client) would put itself in urllib3's place for every other package.
PIP_INSTALL := URLLIB3_NO_OVERRIDE=1 $(BIN)/python -m pip install --no-deps --disable-pip-version-check --no-binary urllib3-future
# Debian packages that the integration tests run: a Prometheus, a browser with a font.
TEST_TOOLS := prometheus chromium fonts-dejavu-core

.DEFAULT_GOAL := help
.PHONY: help serve model test test-unit test-integration test-tools check lock clean

help: ## list the commands
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 26

serve: model ## install, prepare the model, serve on http://127.0.0.1:8000
	@$(BIN)/kvpulse check --quiet $(CONFIG)
	$(BIN)/serve run $(CONFIG)

model: $(INSTALLED)
	@$(BIN)/python -m deployments.model_store

test: test-tools test-unit test-integration ## all tests

test-unit: $(INSTALLED) ## tests without Ray clusters and engines
	$(BIN)/python -m pytest tests/unit

test-integration: model test-tools ## tests against real Ray Serve and real vLLM engines
	$(BIN)/python -m pytest tests/integration

test-tools: ## install Prometheus and Chromium from Debian's packages, where that is possible
	@if command -v prometheus >/dev/null && command -v chromium >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get; then apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(TEST_TOOLS); \
	else echo "Tests with a real Prometheus and a real browser are skipped: install $(TEST_TOOLS)"; fi >&2

check: $(INSTALLED) ## lint, format, types, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

lock: ## compile requirements/cpu.txt anew (needs uv)
	@command -v uv >/dev/null || { echo "make lock needs uv: pip install uv"; exit 1; }
	uv pip compile pyproject.toml --extra cpu --extra loadtest --extra baselines --extra dev \
	  --override requirements/excluded.txt --find-links $(TORCH_WHEELS) --python-version 3.11 \
	  --generate-hashes --no-emit-package torch --no-header --quiet --output-file requirements/cpu.txt

clean: ## remove the environment and what tools left behind; the prepared model stays in ~/.cache/kvpulse
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): $(LOCKS) pyproject.toml
	@command -v $(PYTHON) >/dev/null || { \
	  echo "KVPulse needs Python 3.11 and finds no $(PYTHON); install it, or name it: make PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { \
	  echo "KVPulse's lock files are for Python 3.11 and $(PYTHON) is $$($(PYTHON) --version); name another: make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "Installing into $(VENV); the first time takes a few minutes."
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) --retries 0 --extra-index-url $(TORCH_INDEX) $(TORCH)
	$(PIP_INSTALL) $(addprefix -r ,$(LOCKS))
	$(PIP_INSTALL) --no-build-isolation --editable .
	@touch $@
