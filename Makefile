# `make demo` runs the main job, `make test` the tests, `make test-long` the slow ones; all build .venv first.
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.built

.PHONY: env demo docs test test-long check bench gpu-test gpu-day clean

env: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	python3 -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[train,report,dev]'
	touch $@

demo: $(STAMP)
	$(BIN)/hotset demo

# The pages of docs/ and the API, made from the docstrings, in build/site. The package is found by its name.
docs: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	rm -rf build/package && mkdir -p build/package/hotset
	ln -s $(addprefix $(CURDIR)/,__init__.py nn.py pipeline stats train workflows) build/package/hotset
	$(BIN)/python -m mkdocs build --strict

# Each test process compiles every module it imports where this is set.
unexport PYTHONDONTWRITEBYTECODE
PYTEST := $(BIN)/python -m pytest -q -n 2 --dist worksteal

test: $(STAMP)
	$(PYTEST) -m "not slow"

# What only some users install: other programs that read exports, Triton for the interpreter of GPU kernels, ONNX, docs,
# and TorchRec, without which its tests are skipped.
EXTRAS := $(VENV)/.extras
$(EXTRAS): $(STAMP) scripts/install-torchrec
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs,onnx,interop,tensorboard,gpu-dev]'
	-scripts/install-torchrec $(BIN)/python
	touch $@

# The slow tests, many of which wait for processes; those of GPU kernels, which `make test` skips without Triton; then
# Numba's kernels as plain Python, so that coverage sees inside them and an error there shows its line.
# Integers wrap there with a warning. Outside stats/ a kernel's test stands where its module does;
# the generator's are left out, because a world of categories takes minutes to draw uncompiled.
KERNELS := $(shell grep -rlE '^@(inlined_)?kernel' --include='*.py' pipeline/raw train)
KERNEL_TESTS := tests/stats $(wildcard $(foreach path,$(KERNELS),tests/$(dir $(path))test_$(notdir $(path))))
test-long: $(EXTRAS)
	$(PYTEST) -n 3 -m slow
	$(PYTEST) -m "not slow" tests/train/gpu
	NUMBA_DISABLE_JIT=1 $(PYTEST) -m "not slow" -W ignore::RuntimeWarning $(KERNEL_TESTS)

# mypy needs the folder to be called like the package (docs: the root is the package).
check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	mkdir -p $(VENV)/link && ln -sfn $(CURDIR) $(VENV)/link/hotset
	cd $(VENV)/link && MYPYPATH=$$PWD $(CURDIR)/$(BIN)/mypy --config-file hotset/pyproject.toml hotset/pipeline hotset/stats hotset/train hotset/workflows hotset/tests

# One benchmark of this checkout: make bench NAME=preprocess ARGS="--samples 4000000 --out result.json".
NAME ?= preprocess
bench: $(STAMP)
	$(BIN)/python -m hotset.workflows.bench.$(NAME) $(ARGS)

# On a machine with a GPU, with its own torch: PYTHON=/path/to/python make gpu-test. Only files with GPU tests are
# imported, because others need packages that may be missing there; warnings of foreign versions are only printed.
PYTHON ?= python3
GPU_TESTS := tests/train/gpu $(shell grep -rl --include='test_*.py' 'mark\.gpu' tests)
gpu-test:
	rm -rf build/gpu && mkdir -p build/gpu && ln -sfn $(CURDIR) build/gpu/hotset
	PYTHONPATH=$(CURDIR)/build/gpu $(PYTHON) -m pytest -q -W default --continue-on-collection-errors -m gpu $(GPU_TESTS)

# Checks and speeds of a GPU in one file, within 8 minutes and without a network.
OUT ?= gpu-day.json
ONLY ?=
gpu-day:
	rm -rf build/gpu && mkdir -p build/gpu && ln -sfn $(CURDIR) build/gpu/hotset
	PYTHONPATH=$(CURDIR)/build/gpu $(PYTHON) -m hotset.workflows.bench.gpu_day --out $(OUT) --only "$(ONLY)"

clean:
	rm -rf $(VENV) build demo *.egg-info
