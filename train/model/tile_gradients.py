"""Gradients of the dense weights, one vector per tile of a batch, and their sum by the tree."""

from __future__ import annotations

import numpy as np
import torch

from ..work_threads import WorkThreads
from .sample_tree import SUM_COLUMNS, add_tiles

_SUM_PIECE = 16 * SUM_COLUMNS
"""Columns of the gradient that a thread adds up at a time."""


class TileGradients:
    """The gradient of each tile, kept from step to step.

    Args:
        num_columns: floats of a gradient.
        threads: add the gradients up.
    """

    def __init__(self, num_columns: int, threads: WorkThreads) -> None:
        self._threads = threads
        self.tiles_LN = torch.zeros(0, num_columns)
        """The gradient of each tile."""
        self.sums_N = torch.zeros(num_columns)
        """Their sum after `add`."""

    def make_room(self, num_tiles: int) -> bool:
        """Keep memory for so many tiles, zero at first; return whether it is new."""
        if self.tiles_LN.shape[0] >= num_tiles:
            return False
        self.tiles_LN = torch.zeros(num_tiles, self.sums_N.numel())
        return True

    def add(self, num_tiles: int) -> None:
        """Add the gradients of the first tiles by the binary tree, pieces of the vector in parallel."""
        tiles_LN = self.tiles_LN[:num_tiles].numpy()
        sums_N = self.sums_N.numpy()

        def add_piece(piece: int, _: int) -> None:
            first = piece * _SUM_PIECE
            workspace = np.empty(((num_tiles + 1) // 2, SUM_COLUMNS), np.float32)
            add_tiles(tiles_LN, first, min(first + _SUM_PIECE, sums_N.size), workspace, sums_N)

        self._threads.run(add_piece, -(-sums_N.size // _SUM_PIECE))
