"""The tables that the kernels draw from, built from a profile: integer shares, exact marginals.

The class shares of a profile are rounded and were fitted to a part of a log, so the marginals they imply
are a little off. Raking each column's (class, bucket) matrix to the profile's own coverage corrects that: the
drawn marginals are those of the profile whatever the dependence, for every scale.

The click model: each category has a nearly normal effect and a hidden vector, both hashed from its table and
rank; a logit is the sum of the effects (full in the head of a table, weaker down the tail), of dot products
of hidden vectors for a few pairs of small tables, and of a slope and a kink for each integer. The planted
logit itself reaches an AUC of about 0.82 on the Kaggle profile (a test draws it).
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...stats.id_tables import mix64_pair
from .generate_kernel import COUPLING_BITS, GUIDE_BITS, NUM_SIGMOID, World, draw_samples
from .profile import Column, Profile, load_profile
from .sampling import log2, rake

MIN_NUM_ROWS = 100
"""A scale never shrinks a table below this many rows."""

_ONE = 1 << 32
_NUM_RAKES = 500
_LEAST_CELL = 0.1  # thousandths: raking needs positive cells to reach any marginals
_RANKS_PER_OCTAVE = 16
_MAX_SLOPE = (1 << 44) - 1
_WORLD_SEED = 0x686F74736574
_CALIBRATION_SEED = 0x63616C69
_NUM_CALIBRATION = 1 << 16
_MAIN_DEVIATION = 147.8
_PAIR_DEVIATION = 170.0


def scaled_num_rows(num_rows: int, scale: float) -> int:
    """Return a table's rows when cardinalities are divided by ``scale``; small tables keep theirs."""
    return min(num_rows, max(MIN_NUM_ROWS, int(num_rows / scale)))


@functools.lru_cache(maxsize=4)
def world_of(profile: str, scale: float = 1) -> World:
    """Return the tables of the profile called ``profile``, cardinalities divided by ``scale``."""
    return compile_world(load_profile(profile), scale)


def compile_world(profile: Profile, scale: float) -> World:
    """Build the tables; the intercept is fitted last, so that samples click at the profile's rate."""
    columns = profile.columns
    # Each table is padded to the longest column, so that the kernel indexes plain arrays.
    bucket_starts = _stack([_bucket_starts(column)[:-1] for column in columns], _ONE)
    drawn = [_class_buckets(profile, column) for column in columns]
    pieces = [_pieces(profile, column, scale) for column in columns]
    masks = _stack([_masks(profile, group.patterns) for group in profile.missing], 0)
    group_rows = [_rows_to_u(_raked_groups(profile, index)) for index in range(len(profile.missing))]
    names = [column.name for column in columns]
    pairs = [(names.index(left), names.index(right)) for left, right, _ in profile.click.pairs]
    # Shares become unsigned integers, which a random number of 64 bits is compared with.
    world = World(
        class_ends=_rows_to_u(profile.class_weights[None, :])[0],
        missing_ends=_stack(group_rows, _ONE),
        missing_masks=masks,
        bucket_ends=np.ascontiguousarray(_stack([ends for ends, _ in drawn], _ONE).swapaxes(0, 1)),
        bucket_starts=bucket_starts,
        bucket_slopes=np.ascontiguousarray(_stack([slopes for _, slopes in drawn], 0).swapaxes(0, 1)),
        piece_starts=np.concatenate([starts for starts, _, _, _ in pieces]),
        piece_ranks=np.concatenate([ranks for _, ranks, _, _ in pieces]),
        piece_slopes=np.concatenate([slopes for _, _, slopes, _ in pieces]),
        piece_effects=np.concatenate([effects for _, _, _, effects in pieces]),
        guide=_guides([starts for starts, _, _, _ in pieces]),
        groups=np.array([column.group or 0 for column in columns], np.int64),
        couplings=np.array([round(column.coupling * (1 << COUPLING_BITS)) for column in columns], np.uint64),
        smallest=np.array([column.smallest for column in columns if column.is_dense], np.int64),
        keys=np.array([_key(number) for number in range(len(columns))], np.uint64),
        missing_effects=np.array([_missing_effect(profile, column) for column in columns], np.int64),
        pairs=np.array(pairs, np.int64).reshape(-1, 2),
        pair_weights=np.array(
            [round(weight * 256 * 65536 / _PAIR_DEVIATION) for _, _, weight in profile.click.pairs],
            np.int64,
        ),
        sigmoid=sigmoid_table(),
        intercept=0,
    )
    # The intercept is the one number that depends on all others: it sets the mean of the logits.
    return world._replace(intercept=_fitted_intercept(world, profile.click.rate))


