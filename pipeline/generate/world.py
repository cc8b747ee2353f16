"""Profiles of generated logs, and the tables that kernels draw from.

A profile is a small JSON file that holds no sample and no raw value, only shares:

    columns   for each field the share of its k most frequent values ("coverage", interpolated linearly in
              log k; missing is one of the values), and for the dense ones the same over values in order
    missing   groups of columns that are missing together, and how often
    classes   the dependence: a mixture of latent classes ("cold visitor", "head of everything", ...). For
              each class the shares, in thousandths, of each missing pattern and of each bucket of ranks
    coupling  columns of one group, within a class, share one uniform variable with this probability
    click     the planted model in nats: the ``rate`` of clicks; the amplitude of each ``sparse`` column,
              full in the first ``head_octaves`` of ranks and beyond them less by 1 / (1 + decay * octaves);
              for each ``dense`` column [slope per octave of 1 + max(x, 0), further effect per octave of
              distance from the middle, the middle in octaves, effect of a missing value]; and ``pairs``:
              two sparse columns that interact, and the deviation of their effect

A profile of histories has other keys: see ``histories``. The profile "criteo-kaggle" was fitted once, by EM,
to published aggregates of the whole log and a rank-coded part of it.

The class shares are rounded and were fitted to a part of a log, so their marginals are a little off. Raking
each column's (class, bucket) matrix to the profile's coverage corrects that: the drawn marginals are those of
the profile for any dependence and scale.

In the click model each category has a nearly normal effect and a hidden vector, both hashed from its table
and rank. A logit is the sum of the effects (full in the head of a table, weaker in the tail), of dot products
of hidden vectors for a few pairs of small tables, and of a slope and a kink for each integer. The planted
logit itself reaches an AUC of about 0.82 on the Kaggle profile (a test draws it).
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...stats.id_tables import mix64_pair
from ..errors import ConfigError
from .kernel import COUPLING_BITS, GUIDE_BITS, NUM_SIGMOID, World, draw_samples, interpolate, log2, rake

PROFILES = Path(__file__).parent / "profiles"


@dataclass(frozen=True, slots=True)
class Coverage:
    """The share of lookups that the first k values get."""

    ranks: NDArray[np.float64]
    """(num_knots,); each k. The last is the number of distinct values."""

    shares: NDArray[np.float64]
    """(num_knots,), in [0, 1], the last 1."""

    @property
    def num_values(self) -> int:
        """Number of distinct values."""
        return int(self.ranks[-1])

    def at(self, num_values: int, ranks: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the share of the first ``ranks`` of ``num_values`` values.

        Ranks are stretched on a log scale, so the first value keeps its share, the last one its place,
        and a given fraction of log k gets the share it had before.

        Args:
            ranks: (num_ranks,), in [0, num_values]; 0 gives 0.
        """
        positive = np.maximum(ranks, 1).astype(np.float64)
        stretch = _log2_of(self.num_values) / _log2_of(num_values) if num_values > 1 else 1.0
        full_ranks = np.where(ranks == num_values, _log2_of(self.num_values), log2(positive) * stretch)
        shares = interpolate(full_ranks, log2(self.ranks), self.shares)
        return np.where(ranks <= 0, 0.0, shares)


@dataclass(frozen=True, slots=True)
class Column:
    """One field of a profile; values are numbered by rank or size."""

    name: str
    is_dense: bool
    smallest: int
    """The integer at rank 0 of a dense column; 0 for sparse ones."""
    num_rows: int
    """Distinct values of a sparse column, missing among them; range of the values of a dense one."""
    present: Coverage
    """Coverage of the values that are not missing, among the fields that are not missing."""
    missing_share: float
    edges: NDArray[np.int64]
    """(num_buckets - 1,); ranks at which a new bucket begins."""
    class_shares: NDArray[np.float64]
    """(num_classes, num_buckets); unnormalized share of each bucket, where not missing."""
    group: int | None
    """Number of the group of columns it is coupled with, or None."""
    coupling: float
    """Probability of drawing from the group's variable rather than its own, in [0, 1]."""


