"""Draw and write samples of a log, with equal bytes on every machine.

A log is Criteo's, or one of histories: past choices, a candidate, and whether it follows.

A sample is a function of 64 bits, ``mix64_pair(seed, sample number)``; its k-th variable uses the k-th value
of the SplitMix64 stream that starts there. The kernels use integers only. One pass draws the class, the
missing columns, the rank in each column and the click, and writes the text: about 1 us per sample, a third of
which is the text.

Shares are in units of 2^-32 ("u"), logits in units of 1/256 nat. Columns are the dense ones, then the sparse
ones; a rank of -1 is a missing value.

``log2`` uses only IEEE additions, multiplications and divisions in a fixed order, because a library's ``log``
differs in its last bit between machines.

    label , user , item | ... | candidate , category | ... | category of the candidate

Of histories, a user has a few interests, groups of items, and a fixed sequence of events. Each event is an
item drawn by its frequency; most events are then moved to the nearest item of an interest. A sample is a
window of such a sequence. With label 1 the candidate is the next event of the user; with label 0 it is any
item by its frequency, so frequency alone predicts nothing. (The published preparation draws them uniformly.)
Events belong to the profile; 21 elements take about 3 us.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...stats.id_tables import mix64, mix64_pair
from ...stats.kernel import kernel

MAX_SAMPLE_BYTES = 2 + 13 * 12 + 26 * 9
"""Longest line: a label, 13 integers of at most 11 characters, 26 categories of 8."""

NUM_GROUPS = 6
NUM_SIGMOID = 1 << 13
GUIDE_BITS = 10
COUPLING_BITS = 10
_JITTER_BITS = 20

_STRIDE = np.uint64(0x9E3779B97F4A7C15)
# Positions of a sample's variables in its stream; of the last three, the first of several.
_CLASS = 0
_LABEL = 1
_GROUP = 8
_MISSING = 16
_COLUMN = 64
_TAB = 9
_NEWLINE = 10
_LOW_32 = np.uint64(0xFFFFFFFF)


class World(NamedTuple):
    """A profile as the kernels read it; see ``generate``.

    F columns, K classes, G missing groups of at most L patterns, at most B buckets, P pieces, Q pairs.
    """

    class_ends: NDArray[np.uint64]
    """(K,); u at which each class ends."""
    missing_ends: NDArray[np.uint64]
    """(G, K, L); u at which each pattern ends."""
    missing_masks: NDArray[np.uint64]
    """(G, L); bit f is column f."""
    bucket_ends: NDArray[np.uint64]
    """(K, F, B + 1); where in the class's own u each bucket begins, then 2^32."""
    bucket_starts: NDArray[np.uint64]
    """(F, B); where in the column's u each bucket begins."""
    bucket_slopes: NDArray[np.uint64]
    """(K, F, B); units of the column's u for one of the class's, times 2^32."""
    piece_starts: NDArray[np.uint64]
    """(P,); u at which each piece of equally likely ranks begins; 2^32 closes each column."""
    piece_ranks: NDArray[np.int64]
    """(P,); first rank of the piece."""
    piece_slopes: NDArray[np.uint64]
    """(P,); ranks for one unit of u, times 2^32."""
    piece_effects: NDArray[np.int64]
    """(P,); part of the logit in a dense column, amplitude of the effect times 2^16 in a sparse one."""
    guide: NDArray[np.int32]
    """(F, 2^GUIDE_BITS); piece of the least u with these leading bits."""
    groups: NDArray[np.int64]
    """(F,); the group whose variable a column may share."""
    couplings: NDArray[np.uint64]
    """(F,); how often it does, of 2^COUPLING_BITS."""
    smallest: NDArray[np.int64]
    """(num_dense,); the integer at rank 0."""
    keys: NDArray[np.uint64]
    """(F,); key with which effects and category values of a column are hashed."""
    missing_effects: NDArray[np.int64]
    """(F,); as ``piece_effects``, of a missing value."""
    pairs: NDArray[np.int64]
    """(Q, 2); sparse columns that interact."""
    pair_weights: NDArray[np.int64]
    """(Q,); weight of the dot product of their hidden vectors, times 2^16."""
    sigmoid: NDArray[np.uint64]
    """(NUM_SIGMOID,); click probability in u; logit 0 in the middle."""
    intercept: int
    """Constant part of the logit."""


