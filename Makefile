# Every target builds .venv by itself; nothing but a Python >= 3.11 has to be there.
# One command: make demo

VENV := .venv
BIN := $(VENV)/bin
# What a volunteer needs; and with what tests, lint and benchmarks need beside it.
CLIENT := $(VENV)/client-installed
STAMP := $(VENV)/installed
# An index of torch's builds. On Linux those of PyPI bring gigabytes of CUDA: without a graphics card
# PyTorch's own index has smaller ones. For an AMD card: make install TORCH_INDEX=.../whl/rocm6.4
CARDS := $(wildcard /dev/nvidiactl /dev/kfd /dev/dxg)
TORCH_INDEX ?= $(if $(CARDS)$(filter-out Linux,$(shell uname -s)),,https://download.pytorch.org/whl/cpu)
TORCH := torch>=2.6
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check
DEMO_ARGS ?=
BENCH_ARGS ?=
CHAOS_ARGS ?=
PYTEST_ARGS ?=

# The first interpreter that runs, is new enough and can make virtual environments. A name on PATH
# is no proof: version switchers leave stubs that only print an error.
PROBE := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
CANDIDATES := python3.11 python3.12 python3.13 python3 python

.DEFAULT_GOAL := help
.PHONY: help demo chaos check quick test long seeds lint figures bench install packaging clean

help:
	@echo "make demo     four volunteers train on this machine; one is killed on the way"
	@echo "make chaos    faults on real volunteers on this machine, and what they cost; 11 minutes"
	@echo "make check    lint, the unit tests that are quick, and a short demo; 3 minutes"
	@echo "make test     all tests but those of make long; twelve minutes on two cores"
	@echo "make long     what finds little for its time: whole products of parameters, most"
	@echo "              swarms of real volunteers; an hour, every night"
	@echo "make seeds    2,003 simulated swarms with 200 faults each, and 355 with a liar; 20 minutes"
	@echo "make lint     style, types and imports (no cycle, nothing from above)"
	@echo "make bench    this client beside one process and PyTorch's pipelining on this machine; ten minutes"
	@echo "make figures  the commands of tests/bench/README.md one after the other; an hour or two"
	@echo "make install  only build $(VENV), with the volunteer command in $(BIN)"
	@echo "make packaging the wheel in dist/, with the manual page and shell completions"
	@echo "make clean    remove what the others built"

demo: $(CLIENT)
	$(BIN)/volunteer demo $(DEMO_ARGS)

chaos: $(CLIENT)
	$(BIN)/volunteer chaos $(CHAOS_ARGS)

check: $(STAMP)
	@$(MAKE) --no-print-directory -j2 lint quick

quick: $(STAMP)
	$(BIN)/python -m tests.everything --check

test: $(STAMP)
	$(BIN)/python -m tests.everything $(PYTEST_ARGS)

long: $(STAMP)
	$(BIN)/python -m tests.everything --long

seeds: $(STAMP)
	@status=0; \
	for sweep in "--count 2003" "--count 250 --liar" "--count 45 --lie versions" "--count 60 --lie restarts"; do \
		$(BIN)/python -m client.lab.simulate.chaos --seed 0 $$sweep || status=1; \
	done; \
	exit $$status

lint: $(STAMP)
	@status=0; \
	for check in "ruff check ." "ruff format --check ." mypy lint-imports; do \
		echo "$$check"; $(BIN)/$$check || status=1; \
	done; \
	exit $$status

bench: $(STAMP)
	$(BIN)/python -m tests.bench.rivals $(BENCH_ARGS)

figures: $(STAMP)
	$(BIN)/python -m tests.bench

install: $(CLIENT)
	@echo "the command is $(BIN)/volunteer"

packaging: $(CLIENT)
	$(BIN)/python packaging/generate.py
	rm -rf build
	$(BIN)/python -m pip wheel -q --disable-pip-version-check --no-deps --wheel-dir dist .

$(CLIENT): pyproject.toml
	@set -e; \
	for python in $(CANDIDATES); do \
		if "$$python" -c '$(PROBE)' >/dev/null 2>&1; then found="$$python"; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
		echo "make: no Python >= 3.11 with the venv module found (tried: $(CANDIDATES))." >&2; \
		echo "      Install one, for example: apt install python3 python3-venv" >&2; \
		exit 1; \
	fi; \
	if ! $(BIN)/python -c '$(PROBE)' >/dev/null 2>&1; then "$$found" -m venv --clear $(VENV); fi; \
	if [ -n "$(TORCH_INDEX)" ] && ! $(BIN)/python -c 'import torch' >/dev/null 2>&1; then \
		$(PIP) --no-index --no-deps "$(TORCH)" >/dev/null 2>&1 || \
		$(PIP) --index-url "$(TORCH_INDEX)" --no-deps "$(TORCH)" || \
		echo "make: no torch from $(TORCH_INDEX); pip's own choice may bring CUDA" >&2; \
	fi; \
	$(PIP) -e .
	@touch $@

$(STAMP): $(CLIENT)
	$(PIP) -e ".[dev]"
	@touch $@

clean:
	rm -rf $(VENV) demo-out chaos-out gpu-out build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache \
		.hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