@dataclass(frozen=True, slots=True)
class MissingGroup:
    """Columns whose absence is drawn together: one of a few patterns."""

    patterns: tuple[tuple[str, ...], ...]
    """The columns missing in each pattern."""
    shares: NDArray[np.float64]
    """(num_patterns,), summing to 1."""
    class_shares: NDArray[np.float64]
    """(num_classes, num_patterns), unnormalized."""


@dataclass(frozen=True, slots=True)
class Profile:
    """A profile, parsed from its file."""

    columns: tuple[Column, ...]
    missing: tuple[MissingGroup, ...]
    class_weights: NDArray[np.float64]
    """(num_classes,), summing to 1."""
    click: dict[str, Any]
    """The planted click model, as the file has it."""


def profile_names() -> list[str]:
    """Return the names of all profiles."""
    return sorted(path.stem for path in PROFILES.glob("*.json"))


def profile_facts(name: str) -> dict[str, Any]:
    """Read a profile's file; raise ConfigError where there is none."""
    if name not in profile_names():
        raise ConfigError(f"no profile {name!r}", hint=f"use one of {', '.join(profile_names())}")
    facts: dict[str, Any] = json.loads((PROFILES / f"{name}.json").read_text())
    return facts


@functools.lru_cache(maxsize=4)
def load_profile(name: str) -> Profile:
    """Read a profile of Criteo's format; raises ConfigError."""
    return parse_profile(profile_facts(name))


def parse_profile(facts: dict[str, Any]) -> Profile:
    """Parse the JSON object ``facts`` of a profile."""
    missing = tuple(
        MissingGroup(
            patterns=tuple(tuple(pattern) for pattern in group["patterns"]),
            shares=_normalized(group["shares"]),
            class_shares=np.array(group["class_shares"], np.float64),
        )
        for group in facts["missing"]
    )
    # A column's share of missing values is the sum over the patterns that it is missing in.
    missing_share = _missing_shares(missing)
    columns = tuple(
        _column(column, is_dense, missing_share.get(column["name"], 0.0))
        for is_dense, kind in ((True, "dense"), (False, "sparse"))
        for column in facts[kind]
    )
    weights = _normalized(facts["class_weights"])
    return Profile(columns, missing, weights, facts["click"])


def without_missing(
    ranks: list[int], shares: list[float], missing_rank: int, missing_share: float
) -> Coverage:
    """Remove the missing value from a coverage that counts it.

    Knots before its rank stay; those after it lose one value and its share.

    Args:
        ranks: k, ascending from 1.
        shares: shares of the first k values, missing being one of them.
        missing_rank: rank of missing among the values, 0 = most frequent.
        missing_share: of all fields, in [0, 1).
    """
    # Ranks after the missing value move up by one, and lose its share.
    kept = [
        (rank - 1, max(share - missing_share, 0.0)) if rank > missing_rank else (rank, share)
        for rank, share in zip(ranks, shares, strict=True)
        if rank > 1 or missing_rank > 0
    ]
    return _coverage(kept)


def _coverage(knots: list[tuple[int, float]]) -> Coverage:
    # Shares are divided by the last one, so that all values together have 1.
    scale = knots[-1][1]
    return Coverage(
        np.array([rank for rank, _ in knots], np.float64),
        np.array([share / scale for _, share in knots], np.float64),
    )


def _column(facts: dict[str, Any], is_dense: bool, missing_share: float) -> Column:
    # The curve of coverage: shares of the lookups by number of the most frequent values.
    ranks = [int(rank) for rank in facts["coverage"]]
    shares = [float(share) for share in facts["coverage"].values()]
    if "missing_rank" in facts:
        present = without_missing(ranks, shares, facts["missing_rank"], missing_share)
    else:
        present = _coverage(list(zip(ranks, shares, strict=True)))
    return Column(
        name=facts["name"],
        is_dense=is_dense,
        smallest=facts.get("smallest", 0),
        num_rows=ranks[-1],
        present=present,
        missing_share=missing_share,
        edges=np.array(facts["edges"], np.int64),
        class_shares=np.array(facts["class_shares"], np.float64),
        group=facts.get("group"),
        coupling=facts.get("coupling", 0.0),
    )


