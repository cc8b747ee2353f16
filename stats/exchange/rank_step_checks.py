"""Checks of the rows that concern a rank, as they are read from a file: kernels and messages trust them.

Shapes: S steps, 4 lists of messages, W ranks.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..hashing import mix64_pair
from ..kernel import inlined_kernel, kernel
from .home_moves import NO_HOME
from .rank_masks import Masks
from .rank_steps import RankSteps, concerns

KINDS = 4
"""Counts of a rank's messages: vectors that it sends and receives, then gradients."""
_FEW_RANKS = 8
"""As many bits has a mask of one byte."""


@kernel
def _count_messages(steps: RankSteps, rank: int, counts_SLW: NDArray[np.int32]) -> None:
    num_ranks = counts_SLW.shape[2]
    for step in range(counts_SLW.shape[0]):
        for i in range(steps.starts_S1[step], steps.starts_S1[step + 1]):
            mask = np.uint64(steps.masks_N[i])
            before, after = steps.before_N[i], steps.after_N[i]
            if mask >> np.uint64(rank) & np.uint64(1):
                if before != rank and before != NO_HOME:
                    counts_SLW[step, 1, before] += 1
                if after != rank:
                    counts_SLW[step, 2, after] += 1
            # Rows of other ranks are most of those that this one looks up.
            if before != rank and after != rank:
                continue
            for other in range(num_ranks):
                if other != rank and mask >> np.uint64(other) & np.uint64(1):
                    counts_SLW[step, 0, other] += before == rank
                    counts_SLW[step, 3, other] += after == rank


@kernel
def _count_messages_by_users(steps: RankSteps, rank: int, counts_SLW: NDArray[np.int32]) -> None:
    """As `_count_messages`, for up to 8 ranks: rows are counted by their users first, without a branch."""
    num_ranks = counts_SLW.shape[2]
    sent_2M = np.zeros((2, 256), np.int64)
    received_2H = np.zeros((2, 256), np.int64)
    for step in range(counts_SLW.shape[0]):
        sent_2M[:] = 0
        received_2H[:] = 0
        for i in range(steps.starts_S1[step], steps.starts_S1[step + 1]):
            mask = np.int64(steps.masks_N[i])
            before, after = np.int64(steps.before_N[i]), np.int64(steps.after_N[i])
            # Rows that live elsewhere count as those without users, which there are none of.
            sent_2M[0, mask * np.int64(before == rank)] += 1
            sent_2M[1, mask * np.int64(after == rank)] += 1
            # Those that the rank does not use count as those without a home.
            unused = np.int64(((mask >> rank & 1) - 1) & NO_HOME)
            received_2H[0, before | unused] += 1
            received_2H[1, after | unused] += 1
        for other in range(num_ranks):
            if other == rank:
                continue
            for users in range(1, 1 << num_ranks):
                is_user = np.int64(users >> other & 1)
                counts_SLW[step, 0, other] += is_user * sent_2M[0, users]
                counts_SLW[step, 3, other] += is_user * sent_2M[1, users]
            counts_SLW[step, 1, other] = received_2H[0, other]
            counts_SLW[step, 2, other] = received_2H[1, other]


def count_rank_messages(steps: RankSteps, rank: int, num_ranks: int) -> NDArray[np.int32]:
    """Return the rows that a rank sends and receives, (num_steps, 4, num_ranks). Exact.

    Vectors to and from each rank, those of rows that move among them, then gradients to and from each; as
    many as `messages.list_messages` lists.

    Args:
        steps: of the rank; homes and users below ``num_ranks``.
        rank: whose they are.
        num_ranks: of them all.
    """
    counts_SLW = np.zeros((steps.num_steps, KINDS, num_ranks), np.int32)
    count = _count_messages_by_users if num_ranks <= _FEW_RANKS else _count_messages
    count(steps, rank, counts_SLW)
    return counts_SLW


