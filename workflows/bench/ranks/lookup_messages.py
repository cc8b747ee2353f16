"""Messages of other programs between ranks, sent by hotset: one vector a lookup, or one a distinct row.

hotset sends nothing at the first use of a row, and knows the rows of each message; others send every vector,
and without deduplication one for each lookup. Here a step's lists are rewritten so, which changes what
crosses and no number: a home takes the first of equal vectors' gradients, which are the sum already. The ids
that others send ahead of the vectors are not among the bytes, and their sums over lookups cost no time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ....train.exchange.rank_reader import RankReader
from ....train.exchange.row_messages import CrossingRows
from ....train.exchange.width_exchange import WidthExchange
from ....train.ranked.ranked_width import RankedWidth
from ....train.steps.step_runner import PreparedStep
from ....train.trainer import Trainer


def as_others_send(trainer: Trainer, prepared: PreparedStep, *, per_lookup: bool) -> PreparedStep:
    """Return a step whose messages hold every vector, also those of first uses.

    Args:
        trainer: of the run, on several ranks.
        prepared: a training step of it.
        per_lookup: whether a row crosses once for each lookup of it.
    """
    step = prepared.step
    batch = trainer.shards.training_batch(step.number)
    num_shares = trainer.config.shares
    parts = []
    for width, part in zip(trainer.embeddings.widths, step.parts, strict=True):
        assert isinstance(width, RankedWidth)
        exchange = replace(width.look_at(batch), is_training=True)
        if per_lookup:
            reader = RankReader(trainer.shards, width.tables, trainer.ranks.num_ranks, num_shares)
            exchange = one_for_each_lookup(exchange, reader, step.number, trainer.ranks.rank)
        parts.append(replace(part, exchange=exchange))
    # Nobody sends vectors ahead.
    return replace(prepared, step=replace(step, parts=tuple(parts)), following=None)


def one_for_each_lookup(
    exchange: WidthExchange, reader: RankReader, batch_number: int, rank: int
) -> WidthExchange:
    """Return the exchange of a batch with each row as often as its user looks it up."""
    keys_U, counts_UW = _lookups_of_ranks(reader, batch_number)

    def repeats(rows: CrossingRows, user_of: Callable[[int], int]) -> NDArray[np.int64]:
        """(num_rows,): lookups of each crossing row by the rank that uses it."""
        found = [np.empty(0, np.int64)]
        for other, part in enumerate(rows.parts()):
            found.append(counts_UW[np.searchsorted(keys_U, rows.keys_N[part]), user_of(other)])
        return np.concatenate(found)

    # Vectors go to users, and gradients come from them.
    vectors_out = repeats(exchange.sent_rows, lambda other: other)
    vectors_in = repeats(exchange.received_rows, lambda other: rank)
    gradients_out = repeats(exchange.gradients_sent_rows, lambda other: rank)
    gradients_in = repeats(exchange.gradients_received_rows, lambda other: other)
    # Of equal gradients a home takes the first; those of its own follow behind all that are received.
    num_received = gradients_in.size
    firsts = np.cumsum(gradients_in) - gradients_in
    kept = int(gradients_in.sum()) + np.arange(exchange.updated.size)
    places = np.concatenate([firsts, kept, [-1]]).astype(np.int32)
    assert places.size == num_received + exchange.updated.size + 1
    return replace(
        exchange,
        sent_rows=_repeated(exchange.sent_rows, vectors_out),
        sent=np.repeat(exchange.sent, vectors_out),
        received_rows=_repeated(exchange.received_rows, vectors_in),
        received=np.repeat(exchange.received, vectors_in),
        gradients_sent_rows=_repeated(exchange.gradients_sent_rows, gradients_out),
        gradients_sent=np.repeat(exchange.gradients_sent, gradients_out),
        gradients_received_rows=_repeated(exchange.gradients_received_rows, gradients_in),
        partials_SW=places[exchange.partials_SW],
    )


def _lookups_of_ranks(reader: RankReader, number: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return the distinct rows of a batch, and how often each rank looks up each, (num_rows, num_ranks)."""
    batch = reader.read(number)
    rows_N = np.repeat(np.arange(batch.keys_U.size), batch.lookups.counts_U)
    counts_UW = np.zeros((batch.keys_U.size, reader.num_ranks), np.int64)
    np.add.at(counts_UW, (rows_N, batch.ranks_N[batch.lookups.order_N]), 1)
    return batch.keys_U, counts_UW


def _repeated(rows: CrossingRows, repeats: NDArray[np.int64]) -> CrossingRows:
    counts = tuple(int(repeats[part].sum()) for part in rows.parts())
    return CrossingRows(counts, np.repeat(rows.keys_N, repeats))
