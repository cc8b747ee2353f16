"""The numbers of a step that are sent with its batch: those of each row optimizer and of the dense layers'.

They are known when the step is queued, so the loop writes them: one range of floats, most of which stays as
it is from step to step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ..recipe.learning_rates import StepRates
from ..rows.row_optimizers import RowOptimizer
from .packed_batch import PackedRoom


class SentRates:
    """The numbers of the steps of a run, in their order.

    Args:
        room: where the numbers lie in a batch, the same in larger rooms.
        optimizers: of the rows of each width.
        next_dense: the (2,) float32 numbers of the dense layers' next step, by its learning rate; None: no
            kernel takes it.
    """

    def __init__(
        self,
        room: PackedRoom,
        optimizers: Sequence[RowOptimizer],
        next_dense: Callable[[float], NDArray[np.float32]] | None,
    ) -> None:
        self._numbers_R = np.zeros(room.rates.count, np.float32)
        self._dense_2, *self._rows = (self._numbers_R[place] for place in room.rate_places)
        self._optimizers = optimizers
        self._next_dense = next_dense
        self._last: StepRates | None = None

    def of(self, rates: StepRates) -> NDArray[np.float32]:
        """Return the numbers of the step that is queued next, as `PackedRoom.rates` places them; the memory
        is used again by the next step."""
        # A schedule returns the same object for as long as its rates stay.
        if rates is not self._last:
            self._last = rates
            for numbers_T, optimizer in zip(self._rows, self._optimizers, strict=True):
                numbers_T[:] = optimizer.step_rates(rates.rows)
        # The dense optimizer counts its steps.
        if self._next_dense is not None:
            self._dense_2[:] = self._next_dense(rates.dense)
        return self._numbers_R
