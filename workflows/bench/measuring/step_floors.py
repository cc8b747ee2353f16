"""Computes what a step of DLRM takes on a GPU at least, part by part: arithmetic, not measured.

A part is bound by the bytes it moves in the GPU's memory or by its products, whichever takes longer; nothing
is assumed to be found in a cache. ``python -m hotset.workflows.bench.measuring.step_floors`` prints the
tables of `docs/gpu.md`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ....stats.ranking.row_bytes import row_bytes
from ....train.model.dlrm_shape import DlrmShape, dlrm_shape

NUM_TABLES, NUM_DENSE = 26, 13
"""Numbers of tables and of dense features of the Criteo logs."""
BATCH_SIZES = (2_048, 16_384, 65_536)
EMBEDDING_DIMS = (16, 64, 128)
_DISTINCT_ROWS = {2_048: 6.98, 16_384: 4.13, 65_536: 2.89}
"""Distinct rows per sample of a batch: a log of 4 million samples of the Kaggle shape, three fifths of whose
batches look up hot rows alone."""
_HALF, _FLOAT, _INT = 2, 4, 4
"""Bytes of a bfloat16, a float32 and an int32 number."""
_KERNEL_SECONDS = 2e-6
"""Time of a kernel in a recorded step, however little it does."""
_REACHED = 0.45
"""Share of the lower bound that kernels of this kind reach as a rule: 35 to 60 %."""


@dataclass(frozen=True, slots=True)
class GpuRates:
    """The ceilings of a GPU; by default those of an H200."""

    memory_bytes: float = 4.3e12
    """Bytes per second of its memory."""
    flops: float = 790e12
    """Operations per second of products in bfloat16."""
    link_bytes: float = 55e9
    """Bytes per second from pinned host memory, and as many back."""


def part_floors(
    embedding_dim: int, batch_size: int, rates: GpuRates | None = None, *, distinct_rows: float | None = None
) -> dict[str, float]:
    """Return the seconds that each part of a step takes per sample, at least.

    Args:
        embedding_dim: floats per row.
        batch_size: samples.
        rates: ceilings of the GPU.
        distinct_rows: per sample of a batch; None: those of the reference log, for three batch sizes.
    """
    rates = rates or GpuRates()
    shape = dlrm_shape("auto", NUM_DENSE, NUM_TABLES, embedding_dim)
    rows = _DISTINCT_ROWS[batch_size] if distinct_rows is None else distinct_rows
    # A sample reads a row and its slot in each table; inputs of dense layers are in half precision.
    gathered = NUM_TABLES * (_FLOAT * embedding_dim + _INT)
    inputs = _HALF * (shape.top_inputs + embedding_dim)
    row_gradients = NUM_TABLES * _FLOAT * embedding_dim
    moved = {
        # Sample numbers are read, slots of rows and lookups written.
        "decode": NUM_TABLES * (2 + _INT) + rows * (2 + 3 * _INT),
        "rows and dots": gathered + inputs,
        "rows and dots, backward": gathered + inputs + row_gradients + _HALF * embedding_dim,
        "ReLU and bias": 5 * _HALF * sum(shape.bottom[1:] + shape.top[1:-1]),
        "sum and step of rows": row_gradients + 2 * NUM_TABLES + 2 * rows * row_bytes(embedding_dim, "sgd"),
        # Weight, gradient, weight again, and its rounded copy.
        "step of dense layers": (3 * _FLOAT + _HALF) * shape.num_weights / batch_size,
    }
    seconds = {name: num_bytes / rates.memory_bytes for name, num_bytes in moved.items()}
    seconds["products"] = sum(_product_seconds(inputs, outputs, rates) for inputs, outputs in shape.layers)
    return seconds


def _product_seconds(inputs: int, outputs: int, rates: GpuRates) -> float:
    """Return the time of the three products of a layer: outputs, gradients of weights and of inputs."""
    flops = 2 * inputs * outputs / rates.flops
    return 3 * max(flops, _HALF * (inputs + outputs) / rates.memory_bytes)


def sent_bytes(batch_size: int) -> float:
    """Return the bytes per sample of the copy of a batch; rows to move come on top.

    Label, dense values, sample number of each lookup, and id and start of each distinct row.
    """
    return 1 + _FLOAT * NUM_DENSE + 2 * NUM_TABLES + _DISTINCT_ROWS[batch_size] * (_INT + 2)


def num_kernels(shape: DlrmShape) -> int:
    """Return about how many kernels a step has: five for each hidden layer, the others once or twice."""
    return 14 + 5 * (len(shape.layers) - 1)


def expected_seconds(embedding_dim: int, batch_size: int) -> float:
    """Return what a step may be expected to take per sample, by the share of lower bounds that is reached."""
    shape = dlrm_shape("auto", NUM_DENSE, NUM_TABLES, embedding_dim)
    floor = sum(part_floors(embedding_dim, batch_size).values())
    return floor / _REACHED + num_kernels(shape) * _KERNEL_SECONDS / batch_size


def hybrid_floor(embedding_dim: int, rates: GpuRates | None = None) -> float:
    """Return the seconds per sample of ``hybrid``'s vectors up, which come before its gradients down."""
    rates = rates or GpuRates()
    return 2 * NUM_TABLES * _FLOAT * embedding_dim / rates.link_bytes


def tables() -> Iterator[str]:
    """Yield the lines of both tables, in Markdown."""
    names = list(part_floors(EMBEDDING_DIMS[0], BATCH_SIZES[0]))
    yield "| dim | batch | " + " | ".join(names) + " | **lower bound** |"
    yield "| --- " * (len(names) + 3) + "|"
    for dim in EMBEDDING_DIMS:
        for batch_size in BATCH_SIZES:
            parts = part_floors(dim, batch_size)
            cells = [f"{1e9 * parts[name]:.2f}" for name in names]
            yield f"| {dim} | {batch_size:,} | " + " | ".join(cells) + f" | {1e9 * sum(parts.values()):.1f} |"
    yield ""
    yield (
        "| dim | batch | bytes sent | lower bound, M samples/s | expected, M samples/s | "
        "hybrid's lower bound, M samples/s |"
    )
    yield "| --- " * 6 + "|"
    for dim in EMBEDDING_DIMS:
        for batch_size in BATCH_SIZES:
            floor = sum(part_floors(dim, batch_size).values())
            speeds = (floor, expected_seconds(dim, batch_size), hybrid_floor(dim))
            cells = [f"{sent_bytes(batch_size):.0f}", *(f"{1e-6 / seconds:.1f}" for seconds in speeds)]
            yield f"| {dim} | {batch_size:,} | " + " | ".join(cells) + " |"


if __name__ == "__main__":
    print("\n".join(tables()))
