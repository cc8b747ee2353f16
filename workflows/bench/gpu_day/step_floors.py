"""Compute lower bounds of the parts of a step on a GPU.

They are arithmetic, not measured. A part is bound by the bytes it moves in the GPU's memory or by its
products, whichever takes longer; nothing is assumed to be found in a cache. ``python -m
hotset.workflows.bench.gpu_day.step_floors`` prints the parts and the table of `docs/gpu.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ....stats.ranking.row_bytes import row_bytes
from ....train.model.shapes import DlrmShape, dlrm_shape

NUM_TABLES, NUM_DENSE = 26, 13
"""Numbers of tables and of dense features of the Criteo logs."""
BATCH_SIZES = (2_048, 16_384, 65_536)
EMBEDDING_DIMS = (16, 64, 128)
_DISTINCT_ROWS = {2_048: 6.98, 16_384: 4.13, 65_536: 2.89}
"""Distinct rows per sample of a batch: a log of 4 million samples of the Kaggle shape, three fifths of whose
batches look up hot rows alone."""
_PADDED_DENSE = 16
"""Dense values as the first product reads them."""
_HALF, _FLOAT, _INT = 2, 4, 4
"""Bytes of a bfloat16, a float32 and an int32 number."""
MOVED_ROWS = (0.63, 1.97)
"""Rows per sample that look-ahead loads, and that it writes back: the plan of 2 million samples of the
Kaggle shape with 1.5 % of their rows on the device, in batches of 2,048 (`placements-plan-2m.json` among the
results). Larger batches share more of them."""
LAST = "last layer, loss, dense values"
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
        # Only backward: forward they are part of the product. Gradient and outputs are read, one is written.
        "ReLU and bias": 3 * _HALF * sum(shape.bottom[1:] + shape.top[1:-1]),
        "sum and step of rows": row_gradients + 2 * NUM_TABLES + 2 * rows * row_bytes(embedding_dim, "sgd"),
        # The last hidden layer is read, its gradient written; dense values are rounded, with zeros appended.
        LAST: 2 * _HALF * shape.top[-2] + 1 + _FLOAT * NUM_DENSE + _HALF * _PADDED_DENSE,
        # Weight, gradient, weight again, and its rounded copy.
        "step of dense layers": (3 * _FLOAT + _HALF) * shape.num_weights / batch_size,
    }
    seconds = {name: num_bytes / rates.memory_bytes for name, num_bytes in moved.items()}
    # The product of the last layer is one of vectors, and part of what reads its inputs.
    hidden = shape.layers[:-1]
    seconds["products"] = sum(_product_seconds(inputs, outputs, rates) for inputs, outputs in hidden)
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


def part_kernels(shape: DlrmShape) -> dict[str, int]:
    """Return how many kernels each part of a step has, with Triton's kernels and products in bfloat16."""
    num_hidden = len(shape.layers) - 1
    return {
        "decode": 2,
        "rows and dots": 1,
        "rows and dots, backward": 1,
        "ReLU and bias": 2 * num_hidden,
        "sum and step of rows": 3,
        LAST: 4,
        "step of dense layers": 1,
        # Outputs, gradient of weights, and gradient of inputs but for dense values.
        "products": 3 * num_hidden - 1,
    }


def expected_parts(embedding_dim: int, batch_size: int) -> dict[str, float]:
    """Return what each part may be expected to take per sample, in seconds: by the share of lower bounds that
    is reached as a rule, and the time that a kernel takes however little it does."""
    kernels = part_kernels(dlrm_shape("auto", NUM_DENSE, NUM_TABLES, embedding_dim))
    floors = part_floors(embedding_dim, batch_size)
    return {
        name: floor / _REACHED + kernels[name] * _KERNEL_SECONDS / batch_size
        for name, floor in floors.items()
    }


def expected_seconds(embedding_dim: int, batch_size: int) -> float:
    """Return what a step may be expected to take per sample."""
    return sum(expected_parts(embedding_dim, batch_size).values())


def moves_floor(embedding_dim: int, rates: GpuRates | None = None) -> float:
    """Return the seconds per sample of the rows that look-ahead moves, both directions in parallel."""
    rates = rates or GpuRates()
    return max(MOVED_ROWS) * row_bytes(embedding_dim, "sgd") / rates.link_bytes


def hybrid_floor(embedding_dim: int, rates: GpuRates | None = None) -> float:
    """Return the seconds per sample of ``hybrid``'s vectors up, which precede its gradients down."""
    rates = rates or GpuRates()
    return 2 * NUM_TABLES * _FLOAT * embedding_dim / rates.link_bytes


def tables() -> Iterator[str]:
    """Yield the lines of all tables: the parts of a step, and whole steps."""
    names = list(part_floors(EMBEDDING_DIMS[0], BATCH_SIZES[0]))
    yield from _table_of_parts(names, "**lower bound**", part_floors)
    yield ""
    yield from _table_of_parts(names, "**expected**", expected_parts)
    yield ""
    yield from summary()


def summary() -> Iterator[str]:
    """Yield the lines of the table of whole steps, in Markdown."""
    yield (
        "| dim | batch | bytes sent | copy of the batch, ns | rows moved, ns | lower bound, M samples/s | "
        "expected, M samples/s | hybrid's lower bound, M samples/s |"
    )
    yield "| --- " * 8 + "|"
    for dim in EMBEDDING_DIMS:
        for batch_size in BATCH_SIZES:
            sent = sent_bytes(batch_size)
            floor = sum(part_floors(dim, batch_size).values())
            speeds = (floor, expected_seconds(dim, batch_size), hybrid_floor(dim))
            beside = (sent / GpuRates().link_bytes, moves_floor(dim))
            cells = [f"{sent:.0f}", *(f"{1e9 * seconds:.1f}" for seconds in beside)]
            cells += [f"{1e-6 / seconds:.1f}" for seconds in speeds]
            yield f"| {dim} | {batch_size:,} | " + " | ".join(cells) + " |"


def _table_of_parts(
    names: Sequence[str], of_all: str, parts_of: Callable[[int, int], dict[str, float]]
) -> Iterator[str]:
    """Yield the lines of a table of nanoseconds per sample."""
    yield "| dim | batch | " + " | ".join(names) + f" | {of_all} |"
    yield "| --- " * (len(names) + 3) + "|"
    for dim in EMBEDDING_DIMS:
        for batch_size in BATCH_SIZES:
            parts = parts_of(dim, batch_size)
            cells = [f"{1e9 * parts[name]:.2f}" for name in names]
            yield f"| {dim} | {batch_size:,} | " + " | ".join(cells) + f" | {1e9 * sum(parts.values()):.1f} |"


if __name__ == "__main__":
    print("\n".join(tables()))