@inlined_kernel
def _is_possible(mask: np.uint64, before: int, after: int, is_early: int, rank: int, num_ranks: int) -> bool:
    is_user = mask != np.uint64(0) and (num_ranks == 64 or mask >> np.uint64(num_ranks) == np.uint64(0))
    lives = after < num_ranks and (before < num_ranks or before == NO_HOME)
    return is_user and lives and is_early <= (before != NO_HOME) and concerns(mask, before, after, rank)


@kernel
def _first_fault(steps: RankSteps, rank: int, num_ranks: int, num_keys: int) -> int:
    for step in range(steps.starts_S1.shape[0] - 1):
        last = np.int64(-1)
        for i in range(steps.starts_S1[step], steps.starts_S1[step + 1]):
            key = np.int64(steps.keys_N[i])
            is_possible = _is_possible(
                np.uint64(steps.masks_N[i]),
                steps.before_N[i],
                steps.after_N[i],
                steps.is_early_N[i],
                rank,
                num_ranks,
            )
            if key <= last or key >= num_keys or not is_possible:
                return step
            last = key
        last = np.int64(-1)
        for i in range(steps.passed_starts_S1[step], steps.passed_starts_S1[step + 1]):
            key = np.int64(steps.passed_keys_P[i])
            if key <= last or key >= num_keys or steps.passed_homes_P[i] >= num_ranks:
                return step
            last = key
    return -1


def first_faulty_step(steps: RankSteps, rank: int, num_ranks: int, num_keys: int) -> int | None:
    """Return the first step whose rows cannot be those of a rank; None where all can. Exact.

    Args:
        steps: as they were read: keys, masks and homes are any numbers, starts ascend within the arrays.
        rank: whose they are to be.
        num_ranks: of them all.
        num_keys: rows that keys may name.
    """
    found = int(_first_fault(steps, rank, num_ranks, num_keys))
    return None if found < 0 else found


def fits_homes(
    steps: RankSteps, rank: int, homes: NDArray[np.uint8], users: Masks, *, may_move: bool
) -> bool:
    """Return whether each row lives where its rank has a place for it, and is used by its users. Exact.

    Args:
        steps: of the rank, checked.
        rank: whose they are.
        homes: (num_keys,), where rows live before their first use.
        users: (num_keys,), the ranks that ever use each.
        may_move: whether rows change their homes; a rank has a place for each that it ever uses then.
    """
    users_N = users[steps.keys_N]
    if (steps.masks_N & ~users_N).any():
        return False
    if not may_move:
        is_home_N = homes[steps.keys_N] == steps.after_N
        return bool(is_home_N.all() and (homes[steps.passed_keys_P] == steps.passed_homes_P).all())
    has_place_N = (homes[steps.keys_N] == rank) | (users_N >> users_N.dtype.type(rank) & 1).astype(np.bool_)
    return bool(has_place_N[(steps.before_N == rank) | (steps.after_N == rank)].all())


@kernel
def _follow_homes(
    steps: RankSteps, rank: int, homes_K: NDArray[np.uint8], early_and_moves_2: NDArray[np.int64]
) -> int:
    own = np.uint64(1) << np.uint64(rank)
    for step in range(steps.starts_S1.shape[0] - 1):
        for i in range(steps.starts_S1[step], steps.starts_S1[step + 1]):
            key = np.int64(steps.keys_N[i])
            before, after = steps.before_N[i], steps.after_N[i]
            if homes_K[key] != before:
                return step
            homes_K[key] = after
            # Of each row its home counts, which sends it.
            if before == rank:
                others = np.uint64(steps.masks_N[i]) & ~own
                while others:
                    others &= others - np.uint64(1)
                    early_and_moves_2[0] += steps.is_early_N[i]
                early_and_moves_2[1] += after != rank
        for i in range(steps.passed_starts_S1[step], steps.passed_starts_S1[step + 1]):
            homes_K[np.int64(steps.passed_keys_P[i])] = steps.passed_homes_P[i]
    return -1


