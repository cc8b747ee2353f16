"""Every Triton kernel compiles for an H200, which need not be there, to the code wanted.

All optimizers at one row width, those with the least and the most state at the others;
``HOTSET_ALL_SIZES=1`` compiles all of them at all widths.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from hotset.stats.ranking.row_bytes import OPTIMIZERS
from hotset.tests.support.compiled_kernels import races_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed"),
]
DIMS = (16, 64, 128)
WIDE = {"LDG.E.128", "LDGSTS.E.BYPASS.128"}
ROW_KERNELS = {
    *("_gather_rows", "_gather_dots", "_gather_dots_backward", "_move_rows"),
    *("_sum_rows", "_sum_blocks", "_add_blocks"),
}
ALL_SIZES = os.environ.get("HOTSET_ALL_SIZES") == "1"
Facts = list[dict[str, Any]]


def compiled_for(sizes: str, optimizers: Sequence[str]) -> Facts:
    """Return the machine code of every kernel, compiled in a process without the interpreter."""
    command = [sys.executable, "-m", "hotset.tests.support.compiled_kernels", sizes, *optimizers]
    found = subprocess.run(
        command, env=os.environ | {"TRITON_INTERPRET": "0"}, capture_output=True, text=True, timeout=600
    )
    assert found.returncode == 0, found.stderr
    return [json.loads(line) for line in found.stdout.splitlines()]


@pytest.mark.parametrize("dim", DIMS)
def test_the_machine_code_of_every_kernel_is_as_wanted(dim: int) -> None:
    kernels = compiled_for(str(dim), OPTIMIZERS if ALL_SIZES or dim == 64 else ("sgd", "adam"))
    check_that_no_kernel_spills_registers(kernels)
    check_that_no_thread_stores_what_another_is_about_to_read(kernels)
    check_that_rows_are_read_16_bytes_at_a_time(kernels, dim)
    check_that_products_and_sums_are_not_fused_where_bits_are_promised(kernels)
    check_that_products_of_bfloat16_run_on_tensor_cores(kernels)


def check_that_no_kernel_spills_registers(kernels: Facts) -> None:
    spilling = [each for each in kernels if each["stack"] or "LDL" in each or "STL" in each]
    assert spilling == []
    assert all(each["registers"] <= 128 for each in kernels if "*bf16" in each["types"])


def check_that_no_thread_stores_what_another_is_about_to_read(kernels: Facts) -> None:
    # The state of a row is one number, or holds one, of some optimizers.
    assert [each for each in kernels if each["races"]] == []


def check_that_rows_are_read_16_bytes_at_a_time(kernels: Facts, dim: int) -> None:
    of_rows = [each for each in kernels if each["name"] in ROW_KERNELS and each["D"] == str(dim)]
    assert {each["name"] for each in of_rows} == ROW_KERNELS
    assert [each for each in of_rows if not WIDE & each.keys()] == []


def check_that_products_and_sums_are_not_fused_where_bits_are_promised(kernels: Facts) -> None:
    names = ("_sum_rows", "_sum_blocks", "_add_blocks", "_step_dense")
    exact = [each for each in kernels if each["name"] in names]
    # Divisions and roots are made of fused operations, and rounded correctly; nothing else has any.
    plain = [each for each in exact if each.get("RULE", "none") in ("none", "sgd", "momentum")]
    assert {each["name"] for each in plain} == set(names)
    assert [each for each in plain if "FFMA" in each] == []


def check_that_products_of_bfloat16_run_on_tensor_cores(kernels: Facts) -> None:
    dots = [each for each in kernels if "dots" in each["name"] and "*bf16" in each["types"]]
    # Forward and backward, with a bottom MLP and without.
    assert len(dots) == 4 and all(each["HMMA"] for each in dots)


@pytest.mark.parametrize("sizes", ["3,1,1,1", "10,64,100,70", "16,65536,26,256", "16,70000,2,64"])
def test_kernels_of_other_sizes_compile(sizes: str) -> None:
    # A number that is 1 is a constant to the compiler, and one that is a multiple of 16 is known to be so. Of
    # more than 65,536 samples the numbers within a table have 32 bits.
    found = compiled_for(sizes, ["rowwise-adagrad", "adam"])
    names = {each["name"] for each in found}
    assert names >= ROW_KERNELS | {"_last_layer", "_mask_by_relu", "_step_dense"}
    has_short_numbers = int(sizes.split(",")[1]) <= 1 << 16
    assert all(
        ("*u16" in each["types"]) == has_short_numbers for each in found if each["name"] == "_sum_rows"
    )
    check_that_no_thread_stores_what_another_is_about_to_read(found)


_CODE = """
%4 = tt.splat %state : !tt.ptr<f32> -> tensor<4x!tt.ptr<f32>, #blocked>
%5 = tt.addptr %4, %slot : tensor<4x!tt.ptr<f32>, #blocked>, tensor<4xi64, #blocked>
%6 = tt.load %5, %3, %cst : tensor<4x!tt.ptr<f32>, #blocked>
BARRIER
%7 = ttg.convert_layout %5 : tensor<4x!tt.ptr<f32>, #blocked> -> tensor<4x!tt.ptr<f32>, #blocked1>
tt.store %7, %6, %3 : tensor<4x!tt.ptr<f32>, #blocked1>
"""


@pytest.mark.parametrize(
    ("code", "num_threads", "num_races"),
    [
        (_CODE.replace("BARRIER", ""), 128, 1),
        (_CODE.replace("BARRIER", "gpu.barrier"), 128, 0),
        # Another argument, and a number for each thread.
        (_CODE.replace("BARRIER", "").replace("%7, %6", "%other, %6"), 128, 0),
        (_CODE.replace("BARRIER", "").replace("<4x", "<128x"), 128, 0),
    ],
)
def test_a_store_of_what_other_threads_are_about_to_read_is_found(
    code: str, num_threads: int, num_races: int
) -> None:
    assert len(races_of(code, num_threads)) == num_races
