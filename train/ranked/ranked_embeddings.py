"""The embeddings of a rank: its own rows, those it looks up at other ranks, and the gradients of both.

To the tiers of a rank, to its placement and to its planners a step is one lookup of each row that lives here
and that any rank uses: the rows are brought, their vectors read, and updated by gradients that are summed
already, as in one process. Around that, vectors and gradients cross between ranks:

    look_up   vectors of served rows  -> to the ranks that use them
              the rank's own lookups  <- kept and received vectors, initial values of rows used first
    send_ahead  vectors of the next step that this one does not change  -> to the ranks that use them
    update    gradients of own rows, summed over the rank's shares  -> to the rows' homes
              served rows             <- gradients of all ranks, added by the tree, one optimizer step

Vectors of a step are read after the last update of their row before it, in the loop, so no rank ever sees an
older value. All ranks make the same exchanges in the same order.

Where homes move, a row goes with its vectors: its home before the step sends it whole to the home after it,
which puts it in its own place and updates it. Both serve it in that step. What the old home keeps is never
read again, unless the row comes back and overwrites it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray

from ..data.batch import Batch, EmbeddingTable
from ..data.batch_shares import BatchShares
from ..exchange.coded_exchange import CodedExchange
from ..exchange.partial_sums import sum_over_ranks
from ..exchange.row_messages import NotFiniteRowError, RowMessages, RowsUnderWay, WidthLayout
from ..exchange.width_exchange import WidthExchange
from ..execution.embeddings import Embeddings
from ..execution.row_width import PlannedStep, WidthStep
from ..ranks.ranks import Ranks
from ..rows.row_backends import NumbaRows
from ..rows.row_kernels import copy_rows
from ..rows.row_optimizers import RowOptimizer
from ..work_threads import WorkThreads
from .brought_rows import brought_rows
from .moved_rows import read_ahead, read_newest, write_rows
from .ranked_width import RankedWidth
from .sent_vectors import SentVectors, early_of, exchanges_of
from .synced_copies import SyncedCopies


class RankedEmbeddings(Embeddings):
    """The rows of this rank, and what moves them between its tiers and to other ranks.

    Args:
        tables: those of the shards.
        widths: the same by width, of each the rows that live here.
        ranks: all of them.
        shares: of a batch.
        optimizer: that of the rows.
        threads: share the work on rows.
        coded: codecs and counts of what crosses.
        copies: rows that every rank holds, synchronised every few steps.
    """

    def __init__(
        self,
        tables: Sequence[EmbeddingTable],
        widths: Sequence[RankedWidth],
        ranks: Ranks,
        shares: BatchShares,
        optimizer: RowOptimizer,
        threads: WorkThreads,
        coded: CodedExchange,
        copies: SyncedCopies,
    ) -> None:
        super().__init__(len(tables), widths)
        self._tables = tables
        self._ranked = tuple(widths)
        self._ranks = ranks
        self._shares = shares
        self._rows = NumbaRows(optimizer, threads, shares)
        self._coded = coded
        self.copies = copies
        layout = [
            WidthLayout(
                width.embedding_dim,
                width.exchange.held.first_key_F1,
                tuple(tables[table].name for table in width.tables),
            )
            for width in widths
        ]
        self._messages = RowMessages(ranks, layout)
        self.may_move = any(width.exchange.homes.may_move for width in widths)
        """Whether rows may change their homes."""
        self._vectors = SentVectors(widths, ranks, layout, coded, may_move=self.may_move)
        self._last_item = -1
        """The last item of the transfer thread that a step has waited for."""
        self._served: list[torch.Tensor] = []
        """(S, 1, D) vectors of each width that were read last, whose gradients become those of the rows."""

    def plan_epoch(self, numbers: Iterable[int]) -> None:
        for width in self._ranked:
            width.exchange.homes.plan_epoch(numbers)

    def begin_epoch(self) -> None:
        for width in self._ranked:
            width.exchange.homes.begin_epoch()

    def own_part(self, batch: Batch) -> Batch:
        return self._shares.cut(batch)

    def evaluation_steps(self, numbers: Iterable[int], read: Callable[[int], Batch]) -> Iterator[PlannedStep]:
        """Steps of the evaluation batches that this rank has, one of W; an empty one where there is none."""
        # One batch for each rank at a time: all take part in each step, as any may need their rows.
        num_ranks = self._ranks.num_ranks
        rank = self._ranks.rank
        left = iter(numbers)
        while group := list(islice(left, num_ranks)):
            batches = [read(number) for number in group]
            # Ranks beyond the last batch look up nothing, and serve their rows.
            batches += [batches[0].cut(0, 0)] * (num_ranks - len(batches))
            yield self._evaluation_step(group[min(rank, len(group) - 1)], batches)

    def _evaluation_step(self, number: int, batches: Sequence[Batch]) -> PlannedStep:
        parts = []
        for width in self._ranked:
            ids, lookups, exchange = width.read_round(batches)
            plan = width.placement.plan_evaluation(is_replica_current=width.executor.is_replica_current)
            parts.append(WidthStep(ids, lookups, plan, exchange))
        own = batches[self._ranks.rank]
        return PlannedStep(number, own, own.num_samples, tuple(parts))

    def look_up(self, step: PlannedStep) -> list[torch.Tensor]:
        """(B, F, D) embeddings of each width, of the samples of this rank."""
        # The vectors of served rows go out first.
        exchanges = exchanges_of(step)
        self._served = super().look_up(step)
        served = [vectors.detach().squeeze(1).numpy() for vectors in self._served]
        under_way = self._vectors.send(step, served)
        # What is here already is put in its place while the others' vectors arrive.
        own = []
        for number, (width, vectors_SD, each) in enumerate(zip(self._ranked, served, exchanges, strict=True)):
            vectors_OD = torch.empty(each.own_lookups.num_rows, width.embedding_dim)
            copy_rows(vectors_SD, each.kept[1], vectors_OD.numpy(), each.kept[0])
            if each.copied.own.size:
                copied = self.copies.widths[number].weights_KD[each.copied.slots]
                vectors_OD.numpy()[each.copied.own] = copied
            width.initial.write(*each.made_rows, vectors_OD, each.made)
            own.append(vectors_OD)
        # Received vectors fill the gaps, and the rank's own lookups read all of them.
        embeddings = []
        with self._coded.clocked("vectors"):
            arrived, early = under_way.wait()
        for number, (vectors_OD, each) in enumerate(zip(own, exchanges, strict=True)):
            vectors_OD.numpy()[each.received] = arrived[number]
            if each.early is not None:
                vectors_OD.numpy()[each.early.received] = early[number]
            if self.may_move and each.is_training:
                self._take_in(number, step.parts[number], each, arrived[len(own) + number], vectors_OD)
            embeddings.append(self._look_up_own(vectors_OD, each))
        return embeddings

    def wait_for_rows(self, step: PlannedStep) -> None:
        super().wait_for_rows(step)
        if step.item is not None:
            self._last_item = step.item

    def send_ahead(self, step: PlannedStep | None) -> None:
        if step is None or not (lists := early_of(step)):
            return
        # Rows are where they were fetched to, or still where the next transfer fetches them.
        is_next = step.item is None or step.item == self._last_item + 1
        if is_next and all(part.plan.split is None for part in step.parts):
            rows = [
                read_ahead(width.executor, part, each.sent)
                for width, part, each in zip(self._ranked, step.parts, lists, strict=True)
            ]
        else:
            with self.transfers.paused():
                rows = [
                    read_newest(width.executor, part, each.sent)
                    for width, part, each in zip(self._ranked, step.parts, lists, strict=True)
                ]
        self._vectors.send_ahead(step, rows)

    def update(
        self, step: PlannedStep, embeddings: Sequence[torch.Tensor], rate: float | None = None
    ) -> None:
        """Take one optimizer step on every row that lives here and that any rank looked up."""
        # The gradients of each own row, summed over the shares of this rank.
        exchanges = exchanges_of(step)
        sums = []
        for emb_BFD, each in zip(embeddings, exchanges, strict=True):
            assert emb_BFD.grad is not None, "the backward pass comes first"
            grad_PD = emb_BFD.grad.reshape(-1, emb_BFD.shape[-1])
            by_bag = each.own_ids.by_bag(each.own_lookups)
            sums.append(self._rows.sums(by_bag, grad_PD, each.own_ids.num_features).numpy())
        # Sums go to the homes of their rows; those that live here are kept.
        with self._coded.clocked("gradients"):
            found = self._send_gradients(sums, exchanges).wait()
        # A home adds the sums of all ranks by the tree, as one process adds those of its shares.
        for vectors, received_ND, sums_OD, each in zip(self._served, found, sums, exchanges, strict=True):
            partials_ND = np.concatenate([received_ND, sums_OD[each.updated]])
            vectors.grad = torch.from_numpy(sum_over_ranks(each.partials_SW, partials_ND)).unsqueeze(1)
        super().update(step, self._served, rate)
        self._change_homes(step, exchanges)
        self.copies.step(exchanges, sums, rate)
        self._coded.note_step()
        self.copies.end_step()

    @contextmanager
    def rows_written_back(self) -> Iterator[None]:
        with super().rows_written_back():
            self.copies.publish()
            yield

    def finish(self) -> None:
        self._vectors.drop()
        super().finish()
        self.copies.publish()

    def stop(self) -> None:
        self._vectors.drop()
        super().stop()

    def _take_in(
        self,
        number: int,
        part: WidthStep,
        exchange: WidthExchange,
        rows_NX: NDArray[np.float32],
        vectors_OD: torch.Tensor,
    ) -> None:
        """Put rows that move here in their places, and their vectors among those of own rows."""
        width = self._ranked[number]
        own_N, served_N = exchange.coming
        weights_ND, state_NW = np.split(rows_NX, [width.embedding_dim], axis=1)
        vectors_OD.numpy()[own_N] = weights_ND
        write_rows(width.executor, part, served_N, weights_ND, state_NW)

    def _change_homes(self, step: PlannedStep, exchanges: Sequence[WidthExchange]) -> None:
        """Let rows live from now on where the step has updated them."""
        if not self.may_move:
            return
        for width, part, each in zip(self._ranked, step.parts, exchanges, strict=True):
            keys_N, homes_N = each.rehomed
            width.exchange.held.homes_K[keys_N] = homes_N
            # The new home saves the row, which the step has changed there.
            if width.changed is not None:
                tables_U = np.repeat(np.arange(len(width.tables)), np.diff(part.lookups.first_F1))
                left_N = part.lookups.rows_U[each.leaving].astype(np.int64)
                layout = width.changed.layout
                width.changed.forget(layout.slots_of_rows(tables_U[each.leaving], left_N))

    def _send_gradients(
        self, sums: Sequence[NDArray[np.float32]], exchanges: Sequence[WidthExchange]
    ) -> RowsUnderWay:
        """Send one gradient of each row that lives elsewhere to its home."""
        rows = [sums_OD[each.gradients_sent] for sums_OD, each in zip(sums, exchanges, strict=True)]
        sent = [each.gradients_sent_rows for each in exchanges]
        received = [each.gradients_received_rows for each in exchanges]
        with self._step_named():
            under_way = self._messages.send(rows, sent, received, self._coded.gradients())
        self._coded.note_sent("gradients", self._messages.sent_bytes, self._messages.num_saturated)
        return under_way

    @contextmanager
    def _step_named(self) -> Iterator[None]:
        """Say in which step a gradient is not finite."""
        try:
            yield
        except NotFiniteRowError as error:
            raise NotFiniteRowError(f"the gradient of {error} at step {self._coded.step + 1}") from None

    def _look_up_own(self, vectors_OD: torch.Tensor, exchange: WidthExchange) -> torch.Tensor:
        """(B, F, D) embeddings of this rank's samples from its distinct rows."""
        # One vector for each lookup, pooled where features have bags.
        ids = exchange.own_ids
        dim = vectors_OD.shape[1]
        vectors_ND = torch.empty(ids.ids_N.size, dim)
        self._rows.look_up(vectors_OD, exchange.own_lookups, np.arange(vectors_OD.shape[0]), vectors_ND)
        if ids.bags_N is not None:
            pooled_PD = torch.empty(ids.num_bags, dim)
            self._rows.pool(vectors_ND, ids, pooled_PD)
            vectors_ND = pooled_PD
        return vectors_ND.view(ids.num_samples, ids.num_features, dim).requires_grad_(torch.is_grad_enabled())

    @property
    def has_sent_ahead(self) -> bool:
        """Whether vectors of a step to come are under way."""
        return self._vectors.has_sent_ahead

    @property
    def sends_early(self) -> bool:
        return any(width.exchange.sends_early for width in self._ranked)

    @property
    def can_be_saved(self) -> bool:
        return self.copies.agree

    def held_ids(
        self, tables_N: NDArray[np.int32], ids_N: NDArray[np.int32]
    ) -> tuple[NDArray[np.bool_], NDArray[np.int32]]:
        """Which rows live here, and their ids here; all of them count as used from now on."""
        if ids_N.size == 0:
            return np.ones(0, np.bool_), ids_N
        # By number over all tables of the width: where each row lives, and its number there.
        width, positions_N = self._positions(tables_N)
        held = width.exchange.held
        keys_N = held.keys(positions_N, ids_N.astype(np.int64))
        width.exchange.mark_used(keys_N)
        is_held_N = held.homes_K[keys_N] == held.rank
        local_N = held.local_ids(positions_N[is_held_N], keys_N[is_held_N])
        return is_held_N, local_N.astype(np.int32)

    def shard_ids(self, tables_N: NDArray[np.int32], ids_N: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the ids that rows of this rank have in the shards."""
        width, positions_N = self._positions(tables_N)
        return width.exchange.held.ids.of(positions_N, ids_N.astype(np.int64)).astype(np.int32)

    def _positions(self, tables_N: NDArray[np.int32]) -> tuple[RankedWidth, NDArray[np.int64]]:
        """The width of some rows, and the position of each one's table among those of the width."""
        width, _ = self._position_of[int(tables_N[0])]
        assert isinstance(width, RankedWidth)
        return width, np.searchsorted(np.array(width.tables), tables_N).astype(np.int64)

    def table_parts(self, table: int, *, state: bool = False) -> Iterator[torch.Tensor]:
        """Yield the weights of one table, or its state, in id order, in parts, at rank 0.

        Every rank calls this and takes all parts; those of the other ranks are empty.
        """
        width, _ = self._position_of[table]
        # A rank may have no row of a table.
        fast = width.executor.fast
        rows_ND = (fast.state_SW if state else fast.weights_SD)[:0]
        if self._num_held(table):
            rows_ND = super().table(table, state=state)
        yield from self._brought_rows(table, rows_ND.shape[1], lambda first, stop: rows_ND[first:stop])

    def newest_parts(self, table: int) -> Iterator[torch.Tensor]:
        """As `table_parts`, of the newest weights wherever they are."""
        width, position = self._position_of[table]
        return self._brought_rows(table, width.embedding_dim, partial(width.newest_rows, position))

    def _brought_rows(
        self, table: int, dim: int, rows_of: Callable[[int, int], torch.Tensor]
    ) -> Iterator[torch.Tensor]:
        width, position = self._position_of[table]
        assert isinstance(width, RankedWidth)
        return brought_rows(width, position, self._tables[table].num_rows, dim, rows_of, self._ranks)

    def _num_held(self, table: int) -> int:
        """Rows of a table that live here."""
        width, position = self._position_of[table]
        return width.placement.num_rows[position]

    def table(self, table: int, *, state: bool = False) -> torch.Tensor:
        return torch.cat(list(self.table_parts(table, state=state)))
