"""The cells of a sweep in the order in which they run: one factor at a time, presets, pairs of factors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise, product, zip_longest
from typing import Any

from ...stats.codecs.codec_names import CODEC_NAMES
from .cells import Cell

FACTORS: Mapping[str, tuple[Any, ...]] = {
    "batch_size": (128, 256, 512, 1024, 2048, 4096, 8192, 16384),
    "num_dense": (16, 64, 256, 1024),
    "num_tables": (4, 8, 16, 32, 64),
    "rows_of_table": (500, 5000, 20_000, 100_000, 300_000),
    "pooling": (1, 2, 4, 8, 16, 32),
    "embedding_dim": (8, 16, 32, 64, 128),
    "skew": (0.0, 0.8, 1.05, 1.2),
    "mlp": ((32, 32), (64, 64), (128, 128), (256, 256), (512, 512), (128,), (128, 128, 128, 128)),
    "placement": ("all-fast", "hybrid", "hybrid-dedup", "hybrid-uva", "cache", "lookahead", "fae"),
    "optimizer": ("sgd", "rowwise-adagrad", "adagrad", "adam"),
}
"""The values of each factor that are tried while the others stay as they are in `Cell`."""
_PAIRS: tuple[tuple[str, str], ...] = (
    ("num_dense", "num_tables"),
    ("batch_size", "mlp"),
    ("batch_size", "placement"),
    ("embedding_dim", "pooling"),
    ("embedding_dim", "placement"),
    ("num_tables", "embedding_dim"),
    ("rows_of_table", "embedding_dim"),
    ("batch_size", "num_tables"),
    ("skew", "placement"),
    ("pooling", "placement"),
)
"""Pairs of factors, dense against sparse first."""
_RANKED_PAIRS: tuple[tuple[str, str], ...] = (
    ("batch_size", "codec"),
    ("embedding_dim", "codec"),
    ("batch_size", "mlp"),
    ("num_tables", "embedding_dim"),
    ("placement", "embedding_dim"),
    ("skew", "batch_size"),
)
"""Pairs of factors of cells on several ranks."""
_LEAST_RANK_BATCH = 64
"""Samples of a batch that each rank has at least."""
_MOST_WORK = 4e10
"""Operations and bytes of a step beyond which a cell of a pair is left out: it would take seconds."""

_PRESETS: Mapping[str, Cell] = {
    "criteo-kaggle": Cell(
        num_dense=13, num_tables=26, rows_of_table=1_300_000, embedding_dim=16,
        bottom_mlp=(512, 256, 64), top_mlp=(512, 256),
    ),
    "criteo-terabyte": Cell(
        num_dense=13, num_tables=26, rows_of_table=7_000_000, embedding_dim=64,
        bottom_mlp=(512, 256), top_mlp=(512, 512, 256),
    ),
    "M1": Cell(
        batch_size=256, num_dense=800, num_tables=30, rows_of_table=5_700_000, pooling=28, embedding_dim=64,
        bottom_mlp=(512,), top_mlp=(512, 512, 512),
    ),
    "M2": Cell(
        batch_size=256, num_dense=504, num_tables=13, rows_of_table=7_300_000, pooling=17, embedding_dim=64,
        bottom_mlp=(1024,), top_mlp=(1024, 1024, 512),
    ),
    "M3": Cell(
        batch_size=256, num_dense=809, num_tables=127, rows_of_table=3_700_000, pooling=32, embedding_dim=64,
        bottom_mlp=(512,), top_mlp=(512, 256, 512, 256, 512),
    ),
    "RM1": Cell(
        batch_size=256, num_dense=256, num_tables=8, rows_of_table=4_000_000, pooling=80, embedding_dim=32,
        bottom_mlp=(128, 64), top_mlp=(256, 64),
    ),
    "RM2": Cell(
        batch_size=256, num_dense=256, num_tables=32, rows_of_table=500_000, pooling=120, embedding_dim=64,
        bottom_mlp=(256, 128), top_mlp=(128, 64),
    ),
    "RM3": Cell(
        batch_size=256, num_dense=2560, num_tables=10, rows_of_table=2_000_000, pooling=20, embedding_dim=32,
        bottom_mlp=(1024, 256), top_mlp=(512, 256),
    ),
}  # fmt: skip
"""Models of the literature. M1 to M3: Acun et al., HPCA 2021, as others cite them, lookups cut at 32; RM1 to
RM3: DeepRecSys. Dense features of RM1 and RM2, and the top of all, are the nearest that a DLRM here has."""


def factors_of(num_ranks: int) -> Mapping[str, tuple[Any, ...]]:
    """Return the factors of cells on so many ranks: those of one process, and the codec of several."""
    return FACTORS if num_ranks == 1 else {**FACTORS, "codec": CODEC_NAMES}


def with_factor(cell: Cell, factor: str, value: Any) -> Cell:
    """Return the cell with one factor set; ``mlp`` stands for the hidden layers of both MLPs."""
    if factor == "mlp":
        return replace(cell, bottom_mlp=value, top_mlp=value)
    return replace(cell, **{factor: value})


def value_of(cell: Cell, factor: str) -> Any:
    """Return the value of a factor."""
    return cell.top_mlp if factor == "mlp" else getattr(cell, factor)


def presets(most_bytes: int) -> list[Cell]:
    """Return the presets, their tables scaled down to at most ``most_bytes`` of rows together."""
    found = []
    for name, cell in _PRESETS.items():
        scale = min(1.0, most_bytes / cell.bytes_of_rows)
        rows = max(int(cell.rows_of_table * scale), 1)
        found.append(replace(cell, preset=name, row_scale=rows / cell.rows_of_table, rows_of_table=rows))
    return found


def single_factors(base: Cell | None = None) -> Iterator[Cell]:
    """Cells that differ from the base in one factor, those of all factors in turn."""
    base = base or Cell()
    factors = factors_of(base.ranks)
    longest = max(len(values) for values in factors.values())
    # Round by round, so that a sweep that ends early has some values of every factor.
    for number in range(longest):
        for factor, values in factors.items():
            if number < len(values):
                yield with_factor(base, factor, values[number])


def pairs(base: Cell | None = None) -> Iterator[Cell]:
    """Cells that differ from the base in two factors, those of all pairs in turn."""
    base = base or Cell()
    factors = factors_of(base.ranks)
    queues = []
    for first, second in _PAIRS if base.ranks == 1 else _RANKED_PAIRS:
        cells = [
            with_factor(with_factor(base, first, one), second, other)
            for one, other in product(factors[first], factors[second])
        ]
        # The keys are as good as random, so that a sweep that ends early has cells from everywhere.
        queues.append(sorted((cell for cell in cells if _work(cell) < _MOST_WORK), key=lambda cell: cell.key))
    for number in range(max(len(queue) for queue in queues)):
        yield from (queue[number] for queue in queues if number < len(queue))


def ranked(num_ranks: int) -> Iterator[Cell]:
    """Cells on several ranks: the base, one factor at a time, pairs."""
    base = Cell(ranks=num_ranks)
    for cell in (base, *single_factors(base), *pairs(base)):
        # Ranks with hardly a sample wait for each other and do nothing else.
        if cell.batch_size >= num_ranks * _LEAST_RANK_BATCH:
            yield cell


def grid(most_bytes: int, num_ranks: int = 1) -> list[Cell]:
    """Return all cells, none twice, in the order in which they run.

    Args:
        most_bytes: of the rows of one cell.
        num_ranks: ranks that cells may have; more than one: every third cell has so many.
    """
    # Factors at their base values give the same cells again, which are kept at their first place.
    alone = _fitting([Cell(), *single_factors(), *presets(most_bytes), *pairs()], most_bytes)
    if num_ranks == 1:
        return alone
    # A sweep that ends early has cells of either kind.
    among = _fitting(ranked(num_ranks), most_bytes)
    rows = zip_longest(alone[::2], alone[1::2], among)
    return [cell for row in rows for cell in row if cell is not None]


def _fitting(cells: Iterable[Cell], most_bytes: int) -> list[Cell]:
    """Return the cells whose rows fit, each once."""
    return list({cell.key: cell for cell in cells if cell.bytes_of_rows <= most_bytes}.values())


def _work(cell: Cell) -> float:
    """Return about the operations of a step, a byte of a row counted as many."""
    widths = (cell.num_dense, *cell.bottom_mlp, cell.embedding_dim)
    vectors = cell.num_tables + 1
    top = (vectors * (vectors - 1) // 2 + cell.embedding_dim, *cell.top_mlp, 1)
    products = sum(a * b for layers in (widths, top) for a, b in pairwise(layers))
    interaction = vectors**2 * cell.embedding_dim
    # A multiplication with its sum is two operations, and the backward pass has twice as many.
    return 6.0 * cell.batch_size * (products + interaction) + 50.0 * cell.lookups * cell.embedding_dim