def _missing_shares(groups: tuple[MissingGroup, ...]) -> dict[str, float]:
    found: dict[str, float] = {}
    for group in groups:
        for pattern, share in zip(group.patterns, group.shares.tolist(), strict=True):
            for name in pattern:
                found[name] = found.get(name, 0.0) + share
    return found


def _normalized(shares: list[float]) -> NDArray[np.float64]:
    total = 0.0
    for share in shares:  # one after another: np.sum adds in another order
        total += share
    return np.array(shares, np.float64) / total


def _log2_of(value: int) -> float:
    return float(log2(np.array([value], np.float64))[0])


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
    """Return a table's rows at a scale; small tables keep theirs."""
    return min(num_rows, max(MIN_NUM_ROWS, int(num_rows / scale)))


@functools.lru_cache(maxsize=4)
def world_of(profile: str, scale: float = 1) -> World:
    """Return the tables of the profile called ``profile``, cardinalities divided by ``scale``."""
    return compile_world(load_profile(profile), scale)


def compile_world(profile: Profile, scale: float) -> World:
    """Build the tables that kernels draw from."""
    columns = profile.columns
    # Each table is padded to the longest column, so that the kernel indexes plain arrays.
    bucket_starts = _stack([_bucket_starts(column)[:-1] for column in columns], _ONE)
    drawn = [_class_buckets(profile, column) for column in columns]
    pieces = [_pieces(profile, column, scale) for column in columns]
    masks = _stack([_masks(profile, group.patterns) for group in profile.missing], 0)
    group_rows = [_rows_to_u(_raked_groups(profile, index)) for index in range(len(profile.missing))]
    names = [column.name for column in columns]
    pairs = [(names.index(left), names.index(right)) for left, right, _ in profile.click["pairs"]]
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
            [round(weight * 256 * 65536 / _PAIR_DEVIATION) for _, _, weight in profile.click["pairs"]],
            np.int64,
        ),
        sigmoid=sigmoid_table(),
        intercept=0,
    )
    # The intercept is the one number that depends on all others: it sets the mean of the logits.
    return world._replace(intercept=_fitted_intercept(world, profile.click["rate"]))


