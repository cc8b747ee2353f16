"""Compiles every Triton kernel for a GPU that need not be there: what is launched, with its sizes then.

Run as a program, in a process without Triton's interpreter; prints what is in the code of each kernel. With
``--machine-code`` it takes the code apart that the GPU runs, too.

    python -m hotset.tests.support.gpu.compiled_kernels [--machine-code] SIZES[:OPTIMIZER…]…

SIZES are DIM[,SAMPLES[,TABLES[,OUTPUTS]]].
"""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch

from hotset.tests.support.gpu.device_batches import DrawnBatch, draw_batch, draw_rows, numbers_of
from hotset.tests.support.gpu.kernel_code import inexact_operations, narrow_accesses, races_of
from hotset.train.gpu.packed_batch import RowMoves, RowTensors, SeedTables
from hotset.train.gpu.twins import BIAS_BLOCK, LOSS_BLOCK, DenseOptimizerName, DenseRule, kernel_of
from hotset.train.rows.backends import RowOptimizer
from hotset.train.rows.tiers import InitialValues, Layout

HOPPER = 90
"""Compute capability of an H200."""
OPERATIONS = ("HMMA", "FFMA", "LDL", "STL")
"""Of the machine: products of matrices, fused operations, and loads and stores of registers spilled."""
_INSTRUCTION_BYTES = 16
_HOST = torch.device("cpu")


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


@dataclass(frozen=True, slots=True)
class LaunchSizes:
    """The sizes of a step whose kernels are launched."""

    embedding_dim: int
    num_samples: int = 300
    num_tables: int = 26
    num_outputs: int = 256
    """Outputs of a layer."""


def launch_all(sizes: LaunchSizes, optimizers: Sequence[str]) -> None:
    """Call every kernel as a step of DLRM does."""
    rng = np.random.default_rng(1)
    ids_BF = np.zeros((sizes.num_samples, sizes.num_tables), np.int32)
    batch = draw_batch(ids_BF, np.ones(sizes.num_tables, np.int64), rng)
    grad_BFD = torch.empty(*ids_BF.shape, sizes.embedding_dim)
    _launch_rows(batch, grad_BFD, optimizers, rng)
    for dtype in (torch.bfloat16, torch.float32):
        _launch_dense(batch, grad_BFD, sizes, dtype)
    for name in get_args(DenseOptimizerName):
        # With and without weights rounded to bfloat16, and weight decay.
        for rule in (DenseRule(name), DenseRule(name, decay=0.01)):
            weights, states = torch.empty(4096), torch.empty(rule.num_states, 4096)
            rounded = None if rule.decay else torch.empty(4096, dtype=torch.bfloat16)
            _call("step_dense", rule, torch.empty(2), weights, weights, states, rounded)


def _launch_rows(
    batch: DrawnBatch, grad_BFD: torch.Tensor, optimizers: Sequence[str], rng: np.random.Generator
) -> None:
    lists, decoded = batch.lists, batch.decoded
    _, num_tables, dim = grad_BFD.shape
    weights = torch.empty(64, dim)
    _call("decode_batch", lists, batch.layout, decoded)
    _call("gather_rows", weights, decoded.slots_BF, lists.num_samples_1, grad_BFD)
    partials = batch.room.new_partials(dim, _HOST)
    sums_UD = torch.empty(batch.room.num_rows, dim)
    _call("sum_gradients", lists, decoded, grad_BFD, partials, sums_UD)
    integers = torch.zeros(64, dtype=torch.int32)
    moves = RowMoves(integers[:3], integers, integers)
    layout = Layout.of([0] * num_tables, [2] * num_tables)
    seeds = SeedTables.of(layout, InitialValues.of(1, range(num_tables), [2] * num_tables), _HOST)
    for optimizer in [*(RowOptimizer(name, 0.1) for name in optimizers), RowOptimizer("sgd", 0.1, 0.01)]:
        # Memory of their own, which is as aligned as that of tiers.
        rows = RowTensors(*(each.clone() for each in draw_rows(optimizer, 64, dim, rng, _HOST)))
        numbers = numbers_of(optimizer, _HOST)
        _call("sum_and_step", lists, decoded, grad_BFD, partials, optimizer, numbers, rows)
        _call("move_rows", moves, rows, rows)
        _call("make_rows", moves, seeds, rows)