def first_wrong_home(
    steps: RankSteps, rank: int, homes: NDArray[np.uint8], early_and_moves: NDArray[np.int64] | None = None
) -> int | None:
    """Follow the homes of all rows; return the first step in which one lives elsewhere, None if none does.

    Args:
        steps: of the rank, checked.
        rank: whose they are.
        homes: (num_keys,), where rows live before the first of these steps, `NO_HOME` before the first use;
            changed to where they live after the last.
        early_and_moves: (2,), the vectors that this rank may send a step early, and the rows that move away
            from it; added to.
    """
    counts_2 = np.zeros(2, np.int64) if early_and_moves is None else early_and_moves
    found = int(_follow_homes(steps, rank, homes, counts_2))
    return None if found < 0 else found


@kernel
def _add_digests(
    steps: RankSteps,
    batches_S: NDArray[np.int32],
    seed: np.uint64,
    first_step: int,
    rank: int,
    digests_LW: NDArray[np.uint64],
) -> None:
    num_ranks = digests_LW.shape[1]
    for step in range(batches_S.shape[0]):
        place = mix64_pair(mix64_pair(seed, np.uint64(first_step + step)), np.uint64(batches_S[step]))
        for i in range(steps.starts_S1[step], steps.starts_S1[step + 1]):
            mask = np.uint64(steps.masks_N[i])
            before, after = steps.before_N[i], steps.after_N[i]
            key = np.uint64(steps.keys_N[i]) << np.uint64(2)
            # A vector crosses in its step, or a step early; or its row moves.
            stays = mix64_pair(place, key)
            vector = mix64_pair(place, key | np.uint64(2)) if steps.is_early_N[i] else stays
            moves = mix64_pair(place, key | np.uint64(1))
            # The same cases as in `_count_messages`, with the rows themselves instead of their number.
            if mask >> np.uint64(rank) & np.uint64(1):
                if before != rank and before != NO_HOME:
                    digests_LW[1, before] += moves if after == rank else vector
                if after != rank:
                    digests_LW[2, after] += stays
            for other in range(num_ranks):
                if other != rank and mask >> np.uint64(other) & np.uint64(1):
                    if before == rank:
                        digests_LW[0, other] += moves if after == other else vector
                    if after == rank:
                        digests_LW[3, other] += stays
            # Every rank knows of every row that gets another home.
            if before != after:
                digests_LW[4, rank] += mix64_pair(stays, np.uint64(after))
        for i in range(steps.passed_starts_S1[step], steps.passed_starts_S1[step + 1]):
            stays = mix64_pair(place, np.uint64(steps.passed_keys_P[i]) << np.uint64(2))
            digests_LW[4, rank] += mix64_pair(stays, np.uint64(steps.passed_homes_P[i]))


def add_digests(
    steps: RankSteps,
    batches: NDArray[np.int32],
    seed: int,
    first_step: int,
    rank: int,
    digests: NDArray[np.uint64],
) -> None:
    """Add digests of what a rank sends, receives and knows, by which two ranks can compare their steps.

    Args:
        steps: of the rank, checked.
        batches: (num_steps,), the batch of each.
        seed: of the width and the epoch.
        first_step: number of the first of these steps.
        rank: whose they are.
        digests: (5, num_ranks), added to: of the vectors to and from each rank with what crosses early, the
            gradients to and from each, and in the column of the rank of all rows that get another home.

    Error:
        Other rows have equal digests once in ``2**64`` times.
    """
    _add_digests(steps, batches, np.uint64(seed), first_step, rank, digests)


def contradictions(digests: NDArray[np.uint64]) -> list[tuple[int, int]]:
    """Return the pairs of ranks whose steps do not fit together.

    Args:
        digests: (num_ranks, 5, num_ranks), of every rank, as `add_digests` left them.
    """
    homes_W = np.diagonal(digests[:, 4])
    found = []
    for rank in range(digests.shape[0]):
        for other in range(digests.shape[0]):
            has_sent = digests[rank, [0, 2], other] == digests[other, [1, 3], rank]
            if not has_sent.all() or homes_W[rank] != homes_W[other]:
                found.append((rank, other))
    return found
