"""Rows that ranks exchange in a step: users, owners and lists.

A batch is cut into G equal micro-batches by sample position, and each of W ranks computes G / W consecutive
ones: sample i of a batch of B is in micro-batch ``i * G // B``, computed by rank ``s * W // G`` for
micro-batch s. A batch with fewer than B samples leaves the last micro-batches short or empty. The users of a
row are one bit for each rank. Owners are fixed for a run: striped by id, or the rank that uses the row most.

Every rank computes its lists from the same batch, so a receiver knows the rows of each message without a
request. Before the step the owner of a row sends its vector to each user; after it each user sends one summed
gradient to the owner. Lists are positions among the step's distinct rows, ascending, so both sides list the
rows of a message in the same order.

The counts of a step follow from the owners of its rows. A vector crosses for each user of a row that is not
its owner, except at the row's first use, whose initial values every rank computes; a gradient crosses back
from each. A lower bound holds for every exact scheme with this assignment of samples to ranks. The |S|
partial gradients of a row's users S must be combined, which takes |S| - 1 messages in any topology. Then its
new value must reach every user of the next step S', |S'| - 1 messages, and one more if no user of S is in S'.
A first use needs no value.

Expectations need only how often each row is looked up. A row with c lookups among the N samples of an epoch
is used in n of the W T pairs of a rank and a step, and in m of the T steps, both as if its samples were drawn
at random (`curves.presence`). With f = (W - 1) / W:

    every lookup            f c vectors, f c gradients
    deduplicated            f n, f n
    first uses computed     f (n - n / m), f n          its first step sends no vector
    owners by use           x (1 - 1 / m), x            x = n - E[uses by the rank that uses it most]
    least possible          (n - m) (1 - 1 / m) + (m - 1) d, n - m

d is the probability that no user of a step is a user of the next one. The steps of a row are in random order,
so its first one is like any other. The most uses among W ranks are those of n balls in W bins: exact up to
64, beyond that by the normal distribution, both with the smaller spread of n draws out of W T pairs. For few
steps that is too many, so owners by use send at least the least possible.

Error:
    Within 3 % of counts on generated logs, 10 % on the real sample; a test compares them.

Source:
    Erdogan et al., SCARS, arXiv 2411.01611, for the expected rows of a regime; the forms with owners and the
    lower bound are derived here.

Shapes: B samples, N lookups, U distinct rows of a step, K rows of a range, W ranks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .batch_rows import LookupsByRow
from .curves import presence
from .kernel import kernel
from .simd import lowest_bit

# ruff: noqa: N815  (arrays carry shape suffixes)

MOST_RANKS = 64
"""A mask has one bit for each rank."""

Masks = NDArray[np.unsignedinteger]
"""Bit r of an entry says whether rank r uses the row."""


def mask_type(num_ranks: int) -> np.dtype[np.unsignedinteger]:
    """Return the smallest type with a bit for each rank.

    Raises:
        ValueError: there are fewer ranks than 1 or more than `MOST_RANKS`.
    """
    if not 1 <= num_ranks <= MOST_RANKS:
        raise ValueError(f"want 1 to {MOST_RANKS} ranks, got {num_ranks}")
    return np.min_scalar_type((1 << num_ranks) - 1)


def ranks_of_samples(num_samples: int, batch_size: int, num_shares: int, num_ranks: int) -> NDArray[np.uint8]:
    """Return the rank that computes each sample of a batch, (num_samples,), ascending.

    Args:
        num_samples: samples of this batch.
        batch_size: samples of a whole batch, at least ``num_samples``.
        num_shares: equal parts of a whole batch; a multiple of ``num_ranks``.
        num_ranks: ranks that compute them.

    Raises:
        ValueError: the micro-batches cannot be divided among the ranks, or the batch has too many samples.
    """
    if num_shares % num_ranks:
        raise ValueError(f"{num_shares} micro-batches cannot be divided among {num_ranks} ranks")
    if num_samples > batch_size:
        raise ValueError(f"a batch of {batch_size} has {num_samples} samples")
    shares_B = np.arange(num_samples) * num_shares // batch_size
    return (shares_B * num_ranks // num_shares).astype(np.uint8)


@kernel
def _collect_masks(
    order_N: NDArray[np.int32],
    starts_U1: NDArray[np.int32],
    ranks_N: NDArray[np.uint8],
    masks_U: Masks,
) -> None:
    """Set the bits of the ranks that look up each row. Exact."""
    for i in range(masks_U.shape[0]):
        mask = np.uint64(0)
        for k in range(starts_U1[i], starts_U1[i + 1]):
            mask |= np.uint64(1) << np.uint64(ranks_N[order_N[k]])
        masks_U[i] = mask


def rank_masks(lookups: LookupsByRow, ranks: NDArray[np.uint8], num_ranks: int) -> Masks:
    """Return the ranks that use each distinct row of a batch, (num_rows,).

    Args:
        lookups: of the batch by row, as `group_lookups` returns them.
        ranks: (num_lookups,), the rank of each lookup's sample, below ``num_ranks``, in the order of the
            batch's lookups.
        num_ranks: of them all.
    """
    masks_U = np.empty(lookups.num_rows, mask_type(num_ranks))
    _collect_masks(lookups.order_N, lookups.starts_U1, ranks, masks_U)
    return masks_U


class StepRows(NamedTuple):
    """The distinct rows of a step, the ranks that use them, and their owners."""

    rows_U: NDArray[np.int32]
    """Keys, ascending."""
    masks_U: Masks
    """The ranks that use each; at least one."""
    owners_U: NDArray[np.uint8]
    """The rank that holds each and takes its optimizer step."""
    is_first_U: NDArray[np.bool_]
    """Whether no step before used the row, so that every rank computes its initial value."""


@dataclass(frozen=True, slots=True)
class Crossings:
    """Messages between ranks, each of one row."""

    vectors: int
    """Vectors to users."""
    gradients: int
    """Summed gradients to owners."""

    @property
    def rows(self) -> int:
        """Vectors and gradients together."""
        return self.vectors + self.gradients


def count_crossings(step: StepRows) -> Crossings:
    """Count what crosses in a step, or in several whose rows are concatenated. Exact."""
    # An owner needs no message.
    is_user_U = step.masks_U >> step.owners_U.astype(step.masks_U.dtype) & 1
    others_U = np.bitwise_count(step.masks_U).astype(np.int64) - is_user_U.astype(np.int64)
    return Crossings(int(others_U[~step.is_first_U].sum()), int(others_U.sum()))


def last_users(keys: NDArray[np.int32], masks: Masks) -> Masks:
    """Return the ranks of the last use of each entry's row, (num_entries,), 0 before its first.

    Args:
        keys: (num_entries,), keys of rows, step after step.
        masks: (num_entries,), the ranks that use each.
    """
    order = np.argsort(keys, kind="stable")
    is_same = keys[order[1:]] == keys[order[:-1]]
    last = np.zeros_like(masks)
    last[order[1:][is_same]] = masks[order[:-1][is_same]]
    return last


def least_crossings(masks: Masks, last: Masks) -> int:
    """Return the vectors and gradients that no exact scheme can do without. Exact.

    Args:
        masks: (num_entries,), the ranks that use each row of each step.
        last: (num_entries,), the ranks of the row's last use, as `last_users` gives them.
    """
    # The best owner is one of the users: the others send it their gradients, and get the vector from it. If
    # none of them used it last, another rank must send it first.
    others = np.bitwise_count(masks).astype(np.int64) - 1
    was_used = last != 0
    return int(others.sum() + others[was_used].sum() + np.count_nonzero(was_used & (last & masks == 0)))


def count_remote_lookups(lookups: LookupsByRow, ranks: NDArray[np.uint8], owners: NDArray[np.uint8]) -> int:
    """Return the lookups of a batch whose row another rank holds, one vector each without deduplication.

    Args:
        lookups: of the batch by row.
        ranks: (num_lookups,), the rank of each lookup's sample.
        owners: (num_rows of the batch,), the rank that holds each distinct row.
    """
    return int(np.count_nonzero(ranks[lookups.order_N] != np.repeat(owners, lookups.counts_U)))


class RowLists(NamedTuple):
    """Rows to or from each rank, those of rank r at ``positions[starts_W1[r]:starts_W1[r + 1]]``."""

    starts_W1: NDArray[np.int64]
    positions: NDArray[np.int32]
    """(num_messages,); positions among the distinct rows of the step."""


class RankMessages(NamedTuple):
    """The rows that one rank sends and receives in a step."""

    vectors_out: RowLists
    vectors_in: RowLists
    gradients_out: RowLists
    gradients_in: RowLists


def list_messages(step: StepRows, rank: int, num_ranks: int) -> RankMessages:
    """Return what ``rank`` sends and receives in a step.

    Args:
        step: its rows, the same on every rank; owners and users below ``num_ranks``.
        rank: whose lists these are.
        num_ranks: of them all.
    """
    # The owner of a row sends its vector to all other users, and gets their gradients.
    own = np.flatnonzero(step.owners_U == rank)
    is_user_KW = step.masks_U[own, None] >> np.arange(num_ranks, dtype=step.masks_U.dtype) & 1
    is_user_KW[:, rank] = 0
    users, places = np.nonzero(is_user_KW.T)
    # A user of rows of others does the reverse.
    used = np.flatnonzero((step.owners_U != rank) & (step.masks_U >> step.masks_U.dtype.type(rank) & 1 == 1))
    used = used[np.argsort(step.owners_U[used], kind="stable")]
    outgoing, incoming = (users, own[places]), (step.owners_U[used], used)
    return RankMessages(
        vectors_out=_lists_of(*outgoing, num_ranks, ~step.is_first_U),
        vectors_in=_lists_of(*incoming, num_ranks, ~step.is_first_U),
        gradients_out=_lists_of(*incoming, num_ranks),
        gradients_in=_lists_of(*outgoing, num_ranks),
    )


def _lists_of(
    ranks: NDArray[np.integer[Any]],
    positions: NDArray[np.int64],
    num_ranks: int,
    is_listed_U: NDArray[np.bool_] | None = None,
) -> RowLists:
    """List rows to or from each rank, given by rank, then position."""
    if is_listed_U is not None:
        ranks, positions = ranks[is_listed_U[positions]], positions[is_listed_U[positions]]
    counts = np.bincount(ranks, minlength=num_ranks)
    return RowLists(np.concatenate([[0], np.cumsum(counts)]), positions.astype(np.int32))


def striped_owners(num_rows: int, num_ranks: int) -> NDArray[np.uint8]:
    """Return the owner ``id mod W`` of each row, (num_rows,): ids follow frequency, so loads are even."""
    return (np.arange(num_rows) % num_ranks).astype(np.uint8)


@kernel
def count_uses(rows: NDArray[np.int32], masks: Masks, first_row: int, uses_KW: NDArray[np.uint32]) -> None:
    """Add the steps in which each rank uses each row of a range. Exact.

    Args:
        rows: (num_entries,), keys; those outside the range are passed over.
        masks: (num_entries,), the ranks that use each.
        first_row: of the range.
        uses_KW: (num_rows of the range, num_ranks), added to.
    """
    for i in range(rows.shape[0]):
        row = np.int64(rows[i]) - first_row
        if 0 <= row < uses_KW.shape[0]:
            mask = np.uint64(masks[i])
            while mask:
                uses_KW[row, lowest_bit(mask)] += np.uint32(1)
                mask &= mask - np.uint64(1)


@kernel
def _most_using(
    uses_KW: NDArray[np.uint32], first_row: int, rows_W: NDArray[np.int64], owners_K: NDArray[np.uint8]
) -> None:
    num_ranks = uses_KW.shape[1]
    for row in range(uses_KW.shape[0]):
        best = 0
        for rank in range(1, num_ranks):
            if uses_KW[row, rank] > uses_KW[row, best]:
                best = rank
            elif uses_KW[row, rank] == uses_KW[row, best] and rows_W[rank] < rows_W[best]:
                best = rank
        # A row that nobody uses burdens nobody.
        if uses_KW[row, best] == 0:
            best = (first_row + row) % num_ranks
        else:
            rows_W[best] += 1
        owners_K[row] = best


def owners_by_use(
    uses: NDArray[np.uint32], rows_of_ranks: NDArray[np.int64], first_row: int = 0
) -> NDArray[np.uint8]:
    """Return the rank that uses each row of a range in most steps, (num_rows of the range,).

    Args:
        uses: (num_rows of the range, num_ranks), as `count_uses` left them.
        rows_of_ranks: (num_ranks,), used rows that each rank owns so far; added to. Among ranks that use a
            row equally often, the one with the fewest takes it.
        first_row: of the range; a row that no rank uses is owned by ``id mod W``.
    """
    owners_K = np.empty(uses.shape[0], np.uint8)
    _most_using(uses, first_row, rows_of_ranks, owners_K)
    return owners_K


@dataclass(frozen=True, slots=True)
class RankedEpoch:
    """The steps of an epoch, concatenated in flat arrays."""

    num_ranks: int
    num_samples: int
    num_steps: int
    keys: NDArray[np.int32]
    """(num_entries,); ascending in a step."""
    masks: Masks
    """(num_entries,); the ranks that use each."""
    lookups_of_rows: NDArray[np.int64]
    """(num_rows,); lookups of each row in the epoch."""
    remote_lookups: int
    """Lookups whose row another rank owns, with owners striped by key."""

    @property
    def num_rows(self) -> int:
        """Rows that keys number."""
        return int(self.lookups_of_rows.size)


@dataclass(frozen=True, slots=True)
class ExchangeCounts:
    """Messages of an epoch between all ranks, each of one row."""

    striped: Crossings
    """Owners striped by key; first uses are computed where they are used."""
    by_use: Crossings
    """Owners are the ranks that use the row in most steps."""
    least: int
    """Vectors and gradients that no exact scheme can do without."""

    @property
    def deduplicated(self) -> int:
        """Vectors and gradients where owners are striped and first uses are sent, too."""
        # Every gradient that crosses belongs to a vector that crossed.
        return 2 * self.striped.gradients


def count_exchange(epoch: RankedEpoch) -> ExchangeCounts:
    """Count the messages of an epoch that begins with unused rows."""
    uses_KW = np.zeros((epoch.num_rows, epoch.num_ranks), np.uint32)
    count_uses(epoch.keys, epoch.masks, 0, uses_KW)
    last = last_users(epoch.keys, epoch.masks)

    def crossings(owners_K: NDArray[np.uint8]) -> Crossings:
        return count_crossings(StepRows(epoch.keys, epoch.masks, owners_K[epoch.keys], last == 0))

    return ExchangeCounts(
        striped=crossings(striped_owners(epoch.num_rows, epoch.num_ranks)),
        by_use=crossings(owners_by_use(uses_KW, np.zeros(epoch.num_ranks, np.int64))),
        least=least_crossings(epoch.masks, last),
    )


_MOST_EXACT = 64
"""Most balls whose fullest bin is counted exactly."""
_GRID = np.linspace(-9, 9, 7_201)


@dataclass(frozen=True, slots=True)
class ExpectedExchange:
    """Expected vectors and gradients of an epoch between all ranks."""

    every_lookup: float
    deduplicated: float
    first_uses_computed: float
    owners_by_use: float
    least_possible: float


def expected_exchange(
    lookups: NDArray[np.int64], num_samples: int, num_steps: int, num_ranks: int
) -> ExpectedExchange:
    """Return what is to be expected of an epoch whose samples are divided equally.

    Args:
        lookups: (num_rows,), how often each row is looked up in the epoch.
        num_samples: of the epoch.
        num_steps: its batches.
        num_ranks: ranks that share each of them, at least 2.
    """
    # Rows that are looked up equally often count together.
    counts, num_rows = np.unique(lookups[lookups > 0], return_counts=True)
    rates = np.minimum(counts / max(num_samples, 1), 1.0)
    batch_size = num_samples / max(num_steps, 1)
    num_uses = num_ranks * num_steps * presence(rates, batch_size / num_ranks)
    num_used = num_steps * presence(rates, batch_size)
    # A row is used at most as often as it is looked up, and in one step at least.
    num_uses = np.clip(num_uses, np.minimum(counts, 1), counts)
    num_used = np.clip(num_used, np.minimum(counts, 1), num_uses)
    share = num_uses / (num_ranks * num_steps)

    remote = (num_ranks - 1) / num_ranks
    not_first = 1 - 1 / num_used
    away = num_uses - most_uses(num_uses, num_steps, num_ranks)
    others = num_uses - num_used
    least = others * (1 + not_first) + (num_used - 1) * _disjoint(share, num_ranks)
    return ExpectedExchange(
        every_lookup=float(2 * remote * (num_rows @ counts)),
        deduplicated=float(2 * remote * (num_rows @ num_uses)),
        first_uses_computed=float(remote * (num_rows @ (num_uses * (1 + not_first)))),
        owners_by_use=float(num_rows @ np.maximum(away * (1 + not_first), least)),
        least_possible=float(num_rows @ least),
    )


def most_uses(num_uses: NDArray[np.float64], num_steps: int, num_ranks: int) -> NDArray[np.float64]:
    """Return the expected uses of each row by the rank that uses it most.

    Args:
        num_uses: (num_classes,), its uses by all ranks; need not be whole.
        num_steps: in each of which a rank uses a row once at most.
        num_ranks: of them all.
    """
    mean = num_uses / num_ranks
    exact = np.interp(num_uses, np.arange(_MOST_EXACT + 1), _fullest_bins(num_ranks)) - mean
    normal = np.sqrt(mean) * _highest_normal(num_ranks)
    # A row that is used nearly always is used by all ranks nearly equally often.
    num_pairs = num_ranks * num_steps
    left = np.sqrt(np.maximum(num_pairs - num_uses, 0) / max(num_pairs - 1, 1))
    most: NDArray[np.float64] = mean + left * np.where(num_uses <= _MOST_EXACT, exact, normal)
    return most


@cache
def _fullest_bins(num_bins: int) -> NDArray[np.float64]:
    """(65,): the expected number of balls in the fullest of some bins, by the number of balls."""
    factorials = np.array([math.factorial(k) for k in range(_MOST_EXACT + 1)], np.float64)
    weights = factorials / np.float64(num_bins) ** np.arange(_MOST_EXACT + 1)
    found = np.zeros(_MOST_EXACT + 1)
    # No bin has more than `most` balls: a power of a polynomial, whose coefficients count the ways.
    for most in range(_MOST_EXACT):
        one_bin = np.where(np.arange(_MOST_EXACT + 1) <= most, 1 / factorials, 0)
        ways = np.zeros(_MOST_EXACT + 1)
        ways[0] = 1
        for _ in range(num_bins):
            ways = np.convolve(ways, one_bin)[: _MOST_EXACT + 1]
        found += 1 - np.minimum(ways * weights, 1)
    return found


@cache
def _highest_normal(num_draws: int) -> float:
    """Return the expected largest of some standard normal numbers."""
    below = np.array([0.5 * math.erfc(-x / math.sqrt(2)) for x in _GRID.tolist()])
    most = below**num_draws
    middles = (_GRID[1:] + _GRID[:-1]) / 2
    return float(middles @ np.diff(most))


def _disjoint(share: NDArray[np.float64], num_ranks: int) -> NDArray[np.float64]:
    """Return the probability that two steps with users have none in common."""
    is_empty = (1 - share) ** num_ranks
    both = (1 - is_empty) ** 2
    apart = (1 - share**2) ** num_ranks - 2 * is_empty + is_empty**2
    # Where a row is hardly ever used, both have one user, and the same one once in W times.
    rare = np.full(share.shape, (num_ranks - 1) / num_ranks)
    return np.where(share > 1e-6, np.clip(apart, 0, None) / np.maximum(both, 1e-300), rare)
