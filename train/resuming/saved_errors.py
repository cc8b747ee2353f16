"""The errors that ranks keep for their next gradients, as checkpoints save them: all ranks' at rank 0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ..exchange.error_feedback import WidthErrors
from ..ranks.ranks import Message, Ranks

SAVED_ERRORS = "exchange_errors"
"""Name of this part among those of a run."""


class SavedErrors:
    """A part of a run whose state is the errors of all ranks (`checkpoints.run_state.Resumable`).

    Args:
        ranks: all of them.
        widths: the errors of this rank.
    """

    def __init__(self, ranks: Ranks, widths: Sequence[WidthErrors]) -> None:
        self._ranks = ranks
        self._widths = tuple(widths)
        self._state: dict[str, torch.Tensor] = {}

    def bring_together(self) -> None:
        """Copy the errors of all ranks to rank 0, where `state` has them; every rank calls this."""
        self._state = {}
        for number, width in enumerate(self._widths):
            # An error of -0 is one, too: only rows whose bits are all zeros are left out.
            used = np.flatnonzero(width.errors_HD.view(np.uint32).any(axis=1))
            self._bring(f"width {number} rows", torch.from_numpy(used))
            self._bring(f"width {number} errors", torch.from_numpy(width.errors_HD[used]))

    def state(self) -> Mapping[str, Any]:
        """Return what `restore` takes."""
        return self._state

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take this rank's part of a state; raises ValueError where it is none."""
        for number, width in enumerate(self._widths):
            names = [f"rank {self._ranks.rank} width {number} {part}" for part in ("rows", "errors")]
            rows, errors = (state[name] for name in names)
            num_rows, dim = width.errors_HD.shape
            if rows.dtype != torch.int64 or errors.dtype != torch.float32:
                raise ValueError(f"errors are {errors.dtype} of rows {rows.dtype}")
            if rows.dim() != 1 or tuple(errors.shape) != (rows.numel(), dim):
                raise ValueError(f"{tuple(errors.shape)} errors of {tuple(rows.shape)} rows of {dim} numbers")
            if rows.numel() and not 0 <= int(rows.min()) <= int(rows.max()) < num_rows:
                raise ValueError(f"errors of row {int(rows.max())} of {num_rows} hot rows")
            width.errors_HD[:] = 0
            width.errors_HD[rows.numpy()] = errors.numpy()

    def _bring(self, name: str, own: torch.Tensor) -> None:
        ranks = self._ranks
        row_bytes = own.element_size() * (own.shape[1] if own.dim() > 1 else 1)
        counts = [int(each) for each in ranks.gather(torch.tensor([own.shape[0]]))]
        into = [row_bytes * count if rank and not ranks.rank else 0 for rank, count in enumerate(counts)]
        out = [own.nbytes if rank == 0 and ranks.rank else 0 for rank in range(ranks.num_ranks)]
        data = (
            own.contiguous().reshape(-1).view(torch.uint8)
            if ranks.rank
            else torch.empty(0, dtype=torch.uint8)
        )
        received = Message.unset(into)
        ranks.exchange(Message(data, tuple(out)), received).wait()
        if ranks.rank:
            return
        for rank, part in enumerate(received.parts()):
            found = part.clone().view(own.dtype).reshape(-1, *own.shape[1:]) if rank else own.clone()
            self._state[f"rank {rank} {name}"] = found