@kernel
def _variable(base: np.uint64, position: int) -> np.uint64:
    """Return 64 random bits: the value at ``position`` of the sample's stream."""
    bits: np.uint64 = mix64(base + np.uint64(position) * _STRIDE)
    return bits


@kernel
def _piece_of(world: World, column: int, u: np.uint64) -> np.int64:
    """Return the piece of ``column`` that holds ``u``."""
    piece = np.int64(world.guide[column, np.int64(u >> np.uint64(32 - GUIDE_BITS))])
    while world.piece_starts[piece + 1] <= u:
        piece += 1
    return piece


@kernel
def _missing_mask(world: World, base: np.uint64, latent: int) -> np.uint64:
    """Draw the missing columns of a sample; bit f is column f."""
    mask = np.uint64(0)
    for group in range(world.missing_masks.shape[0]):
        u = _variable(base, _MISSING + group) >> np.uint64(32)
        pattern = 0
        while world.missing_ends[group, latent, pattern] <= u:
            pattern += 1
        mask |= world.missing_masks[group, pattern]
    return mask


@kernel
def _class_of(world: World, base: np.uint64) -> int:
    """Draw the latent class of a sample."""
    u = _variable(base, _CLASS) >> np.uint64(32)
    latent = 0
    while world.class_ends[latent] <= u:
        latent += 1
    return latent


@kernel
def _draw(
    world: World,
    base: np.uint64,
    shared: NDArray[np.uint64],
    ranks: NDArray[np.int64],
    pieces: NDArray[np.int64],
) -> None:
    """Draw one sample into ``ranks`` and ``pieces``; ``shared`` is workspace."""
    latent = _class_of(world, base)
    mask = _missing_mask(world, base, latent)
    for group in range(NUM_GROUPS):
        shared[group] = _variable(base, _GROUP + group) >> np.uint64(32)
    for column in range(ranks.shape[0]):
        if (mask >> np.uint64(column)) & np.uint64(1):
            ranks[column] = -1
            continue

        # Where in the class's distribution: an own u, or now and then the group's, which couples columns.
        # The upper half of the bits is that u; of the lower half, 10 bits draw the coupling, 20 the jitter.
        bits = _variable(base, _COLUMN + column)
        within = bits >> np.uint64(32)
        if bits & np.uint64((1 << COUPLING_BITS) - 1) < world.couplings[column]:
            within = shared[world.groups[column]]

        # The bucket of ranks in the class's distribution, and so the u in the column's own.
        bucket = 0
        while world.bucket_ends[latent, column, bucket + 1] <= within:
            bucket += 1

        # A narrow bucket of the class may represent a wide one of the column: jitter fills the steps.
        slope = world.bucket_slopes[latent, column, bucket]
        jitter = (bits >> np.uint64(COUPLING_BITS)) & np.uint64((1 << _JITTER_BITS) - 1)
        u = (within - world.bucket_ends[latent, column, bucket]) * slope
        u = (u + ((jitter * slope) >> np.uint64(_JITTER_BITS))) >> np.uint64(32)
        u += world.bucket_starts[column, bucket]

        # The rank: ranks of a piece are equally likely.
        piece = _piece_of(world, column, u)
        offset = ((u - world.piece_starts[piece]) * world.piece_slopes[piece]) >> np.uint64(32)
        ranks[column] = world.piece_ranks[piece] + np.int64(offset)
        pieces[column] = piece


@kernel
def _main_effect(bits: np.uint64) -> np.int64:
    """Return a nearly normal integer of mean 0 and deviation 147.8."""
    total = np.int64(-510)
    for byte in range(4):
        total += np.int64((bits >> np.uint64(8 * byte)) & np.uint64(255))
    return total


@kernel
def _hidden_dot(left: np.uint64, right: np.uint64) -> np.int64:
    """Return the dot product of two hidden vectors; deviation 170."""
    total = np.int64(0)
    for shift in range(32, 64, 8):
        one = 2 * np.int64((left >> np.uint64(shift)) & np.uint64(15)) - 15
        other = 2 * np.int64((right >> np.uint64(shift)) & np.uint64(15)) - 15
        total += one * other
    return total