def _launch_dense(batch: DrawnBatch, grad_BFD: torch.Tensor, sizes: LaunchSizes, dtype: torch.dtype) -> None:
    num_samples, num_tables, dim = grad_BFD.shape
    num_inputs = -(-(dim + (num_tables + 1) * num_tables // 2) // 16) * 16
    bottom = torch.empty(num_samples, dim, dtype=dtype)
    inputs = torch.empty(num_samples, num_inputs, dtype=dtype)
    weights, count_1 = torch.empty(64, dim), batch.lists.num_samples_1
    _call("gather_dots", weights, batch.decoded.slots_BF, count_1, bottom, inputs)
    gathered = (weights, batch.decoded.slots_BF, count_1)
    _call("gather_dots_backward", *gathered, bottom, inputs, grad_BFD, bottom)
    _call("gather_dots", *gathered, None, inputs)
    _call("gather_dots_backward", *gathered, None, inputs, grad_BFD, None)

    values = torch.empty(num_samples, sizes.num_outputs, dtype=dtype)
    num_blocks = -(-num_samples // min(BIAS_BLOCK, LOSS_BLOCK))
    biases = torch.empty(sizes.num_outputs)
    _call("relu_backward", values, values, torch.empty(num_blocks, biases.numel()), biases)
    sums = torch.empty(sizes.num_outputs + 1)
    partials, losses = torch.empty(num_blocks, sums.numel()), torch.empty(num_blocks, dtype=torch.float64)
    labels = torch.zeros(num_samples, dtype=torch.uint8)
    _call("last_layer", values, sums, labels, count_1, 0.5, values, partials, losses, sums, losses)


def _call(name: str, *args: Any) -> None:
    kernel_of(name, "triton")(*args)


def facts_of(kernel: Any) -> dict[str, Any]:
    """What is in the code of a kernel."""
    num_threads = 32 * kernel.metadata.num_warps
    code, ptx = kernel.asm["ttgir"], kernel.asm["ptx"]
    constants = {
        key: str(value)
        for key, value in _constants(kernel).items()
        if key in ("RULE", "D", "W", "R", "B", "V")
    }
    return {
        "name": kernel.name,
        "types": sorted({each for each in kernel.src.signature.values() if each.startswith("*")}),
        **constants,
        "shared": kernel.metadata.shared,
        "is_contracted": kernel.metadata.enable_fp_fusion,
        "inexact": inexact_operations(ptx),
        "narrow": narrow_accesses(code, ptx, num_threads),
        "races": races_of(code, num_threads),
    }


def machine_facts_of(kernels: Sequence[Any]) -> list[dict[str, Any]]:
    """The needs of each kernel's machine code, and how often each of `OPERATIONS` is in it."""
    import triton

    tools = Path(triton.__file__).parent / "backends/nvidia/bin"

    def printed(tool: str, data: bytes, *options: str) -> str:
        with tempfile.NamedTemporaryFile() as file:
            file.write(data)
            file.flush()
            command = [str(tools / tool), *options, file.name]
            found = subprocess.run(command, capture_output=True, text=True, check=True)
        return str(found.stdout)

    # The disassembler takes a third of a second to start, so it gets the instructions of all at once.
    codes = [instructions_of(kernel.asm["cubin"]) for kernel in kernels]
    shown = printed("nvdisasm", b"".join(codes), "-b", f"SM{HOPPER}a")
    lines = re.findall(r"/\*[0-9a-f]{4,}\*/ +(.*?);", shown)
    assert len(lines) * _INSTRUCTION_BYTES == sum(map(len, codes))
    facts = []
    for kernel, code in zip(kernels, codes, strict=True):
        usage = printed("cuobjdump", kernel.asm["cubin"], "--dump-resource-usage")
        needs = re.search(r"REG:(\d+) STACK:(\d+)", usage)
        assert needs is not None, usage
        own, lines = lines[: len(code) // _INSTRUCTION_BYTES], lines[len(code) // _INSTRUCTION_BYTES :]
        counts = Counter(word for line in own for word in re.findall(r"\w+", line) if word in OPERATIONS)
        facts.append({"registers": int(needs[1]), "stack": int(needs[2]), **counts})
    return facts


def instructions_of(cubin: bytes) -> bytes:
    """Return the code of the one function of an ELF file."""
    (heads,) = struct.unpack_from("<Q", cubin, 0x28)
    head_bytes, num_heads, of_names = struct.unpack_from("<HHH", cubin, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", cubin, heads + n * head_bytes) for n in range(num_heads)]
    (code,) = (
        cubin[start : start + size]
        for name, *_, start, size in sections
        if cubin.startswith(b".text.", sections[of_names][4] + name)
    )
    return code


def _constants(kernel: Any) -> dict[str, Any]:
    names = list(kernel.src.signature)
    return {names[place[0]]: value for place, value in kernel.src.constants.items()}


def main() -> None:
    """Print a line of JSON for every kernel that is launched; code that is the same is looked at once."""
    assert os.environ.get("TRITON_INTERPRET", "0") == "0"
    has_machine_code = "--machine-code" in sys.argv
    launched: list[tuple[str, Any]] = []
    for argument in sys.argv[1 + has_machine_code :]:
        numbers, *optimizers = argument.split(":")
        sizes = LaunchSizes(*map(int, numbers.split(",")))
        launched += [(numbers, kernel) for kernel in compile_launches(partial(launch_all, sizes, optimizers))]
    kernels = {kernel.hash: kernel for _, kernel in launched}
    facts = {name: facts_of(kernel) for name, kernel in kernels.items()}
    if has_machine_code:
        for name, found in zip(kernels, machine_facts_of([*kernels.values()]), strict=True):
            facts[name] |= found
    for numbers, kernel in launched:
        print(json.dumps({"sizes": numbers, **facts[kernel.hash]}))


if __name__ == "__main__":
    main()
