"""The check of a schedule of several ranks: every rank is followed, step by step, without a row being sent.

Each rank knows where every row lives after every step: a row that is said to live somewhere lives there since
the step before, all ranks end with the same homes, and what they send is what the others receive and what the
totals count. No vector is marked to cross early whose row the step before uses.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ...stats.exchange.early_rows import first_stale_step, last_keys
from ...stats.exchange.home_moves import NO_HOME
from ...stats.exchange.rank_masks import Masks
from ...stats.exchange.rank_step_checks import (
    KINDS,
    add_digests,
    contradictions,
    count_rank_messages,
    first_wrong_home,
    fits_homes,
)
from ..errors import first_line, refuse_system_fault
from ..folders.file_facts import RankFacts
from ..folders.manifest import FileEntry, Manifest
from ..folders.stage_totals import ExchangeTotals, RankedWidthTotals, RanksEpoch
from ..formats.arrow_files import DAMAGE
from ..formats.stage_settings import RankScheduleSettings
from ..scheduling.exchange_files import RankOf, read_homes, read_steps


def check_exchange_file(entry: FileEntry, exchange: Manifest) -> Iterator[str]:
    """The file can be read, its rows are those of its rank, and it has the steps that the manifest says."""
    facts = RankFacts.of(exchange, entry)
    width = {width.embedding_dim: width for width in ExchangeTotals.of(exchange).widths}[facts.embedding_dim]
    num_ranks = len(width.rows_of_ranks)
    if facts.kind == "homes":
        homes_K, _ = read_homes(exchange, entry, width.num_rows, num_ranks)
        if np.bincount(homes_K, minlength=num_ranks).tolist() != list(width.rows_of_ranks):
            yield "its ranks have other numbers of rows than the manifest says"
        return
    num_steps = 0
    for part in read_steps(exchange, entry, RankOf(facts.rank or 0, num_ranks, width.num_rows)):
        if part.first_step != (facts.first_step or 0) + num_steps:
            yield f"its step {part.first_step} does not follow the one before"
        num_steps += part.steps.num_steps
    if num_steps != facts.num_steps:
        yield f"it has {num_steps} steps, want {facts.num_steps}"


def check_exchange(exchange: Manifest) -> Iterator[str]:
    """Follow every rank through every epoch of every width."""
    for width in ExchangeTotals.of(exchange).widths:
        try:
            fault = _Run(exchange, width).fault()
        except DAMAGE as error:
            refuse_system_fault(exchange.folder, error)
            fault = first_line(error)
        if fault is not None:
            yield f"{exchange.folder}: width {width.embedding_dim}: {fault}"


class _Run:
    """The ranks of one width, each with the homes that it knows."""

    def __init__(self, exchange: Manifest, width: RankedWidthTotals) -> None:
        self._exchange = exchange
        self._width = width
        self._num_ranks = len(width.rows_of_ranks)
        files = [(entry, RankFacts.of(exchange, entry)) for entry in exchange.files]
        self._files = [pair for pair in files if pair[1].embedding_dim == width.embedding_dim]
        self._may_move = RankScheduleSettings.of(exchange).homes == "moving"
        self._homes: tuple[NDArray[np.uint8], Masks] | None = None
        """Where rows live before their first use, and the ranks that ever use each."""
        self._last_keys = [np.empty(0, np.int32)] * self._num_ranks
        """Rows of the step of each rank that was followed last."""
        self._digests_W = np.empty((0, 0, 0), np.uint64)
        """Digests of the messages of the epoch that is followed, see `add_digests`."""

    def fault(self) -> str | None:
        """Follow all epochs; returns the first fault."""
        homes = [entry for entry, facts in self._files if facts.kind == "homes"]
        if len(homes) != 1:
            return f"it has {len(homes)} files of homes, want 1"
        self._homes = read_homes(self._exchange, homes[0], self._width.num_rows, self._num_ranks)
        homes_WK = np.full((self._num_ranks, self._width.num_rows), NO_HOME, np.uint8)
        for epoch, wanted in enumerate(self._width.epochs):
            # Rows that each rank sends and receives in the epoch, by kind and by the other rank.
            counts_WLW = np.zeros((self._num_ranks, KINDS, self._num_ranks), np.int64)
            extra_W2 = np.zeros((self._num_ranks, 2), np.int64)
            self._digests_W = np.zeros((self._num_ranks, KINDS + 1, self._num_ranks), np.uint64)
            for rank in range(self._num_ranks):
                fault = self._follow(epoch, rank, homes_WK[rank], counts_WLW[rank], extra_W2[rank])
                if fault is not None:
                    return f"rank {rank} in epoch {epoch}: {fault}"
            if (homes_WK != homes_WK[:1]).any():
                return f"ranks know other homes after epoch {epoch}"
            sent, received = counts_WLW[:, 0::2], counts_WLW[:, 1::2].transpose(2, 1, 0)
            if (sent != received).any():
                return f"ranks send other rows than are received in epoch {epoch}"
            early, moves = extra_W2.sum(axis=0).tolist()
            vectors, gradients = sent.sum(axis=(0, 2)).tolist()
            found = RanksEpoch(
                steps=wanted.steps, vectors=vectors, early=early, moves=moves, gradients=gradients
            )
            if found != wanted:
                return f"what crosses in epoch {epoch} is not what the manifest says"
            if wrong := contradictions(self._digests_W):
                first, other = wrong[0]
                return f"the steps of ranks {first} and {other} do not fit together in epoch {epoch}"
        return None

    def _follow(
        self,
        epoch: int,
        rank: int,
        homes_K: NDArray[np.uint8],
        counts_LW: NDArray[np.int64],
        extra_2: NDArray[np.int64],
    ) -> str | None:
        """Follow one rank through an epoch; adds to its counts, early vectors that it sends, and moves."""
        num_steps = 0
        of = RankOf(rank, self._num_ranks, self._width.num_rows)
        for entry, facts in self._files:
            if (facts.epoch, facts.rank) != (epoch, rank):
                continue
            for part in read_steps(self._exchange, entry, of):
                if part.first_step != num_steps:
                    return f"step {part.first_step} does not follow the one before"
                num_steps += part.steps.num_steps
                counts_LW += count_rank_messages(part.steps, rank, self._num_ranks).sum(axis=0)
                place = (0, part.first_step, rank, self._digests_W[rank])
                add_digests(part.steps, part.batches, *place)
                wrong = first_wrong_home(part.steps, rank, homes_K, extra_2)
                if wrong is not None:
                    return f"step {part.first_step + wrong}: a row does not live where it is said to"
                assert self._homes is not None, "`fault` reads them"
                if not fits_homes(part.steps, rank, *self._homes, may_move=self._may_move):
                    return f"step {part.first_step}: a row does not live where the homes say"
                stale = first_stale_step(part.steps, rank, self._last_keys[rank])
                if stale is not None:
                    return f"step {part.first_step + stale}: a vector would cross before its update"
                self._last_keys[rank] = last_keys(part.steps, self._last_keys[rank])
        if num_steps != self._width.epochs[epoch].steps:
            return f"it has {num_steps} steps, want {self._width.epochs[epoch].steps}"
        return None