@kernel
def _logit(
    world: World, ranks: NDArray[np.int64], pieces: NDArray[np.int64], hashes: NDArray[np.uint64]
) -> np.int64:
    """Compute a sample's planted logit, in 1/256; ``hashes`` is workspace."""
    num_dense = world.smallest.shape[0]

    # Effects of single values; of a category, its hash times the amplitude of its rank.
    logit = np.int64(world.intercept)
    for column in range(ranks.shape[0]):
        effect = world.missing_effects[column]
        if ranks[column] >= 0:
            effect = world.piece_effects[pieces[column]]
        if column >= num_dense:
            hashes[column] = mix64(world.keys[column] ^ np.uint64(ranks[column] + 1))
            effect = (_main_effect(hashes[column]) * effect) >> 16
        logit += effect

    # Interactions: the upper halves of the same hashes are the hidden vectors.
    for pair in range(world.pairs.shape[0]):
        dot = _hidden_dot(hashes[world.pairs[pair, 0]], hashes[world.pairs[pair, 1]])
        logit += (dot * world.pair_weights[pair]) >> 16
    return logit


@kernel
def _is_click(world: World, base: np.uint64, logit: np.int64) -> int:
    """Draw the label, 0 or 1."""
    entry = np.int64(min(max(np.int64(logit + NUM_SIGMOID // 2), np.int64(0)), np.int64(NUM_SIGMOID - 1)))
    return 1 if (_variable(base, _LABEL) >> np.uint64(32)) < world.sigmoid[entry] else 0


@kernel
def category_value(key: np.uint64, rank: int) -> np.uint64:
    """Return the category of ``rank``, by a bijection of 32-bit integers.

    Exact: an exclusive or, three multiplications by odd numbers modulo 2^32 and three exclusive ors
    with the bits shifted right, each of which can be undone.
    """
    bits = (np.uint64(rank) ^ key) & _LOW_32
    bits = (bits * np.uint64(0x9E3779B1)) & _LOW_32
    bits = ((bits ^ (bits >> np.uint64(15))) * np.uint64(0x85EBCA77)) & _LOW_32
    bits = ((bits ^ (bits >> np.uint64(13))) * np.uint64(0xC2B2AE3D)) & _LOW_32
    return bits ^ (bits >> np.uint64(16))


@kernel
def _write_integer(value: int, out: NDArray[np.uint8], end: int) -> int:
    """Write ``value`` in decimal from ``out[end]`` on; returns where it ends."""
    if value < 0:
        out[end] = 45
        end += 1
        value = -value

    # Count the digits, then write them from the last one.
    num_digits = 1
    rest = value // 10
    while rest > 0:
        num_digits += 1
        rest //= 10
    for position in range(end + num_digits - 1, end - 1, -1):
        out[position] = 48 + value % 10
        value //= 10
    return end + num_digits


@kernel
def _write_hex(value: np.uint64, out: NDArray[np.uint8], end: int) -> int:
    """Write eight lower-case hexadecimal digits from ``out[end]`` on; returns where they end."""
    for digit in range(8):
        nibble = np.uint8((value >> np.uint64(28 - 4 * digit)) & np.uint64(15))
        out[end + digit] = nibble + (48 if nibble < 10 else 87)  # "0", or "a" less ten
    return end + 8


@kernel
def write_samples(
    world: World, seed: np.uint64, start: int, num_samples: int, has_label: bool, out: NDArray[np.uint8]
) -> tuple[int, int]:
    """Write ``num_samples`` samples from ``start`` on as lines of text.

    Args:
        world: the profile they are drawn from.
        seed: seed of the log.
        start: number of the first sample.
        num_samples: how many.
        has_label: whether a line begins with the label.
        out: (at least num_samples * MAX_SAMPLE_BYTES,).

    Returns:
        Bytes written, and clicks among the samples (0 without labels).
    """
    num_columns = world.groups.shape[0]
    num_dense = world.smallest.shape[0]
    # Workspaces of one sample, used again by the next, so that nothing is allocated in the loop.
    ranks = np.empty(num_columns, np.int64)
    pieces = np.empty(num_columns, np.int64)
    hashes = np.empty(num_columns, np.uint64)
    shared = np.empty(NUM_GROUPS, np.uint64)
    end = 0
    num_clicks = 0
    for number in range(start, start + num_samples):
        # All numbers of a sample follow from the seed and its number, so any process can write any part.
        base = mix64_pair(seed, np.uint64(number))
        _draw(world, base, shared, ranks, pieces)
        if has_label:
            is_click = _is_click(world, base, _logit(world, ranks, pieces, hashes))
            num_clicks += is_click
            out[end] = 48 + is_click
            out[end + 1] = _TAB
            end += 2

        # A missing value is nothing between two tabs; the last tab becomes the newline.
        for column in range(num_columns):
            if ranks[column] >= 0 and column < num_dense:
                end = _write_integer(world.smallest[column] + ranks[column], out, end)
            elif ranks[column] >= 0:
                end = _write_hex(category_value(world.keys[column], ranks[column]), out, end)
            out[end] = _TAB
            end += 1
        out[end - 1] = _NEWLINE
    return end, num_clicks


@kernel
def draw_samples(
    world: World,
    seed: np.uint64,
    start: int,
    ranks: NDArray[np.int64],
    logits: NDArray[np.int64],
    labels: NDArray[np.uint8],
) -> None:
    """Draw the samples that ``write_samples`` writes, as numbers.

    Args:
        world: the profile they are drawn from.
        seed: seed of the log.
        start: number of the first sample.
        ranks: (num_samples, F), out; -1 where missing.
        logits: (num_samples,), out; 1/256 nat.
        labels: (num_samples,), out; 0 or 1.
    """
    num_columns = world.groups.shape[0]
    pieces = np.empty(num_columns, np.int64)
    hashes = np.empty(num_columns, np.uint64)
    shared = np.empty(NUM_GROUPS, np.uint64)
    for sample in range(ranks.shape[0]):
        base = mix64_pair(seed, np.uint64(start + sample))
        _draw(world, base, shared, ranks[sample], pieces)
        logits[sample] = _logit(world, ranks[sample], pieces, hashes)
        labels[sample] = _is_click(world, base, logits[sample])


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
    end = _write_integer(rank * _SPREAD % num_rows, out, end)
    out[end] = separator
    return end + 1


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


_LOG2_E = 1.4426950408889634
_NUM_TERMS = 12


def log2(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the base-2 logarithm, equal bit for bit on every machine.

    Args:
        values: any shape, positive and finite.

    Error:
        At most 4e-16 relative to max(1, |result|): ln m = 2 artanh((m - 1) / (m + 1)), with 12 terms of
        the series at an argument of at most 0.172, which leaves 3e-20.
    """
    # A mantissa m in [sqrt(1/2), sqrt(2)), which keeps (m - 1) / (m + 1) small.
    mantissa, exponent = np.frexp(values)
    is_low = mantissa < 0.7071067811865476
    mantissa = np.where(is_low, 2.0 * mantissa, mantissa)
    exponent = exponent - is_low
    ratio = (mantissa - 1.0) / (mantissa + 1.0)
    square = ratio * ratio

    # Horner's rule, smallest term first.
    series = np.zeros_like(ratio)
    for term in range(_NUM_TERMS - 1, -1, -1):
        series = series * square
        series = series + 1.0 / (2 * term + 1)
    fraction: NDArray[np.float64] = 2.0 * ratio * series * _LOG2_E
    return fraction + exponent


def interpolate(
    at: NDArray[np.float64], knots: NDArray[np.float64], values: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Interpolate as ``np.interp``, but without the machine's fused multiply-adds.

    Args:
        at: (num_points,); below the first knot it counts as the first, above the last as the last.
        knots: (num_knots,), ascending, at least two.
        values: (num_knots,), at the knots.
    """
    inside = np.clip(at, knots[0], knots[-1])
    right = np.clip(np.searchsorted(knots, inside, side="right"), 1, knots.shape[0] - 1)
    left = right - 1
    fraction = (inside - knots[left]) / (knots[right] - knots[left])
    rise: NDArray[np.float64] = (values[right] - values[left]) * fraction
    return values[left] + rise
