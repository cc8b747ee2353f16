"""Every Triton kernel compiles for an H200, which need not be there, to the code wanted.

All optimizers at one row width, those with the least and the most state at the others;
``HOTSET_ALL_SIZES=1`` compiles all of them at all widths. Sizes share a process, which takes code that they
have in common apart once.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import pytest

from hotset.stats.row_bytes import OPTIMIZERS
from hotset.tests.support.gpu.kernel_code import inexact_operations, narrow_accesses, races_of
from hotset.train.gpu.twins import DenseOptimizerName

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed"),
]
ALL_SIZES = os.environ.get("HOTSET_ALL_SIZES") == "1"
FEW = ("sgd", "adam")
DIMS: dict[str, Sequence[str]] = {
    "16": OPTIMIZERS if ALL_SIZES else FEW,
    "64": OPTIMIZERS,
    "128": OPTIMIZERS if ALL_SIZES else FEW,
}
"""Optimizers by row width."""
OTHER_SIZES = ("3,1,1,1", "10,64,100,70", "16,65536,26,256", "16,70000,2,64")
"""A number that is 1 is a constant to the compiler, and one that is a multiple of 16 is known to be so. Of
more than 65,536 samples the numbers within a table have 32 bits."""
STEP_KERNELS = {"_sum_rows", "_add_blocks"}
ROW_KERNELS = {
    *("_gather_rows", "_gather_dots", "_gather_dots_backward", "_move_rows", "_make_rows"),
    *("_sum_blocks", *STEP_KERNELS),
}
EXACT_KERNELS = {"_gather_rows", "_move_rows", "_make_rows", "_sum_blocks", "_step_dense", *STEP_KERNELS}
Facts = list[dict[str, Any]]


def compiled_for(optimizers_of: Mapping[str, Sequence[str]], *options: str) -> dict[str, Facts]:
    """Return what is in the code of every kernel by sizes, compiled in a process without the interpreter."""
    sizes = [":".join([name, *optimizers]) for name, optimizers in optimizers_of.items()]
    command = [sys.executable, "-m", "hotset.tests.support.gpu.compiled_kernels", *options, *sizes]
    found = subprocess.run(
        command, env=os.environ | {"TRITON_INTERPRET": "0"}, capture_output=True, text=True, timeout=600
    )
    assert found.returncode == 0, found.stderr
    kernels: dict[str, Facts] = {name: [] for name in optimizers_of}
    for line in found.stdout.splitlines():
        facts = json.loads(line)
        kernels[facts["sizes"]].append(facts)
    return kernels


def test_the_machine_code_of_every_kernel_is_as_wanted() -> None:
    for dim, kernels in compiled_for(DIMS, "--machine-code").items():
        check_that_no_kernel_spills_registers(kernels)
        check_that_no_thread_stores_what_another_is_about_to_read(kernels)
        of_rows = {each["name"] for each in kernels if each.get("D") == dim}
        assert of_rows == ROW_KERNELS
        check_that_rows_are_read_and_written_16_bytes_at_a_time(kernels)
        check_that_every_operation_is_rounded_where_bits_are_promised(kernels, DIMS[dim])
        check_that_the_machine_fuses_no_product_with_a_sum_where_bits_are_promised(kernels)
        check_that_products_of_bfloat16_run_on_tensor_cores(kernels)


def check_that_no_kernel_spills_registers(kernels: Facts) -> None:
    spilling = [each for each in kernels if each["stack"] or "LDL" in each or "STL" in each]
    assert spilling == []
    assert all(each["registers"] <= 128 for each in kernels if "*bf16" in each["types"])


def check_that_no_thread_stores_what_another_is_about_to_read(kernels: Facts) -> None:
    # The state of a row is one number, or holds one, of some optimizers.
    assert [each for each in kernels if each["races"]] == []


def check_that_rows_are_read_and_written_16_bytes_at_a_time(kernels: Facts) -> None:
    narrow = [
        (each, access)
        for each in kernels
        for access in each["narrow"]
        if not is_narrow_by_design(each, *access[:2])
    ]
    assert narrow == []


def is_narrow_by_design(kernel: dict[str, Any], kind: str, argument: str) -> bool:
    """Whether rows do not begin at multiples of 16 bytes."""
    name = kernel["name"]
    if argument == "state":
        # Adam's: two numbers for each of the weights, and the number of steps.
        return kernel.get("RULE") == "adam" or int(kernel.get("W", 0)) % 4 != 0
    if name == "_move_rows":
        # The same state, and that of one number a row.
        return int(kernel["D"]) % 4 != 0
    # Pairs of vectors are half of a square, row by row. Behind the gradients of the last layer's weights lies
    # that of its bias.
    return (name, kind, argument) in {
        ("_gather_dots", "store", "inputs"),
        ("_gather_dots_backward", "load", "grad"),
        ("_add_sums", "load", "partials"),
    }


def check_that_every_operation_is_rounded_where_bits_are_promised(
    kernels: Facts, optimizers: Sequence[str]
) -> None:
    # Neither the compiler nor the assembler may contract, and the code has IEEE's operations only.
    exact = [each for each in kernels if each["name"] in EXACT_KERNELS]
    assert [each for each in exact if each["is_contracted"] or each["inexact"]] == []
    # No case is missing: kernels without rules, every optimizer's, and those of dense parameters.
    rules = {(each["name"], each.get("RULE")) for each in exact}
    dense = {("_step_dense", name) for name in get_args(DenseOptimizerName)}
    steps = {(name, rule) for name in STEP_KERNELS for rule in ("none", *optimizers)}
    without = {(name, None) for name in EXACT_KERNELS - STEP_KERNELS - {"_step_dense"}}
    assert rules == dense | steps | without


def check_that_the_machine_fuses_no_product_with_a_sum_where_bits_are_promised(kernels: Facts) -> None:
    exact = [each for each in kernels if each["name"] in EXACT_KERNELS]
    # Divisions and roots are made of fused operations, and rounded correctly; nothing else has any.
    plain = [each for each in exact if each.get("RULE", "none") in ("none", "sgd", "momentum")]
    assert {each["name"] for each in plain} == EXACT_KERNELS
    assert [each for each in plain if "FFMA" in each] == []


def check_that_products_of_bfloat16_run_on_tensor_cores(kernels: Facts) -> None:
    dots = [each for each in kernels if "dots" in each["name"] and "*bf16" in each["types"]]
    # Forward and backward, with a bottom MLP and without.
    assert len(dots) == 4 and all(each["HMMA"] for each in dots)


def test_kernels_of_other_sizes_compile() -> None:
    optimizers = ("rowwise-adagrad", "adam")
    for sizes, found in compiled_for(dict.fromkeys(OTHER_SIZES, optimizers)).items():
        names = {each["name"] for each in found}
        assert names >= ROW_KERNELS | {"_last_layer", "_mask_by_relu", "_step_dense"}
        dim, num_samples, *_ = map(int, sizes.split(","))
        has_short_numbers = num_samples <= 1 << 16
        assert all(
            ("*u16" in each["types"]) == has_short_numbers for each in found if each["name"] == "_sum_rows"
        )
        check_that_no_thread_stores_what_another_is_about_to_read(found)
        check_that_every_operation_is_rounded_where_bits_are_promised(found, (*optimizers, "sgd"))
        if dim % 4 == 0:
            check_that_rows_are_read_and_written_16_bytes_at_a_time(found)


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


_WIDE_CODE = """
#loc3 = loc("/src/triton_moves.py":98:25)
#loc4 = loc("values"(#loc3))
#loc5 = loc(callsite(#loc4 at #loc9))
%1 = tt.splat %source : !tt.ptr<f32> -> tensor<32x16x!tt.ptr<f32>, #blocked> loc(#loc3)
%2 = tt.load %1, %mask : tensor<32x16x!tt.ptr<f32>, #blocked> loc(#loc5)
tt.store %1, %2, %mask : tensor<32x16x!tt.ptr<f32>, #blocked> loc(#loc5)
"""
_WIDE_PTX = """
\t.loc\t1 98 25                          // triton_moves.py:98:25 @[ triton_steps.py:12:4 ]
\t@%p1 ld.global.cg.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];
\t@%p1 st.global.v4.b32 [ %rd1 + 0 ], { %r1, %r2, %r3, %r4 };
"""
_LOAD = ("load", "source", "triton_moves.py:98:25")
_STORE = ("store", "source", "triton_moves.py:98:25")


@pytest.mark.parametrize(
    ("ptx", "num_threads", "narrow"),
    [
        (_WIDE_PTX, 128, []),
        # Twice as many numbers a thread, of which only half are read so; half as many, which are too few.
        (_WIDE_PTX, 64, [_LOAD, _STORE]),
        (_WIDE_PTX.replace(".v4", ""), 256, []),
        (_WIDE_PTX.replace("cg.v4", "cg.v2"), 128, [_LOAD]),
        (_WIDE_PTX.replace("st.global.v4", "st.global"), 128, [_STORE]),
        # One of them more, but narrow.
        (_WIDE_PTX + "ld.global.b32 { %r5 }, [ %rd1 + 0 ];", 128, [_LOAD]),
        # Wide ones of another place.
        (_WIDE_PTX.replace(":98:25", ":98:26"), 128, [_LOAD, _STORE]),
        (_WIDE_PTX.replace("}, [ %rd1 + 0 ];", "}, [ %rd1 + 0 ];\n.loc 1 0 0"), 128, [_STORE]),
        (
            _WIDE_PTX.replace("ld.global.cg.v4.b32", "cp.async.cg.shared.global [ %r1 ], [ %rd1 ], 0x10;"),
            128,
            [],
        ),
        (
            _WIDE_PTX.replace("ld.global.cg.v4.b32", "cp.async.ca.shared.global [ %r1 ], [ %rd1 ], 0x4;"),
            128,
            [_LOAD],
        ),
    ],
)
def test_an_access_of_fewer_bytes_than_a_thread_has_is_found(
    ptx: str, num_threads: int, narrow: list[tuple[str, str, str]]
) -> None:
    assert narrow_accesses(_WIDE_CODE, ptx, num_threads) == narrow


def test_operations_that_round_otherwise_are_found() -> None:
    exact = "mul.f32 add.rn.f32 div.rn.f32 sqrt.rn.f32 mad.lo.s32 shfl.sync.bfly.b32 // triton_fma.py"
    inexact = (
        *("add.ftz.f32", "div.approx.f32", "div.full.f32", "fma.rn.f32", "fma.rn.f32x2", "mad.rn.f32"),
        *("mul.ftz.f32", "rcp.approx.ftz.f32", "rsqrt.approx.f32", "sqrt.approx.f32"),
    )
    assert inexact_operations(f"{exact} {' '.join(inexact)}") == list(inexact)
