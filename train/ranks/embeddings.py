"""The embeddings of one rank: rows it owns, rows of other ranks.

The tiers, the placement and the planner of a rank see one lookup of each row that the rank owns and that any
rank uses: the rows are gathered, their vectors read, and updated by gradients that are summed already, as in
one process. Around that, vectors and gradients cross between ranks:

    look_up   vectors of served rows  -> to the ranks that use them
              the rank's own lookups  <- kept and received vectors, initial values of rows used first
    update    gradients of own rows, summed over the rank's micro-batches  -> to the rows' owners
              served rows             <- gradients of all ranks, added by the tree, one optimizer step

The loop reads the vectors of a step after the previous update of their row, so no rank ever sees an older
value. All ranks make the same exchanges in the same order. For evaluation and weights, rank 0 gathers the
rows of a table from all ranks, a part at a time, in the order of their ids.
"""
# ruff: noqa: N815  (arrays carry shape suffixes)

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray

from ...pipeline.errors import MIB
from ...stats.exchange import StepRows, rank_masks
from ..data.batch import (
    Batch,
    BatchIds,
    EmbeddingTable,
    Lookups,
    LookupsOfBatch,
    MicroBatches,
    join_lookups,
)
from ..rows.backends import NumbaRows, RowOptimizer
from ..rows.embeddings import Embeddings
from ..rows.kernels import copy_rows
from ..rows.step_plan import ColdRows, GroupStep, PlannedStep, StepPlan
from ..rows.table_group import TableGroup
from ..threads import WorkThreads
from .exchange import GroupExchange, HeldRows, keys_of, plan_exchange, ranks_of_batch, ranks_of_lookups
from .messages import EXACT, CodedExchange, GroupLayout, Kind, RowMessages, sum_over_ranks
from .ranks import NotFiniteRowError, Ranks, arrays_to_first, raise_on_any_rank


@dataclass(slots=True, kw_only=True)
class RankedGroup(TableGroup):
    """A group with some rows at this rank; ``reader`` reads all lookups."""

    held: HeldRows
    is_used_K: NDArray[np.bool_] = field(init=False)
    """(num_keys,); whether a step that was read has used each row, so that its owner sends its value."""

    def __post_init__(self) -> None:
        TableGroup.__post_init__(self)
        self.is_used_K = np.zeros(self.held.owners_K.size, np.bool_)

    def read(self, batch: Batch) -> GroupStep:
        """Return the rows that a training step serves, each once, and what crosses."""
        return self._read(batch, self.micro_batches.cut(batch), self._ranks_of(batch), is_training=True)

    def look_at(self, lookups: LookupsOfBatch) -> GroupExchange:
        """Return what would cross in a step if all rows had been used."""
        own = lookups.cut(*self.micro_batches.own_part(lookups.num_samples))
        part = self._read(lookups, own, self._ranks_of(lookups), is_training=False)
        exchange: GroupExchange = part.exchange
        return exchange

    def read_round(self, lookups: Sequence[LookupsOfBatch]) -> GroupStep:
        """Return the same as `read` of an evaluation, where rank r has batch r."""
        ranks_B = np.repeat(np.arange(len(lookups)), [each.num_samples for each in lookups])
        own = lookups[self.micro_batches.rank]
        return self._read(join_lookups(lookups), own, ranks_B.astype(np.uint8), is_training=False)

    def _read(
        self, batch: Lookups, own: Lookups, ranks_B: NDArray[np.uint8], *, is_training: bool
    ) -> GroupStep:
        # Every rank reads its part of the samples, and those of the others, too.
        ids, own_ids = self.reader.read(batch), self.reader.read(own)
        lookups = self.reader.by_row(ids)
        keys_U = keys_of(lookups, self.held.first_key_F1)
        # In evaluation every row comes from its owner.
        is_first_U = np.zeros(keys_U.size, np.bool_)
        if is_training:
            is_first_U = ~self.is_used_K[keys_U]
            self.is_used_K[keys_U] = True
        num_ranks = self.micro_batches.num_ranks
        masks_U = rank_masks(lookups, ranks_of_lookups(ranks_B, ids), num_ranks)
        step = StepRows(keys_U, masks_U, self.held.owners_K[keys_U], is_first_U)
        own_lookups = self.reader.by_row(own_ids)
        exchange = plan_exchange(step, self.held, num_ranks, own_ids, own_lookups, is_training=is_training)
        # Served rows are the lookups of so many samples of one feature.
        served = self.held.served(keys_U)
        return GroupStep(BatchIds(served.rows_U, None, served.num_rows, 1), served, exchange)

    def _ranks_of(self, batch: Lookups) -> NDArray[np.uint8]:
        micro_batches = self.micro_batches
        return ranks_of_batch(
            batch.num_samples,
            micro_batches.batch_size,
            micro_batches.num_micro_batches,
            micro_batches.num_ranks,
        )

    def cold_rows(self, batch: Lookups) -> ColdRows:
        lookups = self.reader.by_row(self.reader.read(batch))
        return self.placement.cold_rows(self.held.served(keys_of(lookups, self.held.first_key_F1)))


