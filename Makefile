# Every target sets up what it needs; a second run reinstalls nothing.
# Python 3.11 or later and make are enough to start with: `make demo`, `make test`.

.DEFAULT_GOAL := help
SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
CODE := pilotlight load gateway autoscaler runtime registry benchmarks tests
# The stamp's name carries the content of the locks: other content, another stamp.
LOCKS := requirements.lock requirements-nodeps.lock
STAMP := $(VENV)/.installed-$(shell cat $(LOCKS) | cksum | tr -s ' \t' '-')
PYTEST := $(BIN)/python -m pytest
FLAGS ?=
WORKERS ?= 2

export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false
# Without kept bytecode every process that needs torch and transformers compiles them anew, for 5-10 s.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install demo up test test-slow test-gpu test-kubernetes check format bench bench-runtime bench-gpu bench-simulator bench-peers lock clean

help:  ## What there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-15s %s\n", $$1, $$2 }' Makefile

$(STAMP):
	@scripts/install $@

install: $(STAMP)  ## Set up .venv (every other target does it, too)

demo: $(STAMP)  ## The main job, end to end, under 3 minutes (FLAGS=--full: as long as the thesis)
	@$(BIN)/python -P -m pilotlight demo $(FLAGS)

up: $(STAMP)  ## The platform on this machine until Ctrl-C (FLAGS="--pods 4 -f manifests/samples")
	@$(BIN)/python -P -m pilotlight up $(FLAGS)

test: $(STAMP)  ## The quick tests, in two processes (WORKERS=0: in one)
	@echo "Skipping tests/kubernetes, which needs a cluster: make test-kubernetes"
	$(PYTEST) -m "not slow and not gpu and not kubernetes" -n $(WORKERS) --dist loadfile $(FLAGS)

test-slow: $(STAMP)  ## The tests that start a whole platform or load real models
	$(PYTEST) -m "slow and not gpu" $(FLAGS)

test-gpu: $(STAMP)  ## The tests that need a CUDA device
	$(PYTEST) -m gpu $(FLAGS)

# A KUBECONFIG of the environment does not count: nobody's cluster is tested on by accident.
test-kubernetes: $(STAMP)  ## On a real API server and KServe (KUBECONFIG=FILE: on your cluster)
	@scripts/kubernetes/test $(if $(findstring command,$(origin KUBECONFIG)),--kubeconfig $(KUBECONFIG)) $(FLAGS)

check: $(STAMP)  ## Format, lint, types, direction of imports
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy $(CODE)
	$(BIN)/lint-imports

format: $(STAMP)  ## Format and repair what the linter can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP)  ## The benchmarks, with the facts of this machine
	$(BIN)/python -m benchmarks $(FLAGS)

bench-runtime: $(STAMP)  ## Storage, tiers, eviction and batching against the usual way
	$(BIN)/python -m benchmarks storage tiers eviction batching $(FLAGS)

bench-gpu: $(STAMP)  ## Copies, cold starts and serving on a CUDA device, where there is one
	$(BIN)/python -m benchmarks gpu $(FLAGS)

bench-simulator: $(STAMP)  ## Requests per CPU second of the simulator, compiled where that can be done
	$(BIN)/python -P -m load.compiled benchmarks simulator $(FLAGS)

bench-peers: $(STAMP)  ## Other servers and loaders for the benchmarks, in .venv-peers (about 0.6 GB)
	$(BIN)/python -m benchmarks.peers install

lock: $(STAMP)  ## Write requirements.lock anew from pyproject.toml
	@scripts/lock

clean:  ## Remove .venv and caches (not $$PILOTLIGHT_HOME)
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