def sigmoid_table() -> NDArray[np.uint64]:
    """Return the click probability in units of 2^-32 at logits of -NUM_SIGMOID / 512 nat and 1/256 more each.

    Powers of exp(1/256) by repeated multiplication, so equal everywhere; off by at most 1e-12.
    """
    step = 1.0039138893383475734436
    powers = np.multiply.accumulate(np.full(NUM_SIGMOID // 2, step))
    above = powers / (1.0 + powers)
    below = 1.0 / (1.0 + powers)
    return _to_u(np.concatenate([below[::-1], [0.5], above[:-1]]))


def _fitted_intercept(world: World, click_rate: float) -> int:
    """Find the intercept, in 1/256, with which samples of a separate stream click at ``click_rate``."""
    ranks = np.empty((_NUM_CALIBRATION, world.groups.shape[0]), np.int64)
    logits = np.empty(_NUM_CALIBRATION, np.int64)
    labels = np.empty(_NUM_CALIBRATION, np.uint8)
    draw_samples(world, np.uint64(_CALIBRATION_SEED), 0, ranks, logits, labels)

    # Bisection: the expected clicks grow with the intercept.
    wanted = int(click_rate * _ONE) * _NUM_CALIBRATION
    low, high = -NUM_SIGMOID // 2, NUM_SIGMOID // 2
    while high - low > 1:
        middle = (low + high) // 2
        entries = np.clip(logits + middle + NUM_SIGMOID // 2, 0, NUM_SIGMOID - 1)
        if int(world.sigmoid[entries].sum()) > wanted:
            high = middle
        else:
            low = middle
    return low


def _bucket_starts(column: Column) -> NDArray[np.uint64]:
    """Return (num_buckets + 1,): u at which each bucket of ``column`` begins, then 2^32."""
    num_values = column.present.num_values
    edges = np.concatenate([[0], column.edges, [num_values]]).astype(np.int64)
    return _to_u(column.present.at(num_values, edges))


def _class_buckets(profile: Profile, column: Column) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return ends (num_classes, num_buckets + 1) and slopes (num_classes, num_buckets) of the buckets."""
    # Rake the shares to the marginals: of classes where the column is present, and of its buckets.
    starts = _bucket_starts(column)
    widths = np.diff(starts.astype(np.int64))
    present = profile.class_weights * (1.0 - _missing_by_class(profile, column.name))
    matrix = np.maximum(column.class_shares, _LEAST_CELL)
    total = np.add.accumulate(present)[-1]
    rake(matrix, present / total, widths / _ONE, _NUM_RAKES)

    # A slope maps a bucket's width in the class's u to its width in the column's. Shifted by 31 and doubled:
    # a width of 2^32, shifted by 32, would not fit in 64 bits.
    ends = _rows_to_u(matrix)
    ends = np.concatenate([np.zeros((ends.shape[0], 1), np.uint64), ends], axis=1)
    class_widths = np.diff(ends.astype(np.int64), axis=1)
    slopes = (
        (widths.astype(np.uint64) << np.uint64(31))
        // np.maximum(class_widths, 1).astype(np.uint64)
        * np.uint64(2)
    )
    return ends, np.minimum(slopes, np.uint64(_MAX_SLOPE))


def _missing_by_class(profile: Profile, name: str) -> NDArray[np.float64]:
    """Return (num_classes,): how often column ``name`` is missing in each class."""
    shares = np.zeros_like(profile.class_weights)
    for index, group in enumerate(profile.missing):
        raked = _raked_groups(profile, index)
        for number, pattern in enumerate(group.patterns):
            if name in pattern:
                shares = shares + raked[:, number] / profile.class_weights
    return shares


def _raked_groups(profile: Profile, index: int) -> NDArray[np.float64]:
    """Return (num_classes, num_patterns): joint shares with the profile's own marginals."""
    group = profile.missing[index]
    matrix = np.maximum(group.class_shares, _LEAST_CELL)
    rake(matrix, profile.class_weights, group.shares, _NUM_RAKES)
    return matrix


def _pieces(
    profile: Profile, column: Column, scale: float
) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.uint64], NDArray[np.int64]]:
    """Return start, first rank, slope and effect of each piece; the last entry only closes the column."""
    ranks = piece_ranks(column, scale)
    starts = _to_u(column.present.at(int(ranks[-1]), ranks))
    widths = np.maximum(np.diff(starts.astype(np.int64)), 1).astype(np.uint64)
    slopes = (np.diff(ranks).astype(np.uint64) << np.uint64(32)) // widths
    effects = (
        _dense_effects(profile, column, ranks) if column.is_dense else _amplitudes(profile, column, ranks)
    )
    return starts, ranks, np.append(slopes, np.uint64(0)), effects


def piece_ranks(column: Column, scale: float) -> NDArray[np.int64]:
    """Return the first ranks of a column's pieces, then the number of its values without missing.

    Each of the first 32 ranks is a piece, then every sixteenth of an octave, and each knot of the profile
    where the table keeps its rows.
    """
    num_values = column.present.num_values
    if not column.is_dense:
        # A missing value has a row of its own, which is none of the values.
        has_missing = int(column.missing_share > 0)
        num_values = scaled_num_rows(num_values + has_missing, scale) - has_missing
    # Every rank up to some, then ever wider steps: a few hundred ranks describe millions of values.
    octaves = np.arange(_RANKS_PER_OCTAVE, 2 * _RANKS_PER_OCTAVE)[None, :] << np.arange(1, 30)[:, None]
    parts = [np.arange(2 * _RANKS_PER_OCTAVE), octaves.ravel(), np.array([num_values])]
    if num_values == column.present.num_values:
        parts.append(column.present.ranks.astype(np.int64))
    ranks = np.unique(np.concatenate(parts).astype(np.int64))
    return ranks[ranks <= num_values]


def _amplitudes(profile: Profile, column: Column, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the amplitudes of effects, times 2^16: full in the head, less for each octave beyond it."""
    click = profile.click
    octaves = np.maximum(log2(ranks.astype(np.float64) + 1.0) - click.head_octaves, 0.0)
    decay = 1.0 / (1.0 + click.decay * octaves)
    return _to_fixed(click.sparse.get(column.name, 0.0) * decay)


def _dense_effects(profile: Profile, column: Column, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return effects of dense values: a slope per octave of 1 + max(x, 0), and a kink at the middle."""
    model = profile.click.dense[column.name]
    octaves = log2(np.maximum(ranks + column.smallest, 0).astype(np.float64) + 1.0) - model.middle
    nats = model.slope * octaves + model.kink * np.abs(octaves)
    effects: NDArray[np.int64] = np.rint(nats * 256.0).astype(np.int64)
    return effects


def _missing_effect(profile: Profile, column: Column) -> int:
    if column.is_dense:
        return round(float(profile.click.dense[column.name].missing) * 256)
    return int(_to_fixed(np.array([profile.click.sparse.get(column.name, 0.0)]))[0])


def _to_fixed(nats: NDArray[np.float64]) -> NDArray[np.int64]:
    fixed: NDArray[np.int64] = np.rint(nats * (256.0 * 65536.0 / _MAIN_DEVIATION)).astype(np.int64)
    return fixed


def _masks(profile: Profile, patterns: tuple[tuple[str, ...], ...]) -> NDArray[np.uint64]:
    numbers = {column.name: number for number, column in enumerate(profile.columns)}
    return np.array([sum(1 << numbers[name] for name in pattern) for pattern in patterns], np.uint64)


def _guides(starts: list[NDArray[np.uint64]]) -> NDArray[np.int32]:
    """Return (F, 2^GUIDE_BITS): the piece, over all columns, that holds the least u with these bits."""
    leading = np.arange(1 << GUIDE_BITS, dtype=np.uint64) << np.uint64(32 - GUIDE_BITS)
    guides = []
    first = 0
    for column_starts in starts:
        guides.append(first + np.searchsorted(column_starts, leading, side="right") - 1)
        first += column_starts.shape[0]
    return np.array(guides, np.int32)


def _key(number: int) -> np.uint64:
    """Return the key of column ``number``: of the world's own seed, so equal for every log."""
    return np.uint64(mix64_pair(np.uint64(_WORLD_SEED), np.uint64(number)))


def _to_u(shares: NDArray[np.float64]) -> NDArray[np.uint64]:
    """Return shares in [0, 1] in units of 2^-32, rounded down."""
    return np.floor(shares * _ONE).astype(np.uint64)


def _rows_to_u(matrix: NDArray[np.float64]) -> NDArray[np.uint64]:
    """Return running shares of each row in units of 2^-32; the last is exactly 2^32."""
    running = np.add.accumulate(matrix, axis=1)
    ends = _to_u(running / np.maximum(running[:, -1:], 1e-300))  # a row of zeros is never drawn
    ends[:, -1] = _ONE
    return ends


def _stack(arrays: list[NDArray[Any]], filler: int) -> NDArray[np.uint64]:
    """Stack arrays that differ in their last axis, the short ones filled up with ``filler``."""
    longest = max(array.shape[-1] for array in arrays)
    filled = [
        np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, longest - array.shape[-1])], constant_values=filler)
        for array in arrays
    ]
    return np.stack(filled).astype(np.uint64)
