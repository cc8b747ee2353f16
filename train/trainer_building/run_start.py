"""The start of a trainer whose rows do not have their initial values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..execution.row_parts import RowsSource


@dataclass(frozen=True, slots=True)
class RunStart:
    """Rows that a run starts with instead of its initial ones, and how far an interrupted run has come."""

    rows: RowsSource
    done: NDArray[np.int32] | None = None
    """(num_steps,); training batch of each step so far; None: a new run."""
    test_losses: tuple[float, ...] = ()
    """Test losses that the scheduler of fae has seen."""
    is_fresh: bool = True
    """Whether rows that no step has used have their initial values; not where the run began with others."""

    @property
    def num_done(self) -> int:
        """Steps that are done."""
        return 0 if self.done is None else self.done.size
