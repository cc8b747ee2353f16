"""Draw logs of histories: past choices, a candidate, and whether it follows.

    label , user , item | ... | candidate , category | ... | category of the candidate

A user has a few interests, groups of items, and a fixed sequence of events. Each event is an item drawn by
its frequency; most events are then moved to the nearest item of an interest. A sample is a window of such a
sequence. With label 1 the candidate is the next event of the user; with label 0 it is any item by its
frequency, so frequency alone predicts nothing. (The published preparation draws them uniformly.)

A sample is a function of (profile, seed, sample number), and events belong to the profile. The kernels use
integers only, so bytes are equal on every machine: about 3 us per sample of 21 elements.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...stats.id_tables import mix64, mix64_pair
from ...stats.kernel import kernel
from .world import Coverage, profile_facts, scaled_num_rows

_USERS = np.uint64(0x7573657273)
_CATEGORIES = np.uint64(0x63617465)
_INTERESTS = np.uint64(1) << np.uint64(40)
"""Positions of the interests in the stream of a user, after those of all events."""
_NUM_EVENTS = 180
"""Events of a user at which a window may begin: those of the published preparation are of 200 events."""
_SHARE_BITS = np.uint64(1023)
_HIGH = np.uint64(32)
_SPREAD = 2_654_435_761
"""A prime above every number of rows: multiplying by it spreads ranks over the values."""
_COMMA = 44
_BAR = 124
_NEWLINE = 10


class HistoryWorld(NamedTuple):
    """A profile as kernels read it; P pieces of equal ranks."""

    num_users: int
    history_length: int
    """Elements before the candidate, at most."""
    item_edges: NDArray[np.int64]
    """(P + 1,); first rank of each piece, and the number of items."""
    item_ends: NDArray[np.uint64]
    """(P + 1,); share of the items before each piece, in 2^-32."""
    category_edges: NDArray[np.int64]
    category_ends: NDArray[np.uint64]
    num_groups: int
    """At most the number of items, and of categories."""
    num_interests: int
    follow_share: int
    """Events of a user that are of an interest, of 2^10."""
    short_share: int
    """Samples whose history is shorter, of 2^10."""


@kernel
def drawn_rank(edges: NDArray[np.int64], ends: NDArray[np.uint64], share: np.uint64) -> int:
    """Return the rank at which the running share passes ``share``. Exact."""
    low, high = 0, edges.shape[0] - 1
    # The last piece that begins at or before the share.
    while high - low > 1:
        middle = (low + high) // 2
        if ends[middle] <= share:
            low = middle
        else:
            high = middle
    width = np.uint64(edges[low + 1] - edges[low])
    inside = (share - ends[low]) * width // (ends[low + 1] - ends[low])
    return int(edges[low] + np.int64(inside))


@kernel
def rank_in_group(rank: int, group: int, num_groups: int, num_rows: int) -> int:
    """Return the rank next to ``rank`` whose remainder is ``group``."""
    moved = rank - rank % num_groups + group
    return moved if moved < num_rows else moved - num_groups


@kernel
def category_of_item(world: HistoryWorld, item: int) -> int:
    """Return the rank of an item's category, which is of its group."""
    share = mix64_pair(_CATEGORIES, np.uint64(item)) >> _HIGH
    category = drawn_rank(world.category_edges, world.category_ends, share)
    return rank_in_group(category, item % world.num_groups, world.num_groups, world.category_edges[-1])


@kernel
def event_of_user(world: HistoryWorld, user_bits: np.uint64, position: int) -> int:
    """Return the item of an event of a user."""
    bits = mix64_pair(user_bits, np.uint64(position))
    item = drawn_rank(world.item_edges, world.item_ends, bits >> _HIGH)
    if np.int64(bits & _SHARE_BITS) >= world.follow_share:
        return item
    interest = (bits >> np.uint64(10)) % np.uint64(world.num_interests)
    group = mix64_pair(user_bits, _INTERESTS + interest) % np.uint64(world.num_groups)
    return rank_in_group(item, np.int64(group), world.num_groups, world.item_edges[-1])


@kernel
def draw_history(world: HistoryWorld, bits: np.uint64, items: NDArray[np.int64]) -> tuple[int, int, int]:
    """Draw a sample; return its label, user and number of items.

    Args:
        world: the profile it is drawn from.
        bits: those of the sample.
        items: (history_length + 1,), written as far as the sample has elements.
    """
    length = world.history_length
    first, second = mix64(bits), mix64(bits ^ _CATEGORIES)
    user = int(np.int64((first >> _HIGH) * np.uint64(world.num_users) >> _HIGH))
    user_bits = mix64_pair(_USERS, np.uint64(user))
    if np.int64(first & _SHARE_BITS) < world.short_share:
        length = 1 + int(np.int64((first >> np.uint64(10)) & np.uint64(0x3FFFFF))) % length
    label = int(np.int64(second & np.uint64(1)))
    start = np.int64((second >> np.uint64(1)) & np.uint64(0x7FFFFFFF)) % _NUM_EVENTS
    for element in range(length + label):
        items[element] = event_of_user(world, user_bits, start + element)
    if not label:
        items[length] = drawn_rank(world.item_edges, world.item_ends, mix64(second) >> _HIGH)
    return label, user, length + 1


