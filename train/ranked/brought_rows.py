"""Brings the rows of a table from all ranks to rank 0, a part at a time, in the order of their ids."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from ...pipeline.errors import MIB
from ..ranks.ranks import Message, Ranks
from .ranked_width import RankedWidth

_FLOAT_BYTES = 4
_SLICE_BYTES = 64 * MIB
"""Bytes of a table that are brought together at a time."""


def brought_rows(
    width: RankedWidth,
    position: int,
    num_rows: int,
    dim: int,
    rows_of: Callable[[int, int], torch.Tensor],
    ranks: Ranks,
) -> Iterator[torch.Tensor]:
    """Yield the rows of a table of all ranks in id order, in parts, at rank 0, and none elsewhere.

    Every rank calls this and takes all parts.

    Args:
        width: of the table.
        position: of the table in it.
        num_rows: rows of the whole table.
        dim: floats of a row.
        rows_of: the rows that this rank owns, from the first to before the last, by their ids here.
        ranks: all of them.
    """
    held = width.exchange.held
    ids = held.ids.of_table(position)
    first_key = int(held.first_key_F1[position])
    # There is nothing to send of a table without rows, or of rows without a state.
    if num_rows * dim == 0:
        yield torch.empty(num_rows, dim)
        return
    most = max(_SLICE_BYTES // (_FLOAT_BYTES * dim), 1)
    for first in range(0, num_rows, most):
        stop = min(first + most, num_rows)
        start, end = np.searchsorted(ids, [first, stop]).tolist()
        owners_N = held.owners_K[first_key + first : first_key + stop]
        yield _brought_together(rows_of(start, end), owners_N, ranks)


def _brought_together(own_ND: torch.Tensor, owners_N: NDArray[np.uint8], ranks: Ranks) -> torch.Tensor:
    """Return rows of all ranks in order at rank 0, none elsewhere."""
    # Only rank 0 receives; the others send all they have of this part.
    rank = ranks.rank
    num_ranks = ranks.num_ranks
    row_bytes = _FLOAT_BYTES * own_ND.shape[1]
    out = tuple(row_bytes * own_ND.shape[0] if other == 0 and rank else 0 for other in range(num_ranks))
    counts = np.bincount(owners_N, minlength=num_ranks).tolist()
    into = tuple(row_bytes * counts[other] if rank == 0 and other else 0 for other in range(num_ranks))
    data = own_ND.contiguous().reshape(-1).view(torch.uint8) if rank else torch.empty(0, dtype=torch.uint8)
    received = Message.unset(into)
    ranks.exchange(Message(data, out), received).wait()
    if rank:
        return own_ND[:0]
    # Rows of a rank arrive in ascending order, so its places in the whole are those that it owns.
    whole_ND = torch.empty(owners_N.size, own_ND.shape[1])
    for other, part in enumerate(received.parts()):
        rows_ND = part.view(torch.float32).view(-1, own_ND.shape[1]) if other else own_ND
        whole_ND[torch.from_numpy(np.flatnonzero(owners_N == other))] = rows_ND
    return whole_ND
