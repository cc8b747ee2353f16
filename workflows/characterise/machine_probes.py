"""The probes of the host: products, rows, copies, calls, codecs, reading."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from ...pipeline.sizes import GIB, KIB, MIB
from ...stats.batches.batch_lookups import of_matrix
from ...stats.batches.lookups_by_row import group_lookups
from ...stats.codecs.codec_names import CODEC_NAMES, codec_of
from ...stats.codecs.row_codec import RowMessage, shape_of
from ...train.data.shards import Shards
from ...train.model.dense_dtype import cpu_features, has_bf16
from ...train.rows.row_backends import NumbaRows
from ...train.rows.row_kernels import copy_rows
from ...train.rows.row_optimizers import RowOptimizer
from ...train.rows.tiers import Layout, Tier
from ...train.work_threads import WorkThreads, one_torch_thread
from ..bench.limited.drawn_shards import DrawnShards
from ..bench.training.hidden_products import hidden_product
from .probes import Probe

PRODUCTS = ((64, 64), (256, 256), (1024, 512))
"""Inputs and outputs of the products."""
BATCHES = (32, 128, 512)
DIMS = (16, 64, 128)
WORKING_BYTES = (256 * KIB, 4 * MIB, 64 * MIB, GIB)
"""Bytes of the rows among which rows are chosen at random: within a cache of a core, and up to beyond all."""
POOLINGS = (1, 16)
_ROWS = 8192
"""Rows that one call moves."""
_COPIED_BYTES = 32 * MIB
_CODEC_ROWS = 4096


def product_probes() -> Iterator[Probe]:
    """Products of one thread by batch, inputs and outputs, in each type that this CPU computes in.

    They are those of the hidden layers, whoever computes them.
    """
    types = {"fp32": torch.float32}
    if has_bf16(cpu_features()):
        types["bf16"] = torch.bfloat16
    for name, dtype in types.items():
        for inputs, outputs in PRODUCTS:
            for batch in BATCHES:
                facts = {"batch": batch, "inputs": inputs, "outputs": outputs}
                product = hidden_product(batch, inputs, outputs, dtype)
                yield Probe(f"product {name}", facts, partial(_in_one_thread, product))


def _in_one_thread(product: Callable[[], object]) -> None:
    with one_torch_thread():
        product()


def row_probes(most_bytes: int) -> Iterator[Probe]:
    """Rows copied from and updated at random places, by dim, pooling and working set.

    Args:
        most_bytes: memory that they may take.
    """
    rng = np.random.default_rng(0)
    rows = NumbaRows(RowOptimizer("sgd", 0.1), WorkThreads(1))
    sizes = [working for working in WORKING_BYTES if working <= most_bytes] or [WORKING_BYTES[0]]
    # All working sets are parts of one array, which is touched once.
    floats = torch.zeros(sizes[-1] // 4)
    for dim in DIMS:
        for working in sizes:
            num_rows = working // (4 * dim)
            # An empty tier that is given a part of the array; plain SGD has no state beside it.
            tier = Tier(Layout.of([0], [0]), dim, 0)
            tier.weights_SD = floats[: num_rows * dim].view(num_rows, dim)
            facts: dict[str, float] = {"dim": dim, "row_bytes": 4 * dim, "working_bytes": working}
            ids_N = rng.integers(0, num_rows, _ROWS)
            target = np.empty((_ROWS, dim), np.float32)
            places = np.arange(_ROWS)
            copy = partial(copy_rows, tier.weights_SD.numpy(), ids_N, target, places)
            yield Probe("copy row", facts, copy, _ROWS)
            # Of few rows all are updated, each once: rows that are drawn would have several lookups.
            once_N = rng.choice(num_rows, min(num_rows, _ROWS), replace=False, shuffle=False)
            rng.shuffle(once_N)
            for pooling in POOLINGS:
                yield _update_probe(rows, tier, once_N, dim, pooling, facts)


def _update_probe(
    rows: NumbaRows, tier: Tier, ids_N: NDArray[np.int64], dim: int, pooling: int, facts: dict[str, float]
) -> Probe:
    """Rows, none twice, that are updated by the summed gradients of ``pooling`` lookups each."""
    chosen = np.repeat(ids_N[: _ROWS // pooling], pooling).astype(np.int32)
    num_rows = np.array([tier.weights_SD.shape[0]], np.int64)
    # The seconds are per distinct row, each with the gradients of all its lookups.
    lookups = group_lookups(of_matrix(chosen, num_rows))
    slots_U = lookups.rows_U.astype(np.int64)
    # Gradients of zero cost as much as others, and leave the shared rows as they are.
    grad = torch.zeros(chosen.size, dim)
    update = partial(rows.update, tier, lookups, slots_U, grad, 1)
    return Probe("update row", facts | {"lookups_per_row": pooling}, update, lookups.num_rows)


def copy_probes() -> Iterator[Probe]:
    """Large copies, one way and both ways at once."""
    arrays = [np.ones(_COPIED_BYTES, np.uint8) for _ in range(4)]
    there = partial(np.copyto, arrays[1], arrays[0])
    back = partial(np.copyto, arrays[2], arrays[3])
    pool = ThreadPoolExecutor(1, "copy")

    def both() -> None:
        other = pool.submit(back)
        there()
        other.result()

    facts = {"bytes": _COPIED_BYTES}
    yield Probe("copy", facts, there, _COPIED_BYTES, "seconds per byte")
    yield Probe("copy both ways", facts, both, 2 * _COPIED_BYTES, "seconds per byte")


def call_probes(threads: int) -> Iterator[Probe]:
    """The cost of one call of a kernel without work, and of handing no work to all threads."""
    nothing = np.empty((0, 1), np.float32)
    none = np.empty(0, np.int64)
    yield Probe("call a kernel", {}, partial(copy_rows, nothing, none, nothing, none))
    work = WorkThreads(threads)
    yield Probe("call all threads", {"threads": threads}, partial(work.run, lambda *_: None, threads))


def codec_probes() -> Iterator[Probe]:
    """Rows encoded and decoded by each codec of the exchange."""
    rng = np.random.default_rng(0)
    for dim in (16, 64):
        rows = rng.standard_normal((_CODEC_ROWS, dim), np.float32)
        message = RowMessage.of(rows)
        for name in CODEC_NAMES:
            codec = codec_of(name)
            shape = shape_of(message)
            data = np.empty(codec.num_bytes(shape), np.uint8)
            # Decoding is timed on what encoding wrote; both per byte of float32, so that codecs compare.
            codec.encode(message, data)
            facts = {"dim": dim, "bytes": data.nbytes, "bytes_of_float32": rows.nbytes}
            yield Probe(
                f"encode {name}", facts, partial(codec.encode, message, data), rows.nbytes, "seconds per byte"
            )
            decode = partial(codec.decode, data, shape, np.empty_like(rows))
            yield Probe(f"decode {name}", facts, decode, rows.nbytes, "seconds per byte")


def loader_probe(folder: Path) -> Probe:
    """Batches of a log of the Kaggle shape, read and checked."""
    drawn = DrawnShards(rows_of_table=10_000, skew=1.0, num_batches=8, num_evaluation=1)
    drawn.write(folder / "shards")
    shards = Shards.open(folder)
    numbers = iter(range(10**9))

    def read() -> None:
        shards.training_batch(next(numbers) % 8)

    return Probe(
        "read a sample", {"batch": drawn.batch_size, "tables": 26, "dense": 13}, read, drawn.batch_size
    )


def quiet_probe() -> Callable[[], object]:
    """Return a piece of work that fits in the caches of a core and is always the same."""
    a = torch.ones(192, 192)
    out = torch.empty(192, 192)
    return partial(_in_one_thread, partial(torch.mm, a, a, out=out))


def read_energy() -> float | None:
    """Return the joules that the processors have used, where the machine tells them."""
    joules = 0.0
    # One counter for each processor; with one that may not be read, the sum would be too small.
    for path in sorted(Path("/sys/class/powercap").glob("intel-rapl:?")):
        try:
            joules += int((path / "energy_uj").read_text()) / 1e6
        except (OSError, ValueError):
            return None
    return joules or None


def power_between(joules_before: float | None, joules_after: float | None, seconds: float) -> float | None:
    """Return the watts between two readings of `read_energy`; None where they tell none.

    Args:
        seconds: between the readings, above 0.
    """
    # The counters begin anew once they are full, and then tell nothing.
    if joules_before is None or joules_after is None or joules_after < joules_before:
        return None
    return (joules_after - joules_before) / seconds


def other_cpu_seconds() -> float | None:
    """Return the CPU seconds that other programs have used so far; None where the system does not tell.

    Processes that this one started are its own once they have ended, and others before.
    """
    try:
        fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    except (OSError, IndexError):
        return None
    ticks = [int(field) for field in fields]
    # user, nice, system, irq, softirq, steal: neither idle nor waiting.
    busy = sum(ticks[:3]) + sum(ticks[5:8])
    own = os.times()
    used = own.user + own.system + own.children_user + own.children_system
    return busy / os.sysconf("SC_CLK_TCK") - used