@kernel
def _write_value(rank: int, num_rows: int, separator: int, out: NDArray[np.uint8], end: int) -> int:
    """Write a rank's value and a separator; return where they end."""
    value = rank * _SPREAD % num_rows
    num_digits = 1
    rest = value // 10
    while rest > 0:
        num_digits += 1
        rest //= 10
    for position in range(end + num_digits - 1, end - 1, -1):
        out[position] = 48 + value % 10
        value //= 10
    out[end + num_digits] = separator
    return end + num_digits + 1


@kernel
def write_histories(
    world: HistoryWorld,
    seed: np.uint64,
    start: int,
    num_samples: int,
    has_label: bool,
    out: NDArray[np.uint8],
) -> tuple[int, int]:
    """Write ``num_samples`` samples from ``start`` on as lines of text.

    Args:
        world: the profile they are drawn from.
        seed: seed of the log.
        start: number of the first sample.
        num_samples: how many.
        has_label: whether a line begins with the label.
        out: (at least num_samples * `most_bytes`,).

    Returns:
        Bytes written, and samples with label 1 (0 without labels).
    """
    items = np.empty(world.history_length + 1, np.int64)
    num_items = world.item_edges[-1]
    num_categories = world.category_edges[-1]
    end = 0
    num_clicks = 0
    for number in range(start, start + num_samples):
        label, user, num_elements = draw_history(world, mix64_pair(seed, np.uint64(number)), items)
        if has_label:
            num_clicks += label
            out[end] = 48 + label
            out[end + 1] = _COMMA
            end += 2
        end = _write_value(user, world.num_users, _COMMA, out, end)
        # The items, then their categories; the last bar of each becomes what follows the list.
        for element in range(num_elements):
            end = _write_value(items[element], num_items, _BAR, out, end)
        out[end - 1] = _COMMA
        for element in range(num_elements):
            end = _write_value(category_of_item(world, items[element]), num_categories, _BAR, out, end)
        out[end - 1] = _NEWLINE
    return end, num_clicks


def most_bytes(world: HistoryWorld) -> int:
    """Return the bytes of the longest line."""
    digits = [len(str(size)) for size in (world.item_edges[-1], world.category_edges[-1])]
    return 2 + len(str(world.num_users)) + 1 + (world.history_length + 1) * (sum(digits) + 2)


_ONE = 1 << 32
_SHARES = 1 << 10
_RANKS_PER_OCTAVE = 16


def is_of_histories(profile: str) -> bool:
    """Return whether a profile is one of histories; raises ConfigError."""
    return bool(profile_facts(profile).get("kind") == "histories")


@functools.lru_cache(maxsize=4)
def history_world_of(profile: str, scale: float = 1) -> HistoryWorld:
    """Return the tables of the profile called ``profile``, cardinalities divided by ``scale``."""
    facts = profile_facts(profile)
    item_edges, item_ends = _pieces(facts["item_coverage"], scale)
    category_edges, category_ends = _pieces(facts["category_coverage"], scale)
    return HistoryWorld(
        num_users=scaled_num_rows(facts["users"], scale),
        history_length=facts["history_length"],
        item_edges=item_edges,
        item_ends=item_ends,
        category_edges=category_edges,
        category_ends=category_ends,
        num_groups=facts["groups"],
        num_interests=facts["interests"],
        follow_share=int(facts["follow_share"] * _SHARES),
        short_share=int(facts["short_share"] * _SHARES),
    )


def header_of(*, has_label: bool) -> bytes:
    """Return the line of names that a log begins with."""
    return (b"label," if has_label else b"") + b"user,item,category\n"


def _pieces(shares: dict[str, float], scale: float) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Return edges of pieces of ranks, and shares before them."""
    coverage = Coverage(np.array([int(rank) for rank in shares], np.float64), np.array(list(shares.values())))
    num_rows = scaled_num_rows(coverage.num_values, scale)
    edges = [0]
    while edges[-1] < num_rows:
        edges.append(min(edges[-1] + max(edges[-1] // _RANKS_PER_OCTAVE, 1), num_rows))
    edges_P = np.array(edges, np.int64)
    ends_P = np.floor(coverage.at(num_rows, edges_P) * _ONE).astype(np.uint64)
    ends_P[-1] = _ONE
    return edges_P, ends_P