_FLOAT_BYTES = 4
_SLICE_BYTES = 64 * MIB
"""Bytes of a table that are gathered at a time."""


def _gather_part(own_ND: torch.Tensor, owners_N: NDArray[np.uint8], ranks: Ranks) -> torch.Tensor:
    """Return rows of all ranks in order at rank 0, none elsewhere."""
    found = arrays_to_first(ranks, [own_ND.numpy()])
    if ranks.rank:
        return own_ND[:0]
    # Rows of a rank arrive in ascending order, so its places in the whole are those that it owns.
    whole_ND = torch.empty(owners_N.size, own_ND.shape[1], dtype=torch.float32, device="cpu")
    for other, (rows_ND,) in enumerate(found):
        whole_ND[torch.from_numpy(np.flatnonzero(owners_N == other))] = torch.from_numpy(rows_ND)
    return whole_ND


class RankedEmbeddings(Embeddings):
    """The rows of this rank, moved between tiers and between ranks."""

    def __init__(
        self,
        tables: Sequence[EmbeddingTable],
        groups: Sequence[RankedGroup],
        ranks: Ranks,
        micro_batches: MicroBatches,
        optimizer: RowOptimizer,
        threads: WorkThreads,
        coded: CodedExchange,
    ) -> None:
        super().__init__(len(tables), groups)
        self._tables = tables
        self._ranked = tuple(groups)
        self._ranks = ranks
        self._micro_batches = micro_batches
        self._rows = NumbaRows(optimizer, threads, micro_batches)
        self._coded = coded
        layout = [
            GroupLayout(
                group.embedding_dim,
                group.held.first_key_F1,
                tuple(tables[table].name for table in group.tables),
            )
            for group in groups
        ]
        self._messages = RowMessages(ranks, layout)
        self._served: list[torch.Tensor] = []
        """(S, 1, D) vectors of each group that were read last, whose gradients become those of the rows."""

    def step(
        self,
        number: int,
        batch: Batch,
        plans: Sequence[StepPlan],
        read: Sequence[GroupStep],
        item: int | None = None,
    ) -> PlannedStep:
        """Put together the step of this rank, which has a part of the samples."""
        whole = super().step(number, batch, plans, read, item)
        return replace(whole, batch=self._micro_batches.cut(batch))

    def evaluation_steps(
        self,
        numbers: Iterable[int],
        read: Callable[[int], Batch],
        read_lookups: Callable[[int], LookupsOfBatch] | None = None,
    ) -> Iterator[PlannedStep]:
        """Return this rank's evaluation steps, one of W; those beyond the last batch are empty."""
        assert read_lookups is not None, "ranks plan by the lookups of all"
        # One batch for each rank at a time: all take part in each step, as any may need their rows.
        num_ranks = self._ranks.num_ranks
        for first in islice(numbers, 0, None, num_ranks):
            # What one rank cannot read ends all of them, before they wait for its rows.
            with raise_on_any_rank(self._ranks):
                lookups = [read_lookups(number) for number in range(first, first + num_ranks)]
                own = read(first + self._ranks.rank)
                parts = []
                for group in self._ranked:
                    plan = group.placement.plan_evaluation(is_stale=group.slow.is_stale)
                    parts.append(replace(group.read_round(lookups), plan=plan))
            yield PlannedStep(first + self._ranks.rank, own, own.num_samples, tuple(parts))

    def look_up(self, step: PlannedStep) -> list[torch.Tensor]:
        """(B, F, D) embeddings of each group, of the samples of this rank."""
        # The vectors of served rows go out first.
        exchanges = _exchanges_of(step)
        self._served = super().look_up(step)
        served = [vectors.detach().squeeze(1).numpy() for vectors in self._served]
        under_way = self._send("vectors", served, exchanges)
        # What is here already is put in its place while the others' vectors arrive.
        own = []
        for group, vectors_SD, each in zip(self._ranked, served, exchanges, strict=True):
            vectors_OD = torch.empty(
                each.own_lookups.num_rows, group.embedding_dim, dtype=torch.float32, device="cpu"
            )
            copy_rows(vectors_SD, each.kept[1], vectors_OD.numpy(), each.kept[0])
            # Rows of other ranks are named by their ids in the whole tables.
            replace(group.initial, held=None).write(*each.made_rows, vectors_OD, each.made)
            own.append(vectors_OD)
        # Received vectors fill the gaps, and the rank's own lookups read all of them.
        with self._coded.clocked("vectors"):
            arrived = under_way()
        for vectors_OD, received_ND, each in zip(own, arrived, exchanges, strict=True):
            vectors_OD.numpy()[each.vectors.receive.places_N] = received_ND
        return [self._look_up_own(vectors_OD, each) for vectors_OD, each in zip(own, exchanges, strict=True)]

    def update(
        self, step: PlannedStep, embeddings: Sequence[torch.Tensor], rate: float | None = None
    ) -> None:
        """Take one optimizer step on rows that this rank owns and any looked up."""
        # The gradients of each own row, summed over the micro-batches of this rank.
        exchanges = _exchanges_of(step)
        sums = []
        for emb_BFD, each in zip(embeddings, exchanges, strict=True):
            assert emb_BFD.grad is not None, "the backward pass comes first"
            grad_PD = emb_BFD.grad.reshape(-1, emb_BFD.shape[-1])
            by_bag = each.own_ids.by_bag(each.own_lookups)
            sums.append(self._rows.sums(by_bag, grad_PD, each.own_ids.num_features).numpy())
        # Sums go to the owners of their rows; those owned here are kept.
        under_way = self._send("gradients", sums, exchanges)
        with self._coded.clocked("gradients"):
            found = under_way()
        # An owner adds the sums of all ranks by the tree, as one process adds those of its micro-batches.
        for vectors, received_ND, sums_OD, each in zip(self._served, found, sums, exchanges, strict=True):
            partials_ND = np.concatenate([received_ND, sums_OD[each.kept[0]]])
            vectors.grad = torch.from_numpy(sum_over_ranks(each.partials_SW, partials_ND)).unsqueeze(1)
        super().update(step, self._served, rate)
        self._coded.note_step()

    def _send(
        self, kind: Kind, rows: Sequence[NDArray[np.float32]], exchanges: Sequence[GroupExchange]
    ) -> Callable[[], list[NDArray[np.float32]]]:
        """Send vectors of served rows, or gradients of own rows, where needed."""
        found = [each.vectors if kind == "vectors" else each.gradients for each in exchanges]
        coding = self._coded.vectors() if kind == "vectors" else self._coded.gradients()
        # Evaluation reads rows as they are, and counts no bytes.
        is_training = all(each.is_training for each in exchanges)
        data = [rows_ND[each.send.places_N] for rows_ND, each in zip(rows, found, strict=True)]
        sent = [each.send for each in found]
        received = [each.receive for each in found]
        if not is_training:
            return self._messages.send(data, sent, received, EXACT)
        try:
            with self._coded.clocked(kind):
                under_way = self._messages.send(data, sent, received, coding)
        except NotFiniteRowError as error:
            name = f"the {kind.removesuffix('s')} of {error} at step {self._coded.step + 1}"
            raise NotFiniteRowError(name) from None
        self._coded.note_sent(kind, self._messages.sent_bytes, self._messages.num_saturated)
        return under_way

    def _look_up_own(self, vectors_OD: torch.Tensor, exchange: GroupExchange) -> torch.Tensor:
        """(B, F, D) embeddings of this rank's samples from its distinct rows."""
        # One vector for each lookup, pooled where features have bags.
        ids = exchange.own_ids
        dim = vectors_OD.shape[1]
        vectors_ND = torch.empty(ids.ids_N.size, dim, dtype=torch.float32, device="cpu")
        self._rows.look_up(vectors_OD, exchange.own_lookups, np.arange(vectors_OD.shape[0]), vectors_ND)
        if ids.bags_N is not None:
            pooled_PD = torch.empty(ids.num_bags, dim, dtype=torch.float32, device="cpu")
            self._rows.pool(vectors_ND, ids, pooled_PD)
            vectors_ND = pooled_PD
        return vectors_ND.view(ids.num_samples, ids.num_features, dim).requires_grad_(torch.is_grad_enabled())

    def local_ids(
        self, tables_N: NDArray[np.int32], ids_N: NDArray[np.int32]
    ) -> tuple[NDArray[np.bool_], NDArray[np.int32]]:
        """Return which rows this rank owns, with local ids; mark all used."""
        if ids_N.size == 0:
            return np.ones(0, np.bool_), ids_N
        # By number over all tables of the group: where each row lives, and its number there.
        group, positions_N = self._positions(tables_N)
        held = group.held
        keys_N = held.keys(positions_N, ids_N.astype(np.int64))
        group.is_used_K[keys_N] = True
        is_held_N = held.owners_K[keys_N] == held.rank
        local_N = held.local_ids(positions_N[is_held_N], keys_N[is_held_N])
        return is_held_N, local_N.astype(np.int32)

    def shard_ids(self, tables_N: NDArray[np.int32], ids_N: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the ids that rows of this rank have in the shards."""
        group, positions_N = self._positions(tables_N)
        return group.held.ids.of(positions_N, ids_N.astype(np.int64)).astype(np.int32)

    def _positions(self, tables_N: NDArray[np.int32]) -> tuple[RankedGroup, NDArray[np.int64]]:
        """Return the table group of rows, and their tables' positions in it."""
        group, _ = self._position_of[int(tables_N[0])]
        assert isinstance(group, RankedGroup)
        return group, np.searchsorted(np.array(group.tables), tables_N).astype(np.int64)

    def table_parts(self, table: int, *, state: bool = False) -> Iterator[torch.Tensor]:
        """Yield the weights or state of one table in parts, at rank 0.

        Parts are in id order. Every rank calls this and takes all parts; those of the other ranks are empty.
        """
        group, position = self._position_of[table]
        assert isinstance(group, RankedGroup)
        # A rank may have no row of a table.
        rows_ND = (group.fast.state_SW if state else group.fast.weights_SD)[:0]
        if group.placement.num_rows[position]:
            rows_ND = torch.cat(list(group.table_parts(position, state=state)))
        # There is nothing to send of a table without rows, or of rows without a state.
        num_rows, dim = self._tables[table].num_rows, rows_ND.shape[1]
        if num_rows * dim == 0:
            yield torch.empty(num_rows, dim, dtype=torch.float32, device="cpu")
            return
        held = group.held
        ids = held.ids.of_table(position)
        first_key = int(held.first_key_F1[position])
        most = max(_SLICE_BYTES // (_FLOAT_BYTES * dim), 1)
        for first in range(0, num_rows, most):
            stop = min(first + most, num_rows)
            start, end = np.searchsorted(ids, [first, stop]).tolist()
            owners_N = held.owners_K[first_key + first : first_key + stop]
            yield _gather_part(rows_ND[start:end], owners_N, self._ranks)


def _exchanges_of(step: PlannedStep) -> list[GroupExchange]:
    """Return what crosses in a step, by group."""
    found = [part.exchange for part in step.parts if part.exchange is not None]
    assert len(found) == len(step.parts), "steps of several ranks say what crosses"
    return found