def sigmoid_table() -> NDArray[np.uint64]:
    """Return click probabilities in u, from a logit of -NUM_SIGMOID / 512.

    Powers of exp(1/256) by repeated multiplication, so equal everywhere; off by at most 1e-12.
    """
    step = 1.0039138893383475734436
    powers = np.multiply.accumulate(np.full(NUM_SIGMOID // 2, step))
    above = powers / (1.0 + powers)
    below = 1.0 / (1.0 + powers)
    return _to_u(np.concatenate([below[::-1], [0.5], above[:-1]]))


def _fitted_intercept(world: World, click_rate: float) -> int:
    """Find the intercept, in 1/256, with which samples click at ``click_rate``."""
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
    """Return (num_buckets + 1,) u where buckets begin, then 2^32."""
    num_values = column.present.num_values
    edges = np.concatenate([[0], column.edges, [num_values]]).astype(np.int64)
    return _to_u(column.present.at(num_values, edges))


def _class_buckets(profile: Profile, column: Column) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return ends, (K, B + 1), and slopes, (K, B), of buckets."""
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
    """Return starts, first ranks, slopes and effects of a column's pieces."""
    ranks = piece_ranks(column, scale)
    starts = _to_u(column.present.at(int(ranks[-1]), ranks))
    widths = np.maximum(np.diff(starts.astype(np.int64)), 1).astype(np.uint64)
    slopes = (np.diff(ranks).astype(np.uint64) << np.uint64(32)) // widths
    effects = (
        _dense_effects(profile, column, ranks) if column.is_dense else _amplitudes(profile, column, ranks)
    )
    return starts, ranks, np.append(slopes, np.uint64(0)), effects


def piece_ranks(column: Column, scale: float) -> NDArray[np.int64]:
    """Return the first ranks of pieces, then the number of present values.

    Each of the first 32 ranks is a piece, then every sixteenth of an octave, and each knot of the profile
    where the table keeps its rows.
    """
    num_values = column.present.num_values
    if not column.is_dense:
        # A missing value has a separate row, which is not one of the values.
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
    """Return amplitudes times 2^16, which fall with octaves beyond the head."""
    click = profile.click
    octaves = np.maximum(log2(ranks.astype(np.float64) + 1.0) - click["head_octaves"], 0.0)
    decay = 1.0 / (1.0 + click["decay"] * octaves)
    return _to_fixed(click["sparse"].get(column.name, 0.0) * decay)


def _dense_effects(profile: Profile, column: Column, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return effects of dense values, in 1/256 nat."""
    slope, kink, middle, _ = profile.click["dense"][column.name]
    octaves = log2(np.maximum(ranks + column.smallest, 0).astype(np.float64) + 1.0) - middle
    nats = slope * octaves + kink * np.abs(octaves)
    effects: NDArray[np.int64] = np.rint(nats * 256.0).astype(np.int64)
    return effects


def _missing_effect(profile: Profile, column: Column) -> int:
    if column.is_dense:
        return round(float(profile.click["dense"][column.name][-1]) * 256)
    return int(_to_fixed(np.array([profile.click["sparse"].get(column.name, 0.0)]))[0])


def _to_fixed(nats: NDArray[np.float64]) -> NDArray[np.int64]:
    fixed: NDArray[np.int64] = np.rint(nats * (256.0 * 65536.0 / _MAIN_DEVIATION)).astype(np.int64)
    return fixed


def _masks(profile: Profile, patterns: tuple[tuple[str, ...], ...]) -> NDArray[np.uint64]:
    numbers = {column.name: number for number, column in enumerate(profile.columns)}
    return np.array([sum(1 << numbers[name] for name in pattern) for pattern in patterns], np.uint64)


def _guides(starts: list[NDArray[np.uint64]]) -> NDArray[np.int32]:
    """Return (F, 2^GUIDE_BITS) pieces of the least u with these bits."""
    leading = np.arange(1 << GUIDE_BITS, dtype=np.uint64) << np.uint64(32 - GUIDE_BITS)
    guides = []
    first = 0
    for column_starts in starts:
        guides.append(first + np.searchsorted(column_starts, leading, side="right") - 1)
        first += column_starts.shape[0]
    return np.array(guides, np.int32)


def _key(number: int) -> np.uint64:
    """Return a column's key, which is equal for every log."""
    return np.uint64(mix64_pair(np.uint64(_WORLD_SEED), np.uint64(number)))


def _to_u(shares: NDArray[np.float64]) -> NDArray[np.uint64]:
    """Return shares in [0, 1] in units of 2^-32, rounded down."""
    return np.floor(shares * _ONE).astype(np.uint64)


def _rows_to_u(matrix: NDArray[np.float64]) -> NDArray[np.uint64]:
    """Return running shares of each row in u; the last is 2^32."""
    running = np.add.accumulate(matrix, axis=1)
    ends = _to_u(running / np.maximum(running[:, -1:], 1e-300))  # a row of zeros is never drawn
    ends[:, -1] = _ONE
    return ends


def _stack(arrays: list[NDArray[Any]], filler: int) -> NDArray[np.uint64]:
    """Stack arrays of different last axes, filled up with ``filler``."""
    longest = max(array.shape[-1] for array in arrays)
    filled = [
        np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, longest - array.shape[-1])], constant_values=filler)
        for array in arrays
    ]
    return np.stack(filled).astype(np.uint64)
