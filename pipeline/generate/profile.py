"""Profiles: the aggregates that a generated log is drawn from, one small JSON file each.

A profile holds no sample and no raw value, only shares:

    columns   for each field the share of its k most frequent values ("coverage", interpolated linearly in
              log k; missing is one of the values), and for the dense ones the same over values in order
    missing   groups of columns that are missing together, and how often
    classes   the dependence: a mixture of latent classes ("cold visitor", "head of everything", ...). For
              each class the shares, in thousandths, of each missing pattern and of each bucket of ranks
    coupling  columns of one group, within a class, share one uniform variable with this probability
    click     the planted click model: amplitudes in nats, see ``generate_world``

One of histories has other keys: see ``history_world``.

``workflows/make_profile.py`` derives one from published aggregates and a rank-coded part of a log.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from .sampling import interpolate, log2

PROFILES = Path(__file__).parent / "profiles"


@dataclass(frozen=True, slots=True)
class Coverage:
    """The share of lookups that the first k values get, for a few k, ascending."""

    ranks: NDArray[np.float64]
    """(num_knots,); each k. The last is the number of distinct values."""

    shares: NDArray[np.float64]
    """(num_knots,), in [0, 1], the last 1."""

    @property
    def num_values(self) -> int:
        """Number of distinct values."""
        return int(self.ranks[-1])

    def at(self, num_values: int, ranks: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the share of the first ``ranks`` values in a column shrunk to ``num_values`` values.

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
    """One dense or sparse field of a profile; values are numbered from 0 by rank (sparse) or size (dense)."""

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
class DenseEffect:
    """The part of a dense column in the click model, in nats; octaves are those of 1 + max(x, 0)."""

    slope: float
    """Effect per octave."""
    kink: float
    """Further effect per octave of distance from the middle."""
    middle: float
    """Octaves at which the effect is 0."""
    missing: float
    """Effect of a missing value."""


@dataclass(frozen=True, slots=True)
class ClickModel:
    """The planted click model of a profile; see ``generate_world``."""

    rate: float
    """Share of samples that are clicks."""
    head_octaves: float
    """Octaves of ranks in which the effects of categories are full."""
    decay: float
    """How fast effects fall beyond: by 1 / (1 + decay * octaves)."""
    sparse: dict[str, float]
    """Amplitude of each sparse column's effects (nats)."""
    dense: dict[str, DenseEffect]
    """Effects of each dense column."""
    pairs: tuple[tuple[str, str, float], ...]
    """Sparse columns that interact, and the deviation of their effect (nats)."""


@dataclass(frozen=True, slots=True)
class Profile:
    """A profile, parsed from its file."""

    name: str
    columns: tuple[Column, ...]
    missing: tuple[MissingGroup, ...]
    class_weights: NDArray[np.float64]
    """(num_classes,), summing to 1."""
    click: ClickModel


def profile_names() -> list[str]:
    """Return the names of all profiles."""
    return sorted(path.stem for path in PROFILES.glob("*.json"))


def profile_facts(name: str) -> dict[str, Any]:
    """Read the file of the profile called ``name``; raises ConfigError with the names of all."""
    if name not in profile_names():
        raise ConfigError(f"no profile {name!r}", hint=f"use one of {', '.join(profile_names())}")
    facts: dict[str, Any] = json.loads((PROFILES / f"{name}.json").read_text())
    return facts


@functools.lru_cache(maxsize=4)
def load_profile(name: str) -> Profile:
    """Read the profile called ``name``, which is one of Criteo's format; raises ConfigError as
    `profile_facts` does."""
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
    return Profile(facts["name"], columns, missing, weights, _click_model(facts["click"]))


def _click_model(facts: dict[str, Any]) -> ClickModel:
    return ClickModel(
        rate=facts["rate"],
        head_octaves=facts["head_octaves"],
        decay=facts["decay"],
        sparse=facts["sparse"],
        dense={name: DenseEffect(*numbers) for name, numbers in facts["dense"].items()},
        pairs=tuple((left, right, weight) for left, right, weight in facts["pairs"]),
    )


def without_missing(
    ranks: list[int], shares: list[float], missing_rank: int, missing_share: float
) -> Coverage:
    """Take the missing value out of a coverage that counts it as one of the values.

    Knots before its rank stay; those after it lose one value and its share.

    Args:
        ranks: k, ascending from 1.
        shares: shares of the first k values, missing being one of them.
        missing_rank: rank of missing among the values, 0 = most frequent.
        missing_share: of all fields, in [0, 1).
    """
    # Ranks behind the missing value move up by one, and lose its share.
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
