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
KERNEL_TESTS := tests/pipeline/raw/test_criteo_kernel.py tests/pipeline/raw/test_text_fields.py tests/pipeline/raw/test_text_numbers.py tests/stats/analysis/test_drift.py tests/stats/analysis/test_stack_distances.py tests/stats/batches/test_bag_shuffle.py tests/stats/batches/test_bags.py tests/stats/batches/test_dense_values.py tests/stats/batches/test_row_slots.py tests/stats/batches/test_sample_shuffle.py tests/stats/counting/test_category_counter.py tests/stats/counting/test_count_merging.py tests/stats/counting/test_hash_table.py tests/stats/ranking/test_fae_calibration.py tests/stats/ranking/test_frequency_ranking.py tests/stats/ranking/test_hot_levels.py tests/stats/ranking/test_hot_rows.py tests/stats/ranking/test_peeling.py tests/stats/staging/test_cold_rows.py tests/stats/staging/test_miss_ratios.py tests/stats/staging/test_staging_planner.py tests/stats/test_hashing.py tests/train/rows/test_row_kernels.py tests/train/rows/test_row_updates.py
test-uncompiled: $(STAMP)
	NUMBA_DISABLE_JIT=1 $(BIN)/python -m pytest -q -n 2 -W ignore::RuntimeWarning $(KERNEL_TESTS)

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
