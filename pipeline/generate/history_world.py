"""Logs of histories: what a user chose so far, a candidate, and whether the user chose it next.

    label , user , item | ... | candidate , category | ... | category of the candidate

A user has a few interests, groups of items, and a fixed course of events, each an item that is drawn by how
frequent it is; most events are then moved to the nearest item of an interest. A sample is a window of such a
course. With label 1 the candidate is the next event of the user; with label 0 it is any item by its
frequency, so that frequency alone tells nothing. (The published preparation draws them from all items alike.)

A sample is a function of (profile, seed, sample number), and events belong to the profile.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .generate_world import scaled_num_rows
from .history_kernel import HistoryWorld
from .profile import Coverage, profile_facts

HISTORIES = "histories"
"""The kind of such a profile in its file."""
_ONE = 1 << 32
_SHARES = 1 << 10
_RANKS_PER_OCTAVE = 16


@dataclass(frozen=True, slots=True)
class HistoryProfile:
    """A profile of histories, parsed from its file."""

    num_users: int
    num_items: int
    num_categories: int
    history_length: int
    """Elements before the candidate, at most."""
    items: Coverage
    categories: Coverage
    num_groups: int
    """Groups of items; those of a category are in one."""
    num_interests: int
    """Groups that a user is interested in."""
    follow_share: float
    """Share of the events of a user that are of an interest."""
    short_share: float
    """Share of the samples whose history is shorter, of any length from one element on."""


def is_of_histories(profile: str) -> bool:
    """Return whether a profile is one of histories; raises ConfigError where there is none of this name."""
    return bool(profile_facts(profile).get("kind") == HISTORIES)


def parse_history_profile(facts: dict[str, Any]) -> HistoryProfile:
    """Parse the JSON object ``facts`` of a profile."""
    return HistoryProfile(
        num_users=facts["users"],
        num_items=facts["items"],
        num_categories=facts["categories"],
        history_length=facts["history_length"],
        items=_coverage(facts["item_coverage"]),
        categories=_coverage(facts["category_coverage"]),
        num_groups=facts["groups"],
        num_interests=facts["interests"],
        follow_share=facts["follow_share"],
        short_share=facts["short_share"],
    )


@functools.lru_cache(maxsize=4)
def history_world_of(profile: str, scale: float = 1) -> HistoryWorld:
    """Return the tables of the profile called ``profile``, cardinalities divided by ``scale``."""
    found = parse_history_profile(profile_facts(profile))
    item_edges, item_ends = _pieces(found.items, scale)
    category_edges, category_ends = _pieces(found.categories, scale)
    return HistoryWorld(
        num_users=scaled_num_rows(found.num_users, scale),
        history_length=found.history_length,
        item_edges=item_edges,
        item_ends=item_ends,
        category_edges=category_edges,
        category_ends=category_ends,
        num_groups=found.num_groups,
        num_interests=found.num_interests,
        follow_share=int(found.follow_share * _SHARES),
        short_share=int(found.short_share * _SHARES),
    )


def header_of(*, has_label: bool) -> bytes:
    """Return the line of names that a log begins with."""
    return (b"label," if has_label else b"") + b"user,item,category\n"


def _coverage(facts: dict[str, float]) -> Coverage:
    return Coverage(np.array([int(rank) for rank in facts], np.float64), np.array(list(facts.values())))


def _pieces(coverage: Coverage, scale: float) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Cut ranks into pieces of equally frequent ones; return their edges, and the shares before, in 2^-32."""
    num_rows = scaled_num_rows(coverage.num_values, scale)
    edges = [0]
    while edges[-1] < num_rows:
        edges.append(min(edges[-1] + max(edges[-1] // _RANKS_PER_OCTAVE, 1), num_rows))
    edges_P = np.array(edges, np.int64)
    ends_P = np.floor(coverage.at(num_rows, edges_P) * _ONE).astype(np.uint64)
    ends_P[-1] = _ONE
    return edges_P, ends_P
