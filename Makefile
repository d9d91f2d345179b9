# `make demo` and `make test` set everything up. They leave .venv and .cache behind, nothing else.
#
#   PYTHON=python3.12         interpreter to use (default: the first of 3.11, 3.12 that works)
#   VENV=/some/where          folder of the virtual environment
#   PROMPT="..."              the question that `make demo` asks
#   TARGET=kunlun             chip that `make demo` compiles for; kunlun runs on the emulator
#   TORCH_INDEX=https://download.pytorch.org/whl/cpu    where to look for a smaller torch, if anywhere

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

VENV ?= .venv
BIN := $(VENV)/bin
PROMPT ?= What is the capital of France?
TARGET ?= cpu
MODEL := .cache/smollm2$(if $(filter-out cpu,$(TARGET)),-$(subst :,-,$(TARGET))).sglk
DEVICE := $(if $(filter kunlun%,$(TARGET)),--device emulator)
OVERLAY := .cache/overlay
TORCH := $(shell sed -n 's/^torch==/torch==/p' constraints.txt)
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
SOURCES := $(shell find frontend ir passes targets driver.py cli/compile.py \
	-name '*.py' -o -name '*.h' -o -name '*.cpp')

.PHONY: help demo test lint format types clean

help:
	@echo "make demo    compile SmolLM2 for this CPU and ask it a question; TARGET=kunlun: on an emulated P800"
	@echo "make test    run the whole suite"
	@echo "make lint    ruff: rules and format"
	@echo "make types   mypy --strict"
	@echo "make clean   remove .venv, .cache and build folders"

demo: $(MODEL)
	$(BIN)/sglk run $(MODEL) $(DEVICE) --stats "$(PROMPT)"

# A worker for each core; one that is through takes over half of what another has left. torch gets one
# thread in each: its pools would fight for the cores.
test: $(VENV)/installed-test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto --maxprocesses 8 --dist worksteal

lint: $(VENV)/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/installed-test
	$(BIN)/ruff format .

# mypy refuses a folder whose name is no identifier, and no type checker follows the import hook of
# an editable install: so it sees the checkout under the package's own name, through a link.
types: $(VENV)/installed-test
	@mkdir -p $(OVERLAY) && ln -sfn "$(CURDIR)" $(OVERLAY)/sglk
	cd $(OVERLAY) && "$(abspath $(BIN))/mypy" --config-file "$(CURDIR)/pyproject.toml" -p sglk

clean:
	rm -rf $(VENV) .cache build dist *.egg-info

# The compiled model. Kernels come from the content-addressed cache when their sources are the same.
$(MODEL): $(VENV)/installed-compile examples/fetch_model.py $(SOURCES)
	@mkdir -p $(@D)
	model="$$($(BIN)/python examples/fetch_model.py)" && \
	$(BIN)/sglk-compile "$$model" --target $(TARGET) -o $@

$(VENV)/installed-compile: $(VENV)/installed-torch setup.cfg
	$(PIP) -e '.[compile]'
	@$(call compiler)
	@touch $@

$(VENV)/installed-test: $(VENV)/installed-compile
	$(PIP) -e '.[test]'
	@touch $@

# torch goes first and by itself, so that a local or CPU-only build of that very version is taken
# before the resolver looks at anything else.
$(VENV)/installed-torch: constraints.txt
	@$(call find_python) && { test -x $(BIN)/python || "$$python" -m venv $(VENV); }
	$(PIP) $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) $(TORCH)
	@touch $@

define find_python
for python in $(or $(PYTHON),python3.11 python3.12 python3); do \
	"$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' \
		2>/dev/null && break; python=; \
done; \
test -n "$$python" || { echo "make: expected Python 3.11 or 3.12 with the venv module, got none" \
	"(install one, e.g. python3.11-venv, or name it: make PYTHON=/path/to/python)" >&2; exit 1; }
endef

define compiler
test -n "$${CXX:-}" || command -v c++ g++ clang++ >/dev/null || $(PIP) ziglang
endef
