"""Compiles every Triton kernel for a GPU that need not be there: what is launched, with its sizes then.

Run as a program, in a process without Triton's interpreter; prints what is in the code of each kernel.

    python -m hotset.tests.support.compiled_kernels DIM [OPTIMIZER…]
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch

from hotset.tests.support.device_batches import draw_batch, draw_rows, numbers_of
from hotset.train.gpu_kernels.batch_lists import RowMoves, SeedTables
from hotset.train.gpu_kernels.dense_rule import DenseOptimizerName, DenseRule
from hotset.train.gpu_kernels.kernel_table import kernel_of
from hotset.train.rows.initial_values import InitialValues
from hotset.train.rows.row_optimizers import RowOptimizer
from hotset.train.rows.tiers import Layout

HOPPER = 90
"""Compute capability of an H200."""
OPERATIONS = (
    *(
        "LDG.E.128",
        "LDGSTS.E.BYPASS.128",
        "LDG.E.64",
        "LDG.E.U16",
        "STG.E.128",
        "STG.E.64",
        "STG.E.U16",
        "HMMA",
        "HGMMA",
    ),
    *("FFMA", "FMUL", "FADD", "LDL", "STL"),
)
_HOST = torch.device("cpu")
_NUM_TABLES = 26


class _Absent:
    """A driver of a GPU that compiles and launches nothing."""

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", HOPPER, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def compile_launches(launch: Callable[[], None]) -> list[Any]:
    """Return the kernels that ``launch`` would run, compiled instead."""
    import triton
    from triton.runtime.jit import JITFunction

    triton.runtime.driver.set_active(_Absent())
    compiled = []
    run = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        compiled.append(run(self, *args, grid=grid, warmup=True, **kwargs))

    JITFunction.run = compile_only
    try:
        launch()
    finally:
        JITFunction.run = run
    return compiled


def launch_all(dim: int, optimizers: list[str]) -> None:
    """Call every kernel as a step of DLRM with 26 tables does."""
    rng = np.random.default_rng(1)
    batch = draw_batch(np.zeros((300, _NUM_TABLES), np.int32), np.ones(_NUM_TABLES, np.int64), rng)
    lists, decoded = batch.lists, batch.decoded

    def call(name: str, *args: Any) -> None:
        kernel_of(name, "triton")(*args)

    grad_BFD = torch.empty(300, _NUM_TABLES, dim)
    sgd = draw_rows(RowOptimizer("sgd", 0.1), 64, dim, rng, _HOST)
    call("decode_batch", lists, batch.layout, decoded)
    call("gather_rows", sgd.weights_SD, decoded.slots_BF, lists.num_samples_1, grad_BFD)
    partials = batch.room.new_partials(dim, _HOST)
    sums_UD = torch.empty(batch.room.num_rows, dim)
    call("sum_gradients", lists, decoded, grad_BFD, partials, sums_UD)
    integers = torch.zeros(64, dtype=torch.int32)
    moves = RowMoves(integers[:1], integers, integers)
    layout = Layout.of([0] * _NUM_TABLES, [2] * _NUM_TABLES)
    seeds = SeedTables.of(layout, InitialValues.of(1, range(_NUM_TABLES), [2] * _NUM_TABLES), _HOST)
    for name in optimizers:
        optimizer = RowOptimizer(name, 0.1)
        rows = draw_rows(optimizer, 64, dim, rng, _HOST)
        numbers = numbers_of(optimizer, _HOST)
        call("sum_and_step", lists, decoded, grad_BFD, partials, optimizer, numbers, rows)
        call("step_rows", integers[:1], decoded.slots_U, sums_UD, optimizer, numbers, rows)
        call("move_rows", moves, rows, rows)
        call("make_rows", moves, seeds, rows)
    num_inputs = -(-(dim + (_NUM_TABLES + 1) * _NUM_TABLES // 2) // 16) * 16
    for dtype in (torch.bfloat16, torch.float32):
        bottom, inputs = torch.empty(300, dim, dtype=dtype), torch.empty(300, num_inputs, dtype=dtype)
        gathered = (sgd.weights_SD, decoded.slots_BF, lists.num_samples_1, bottom, inputs)
        call("gather_dots", *gathered)
        call("gather_dots_backward", *gathered, grad_BFD, bottom)
        values, outputs = torch.empty(300, 256, dtype=dtype), torch.empty(300, 256, dtype=dtype)
        call("relu_backward", values, outputs, torch.empty(2, 256), torch.empty(256))
        partials, sums = torch.empty(2, 257), torch.empty(257)
        losses = torch.empty(2, dtype=torch.float64)
        labels = torch.zeros(300, dtype=torch.uint8)
        arrays = (values, sums, labels, lists.num_samples_1, 0.5, outputs, partials, losses, sums, losses)
        call("last_layer", *arrays)
    for dense_name in get_args(DenseOptimizerName):
        rule = DenseRule(dense_name)
        weights, states = torch.empty(4096), torch.empty(rule.num_states, 4096)
        rounded = torch.empty(4096, dtype=torch.bfloat16)
        call("step_dense", rule, torch.empty(2), weights, weights, states, rounded)


def facts_of(kernel: Any) -> dict[str, Any]:
    """What the machine code of a kernel needs and how often each of `OPERATIONS` is in it."""
    import triton

    tools = Path(triton.__file__).parent / "backends/nvidia/bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        usage, code = (
            subprocess.run(
                [tools / tool, option, file.name], capture_output=True, text=True, check=True
            ).stdout
            for tool, option in (("cuobjdump", "--dump-resource-usage"), ("nvdisasm", "-c"))
        )
    found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:(\d+)", usage)
    assert found is not None, usage
    constants = {
        key: str(value) for key, value in _constants(kernel).items() if key in ("RULE", "D", "R", "B", "V")
    }
    counts = {name: len(re.findall(rf"\b{re.escape(name)}\b", code)) for name in OPERATIONS}
    return {
        "name": kernel.name,
        "types": sorted({each for each in kernel.src.signature.values() if each.startswith("*")}),
        **constants,
        "registers": int(found[1]),
        "stack": int(found[2]),
        "shared": kernel.metadata.shared,
        **{name: count for name, count in counts.items() if count},
    }


def _constants(kernel: Any) -> dict[str, Any]:
    names = list(kernel.src.signature)
    return {names[place[0]]: value for place, value in kernel.src.constants.items()}


def main() -> None:
    """Print a line of JSON for every kernel."""
    assert os.environ.get("TRITON_INTERPRET", "0") == "0"
    dim, *optimizers = sys.argv[1:]
    for kernel in compile_launches(lambda: launch_all(int(dim), optimizers)):
        print(json.dumps(facts_of(kernel)), flush=True)


if __name__ == "__main__":
    main()
