# `make demo` runs the main job, `make test` the tests; both build .venv first.
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.built

.PHONY: env demo test test-uncompiled check gpu-test clean

env: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	python3 -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[train,report,dev]'
	touch $@

demo: $(STAMP)
	$(BIN)/hotset demo

test: $(STAMP)
	$(BIN)/python -m pytest -q -n 2 --dist worksteal

# The kernels as plain Python, so that an error inside one shows its line; integers wrap there with a warning.
KERNEL_TESTS := bag_shuffle bags cache_policies cache_sweep calibration cold_rows counting criteo_parser dense_values drift hash_table hashing hot_levels hot_rows merging peel ranking reuse row_kernels row_updates shuffle step_plans text_fields text_numbers
test-uncompiled: $(STAMP)
	NUMBA_DISABLE_JIT=1 $(BIN)/python -m pytest -q -n 2 -W ignore::RuntimeWarning $(KERNEL_TESTS:%=tests/test_%.py)

# mypy needs the folder to be called like the package (docs: the root is the package).
check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	mkdir -p $(VENV)/link && ln -sfn $(CURDIR) $(VENV)/link/hotset
	cd $(VENV)/link && MYPYPATH=$$PWD $(CURDIR)/$(BIN)/mypy --config-file hotset/pyproject.toml hotset/pipeline hotset/stats hotset/train hotset/workflows hotset/tests

# On a machine with a GPU, with its own torch: PYTHON=/path/to/python make gpu-test
PYTHON ?= python3
gpu-test:
	rm -rf build/gpu && mkdir -p build/gpu && ln -sfn $(CURDIR) build/gpu/hotset
	PYTHONPATH=$(CURDIR)/build/gpu $(PYTHON) -m pytest -q -m gpu tests

clean:
	rm -rf $(VENV) build demo *.egg-info
