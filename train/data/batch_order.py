"""The order of training batches: from the seed, or from an earlier run."""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...pipeline.errors import HotsetError, first_line
from ...stats.shuffle import epoch_order

BATCH_ORDER = "batch_order.npy"
_HEADER_BYTES = 128
_INT32_BYTES = 4


class BatchOrder(ABC):
    """The batches of a run, in the order they are trained on."""

    is_known = True
    """Whether the order is known before training, so that batches may be read and planned ahead."""

    @property
    def test_losses(self) -> Sequence[float]:
        """Losses by which the order was decided so far, nats per sample; none where it is known."""
        return ()

    @abstractmethod
    def epochs(self) -> Iterator[Iterable[int]]:
        """Batch numbers, epoch by epoch."""


class SeededOrder(BatchOrder):
    """A permutation of batches by (seed, epoch); grouped hot-only ones spread evenly."""

    def __init__(
        self, is_hot_only: NDArray[np.bool_], seed: int, num_epochs: int, *, is_grouped: bool
    ) -> None:
        self._is_hot_only = is_hot_only
        self._seed = seed
        self._num_epochs = num_epochs
        self._is_grouped = is_grouped

    def epochs(self) -> Iterator[list[int]]:
        for epoch in range(self._num_epochs):
            yield epoch_order(self._is_hot_only, self._seed, epoch, spread=self._is_grouped).tolist()


class RecordedOrder(BatchOrder):
    """The order that another run recorded.

    Args:
        numbers: training batch of each step.
        num_epochs: epochs in them, all of the same length.
    """

    def __init__(self, numbers: NDArray[np.int32], num_epochs: int = 1) -> None:
        self._numbers = numbers
        self._num_epochs = num_epochs

    @classmethod
    def of_run(cls, run: Path, num_batches: int, num_epochs: int) -> RecordedOrder:
        """Read the order of ``run``; raises HotsetError where it does not fit these shards."""
        path = run / BATCH_ORDER
        numbers = read_batch_order(path)
        # Checked over all epochs together: each batch as often as there are epochs.
        wanted = np.repeat(np.arange(num_batches), num_epochs)
        if not np.array_equal(np.sort(numbers), wanted):
            raise HotsetError(f"{path} does not visit each of {num_batches} batches {num_epochs} times")
        return cls(numbers, num_epochs)

    def epochs(self) -> Iterator[list[int]]:
        for numbers in np.split(self._numbers, self._num_epochs):
            yield numbers.tolist()


class CutOrder(BatchOrder):
    """The first steps of an order that is known."""

    def __init__(self, order: BatchOrder, num_steps: int) -> None:
        assert order.is_known, "an order that is decided as it goes has no end to cut at"
        self._order = order
        self._num_steps = num_steps

    def epochs(self) -> Iterator[list[int]]:
        left = self._num_steps
        for numbers in self._order.epochs():
            if left <= 0:
                return
            kept = list(islice(numbers, left))
            left -= len(kept)
            yield kept


class ResumedOrder(BatchOrder):
    """The rest of an order after the steps of a checkpoint.

    Args:
        order: that of the run from its beginning.
        done: (num_steps,); the training batch of each step so far.
    """

    def __init__(self, order: BatchOrder, done: NDArray[np.int32]) -> None:
        self.is_known = order.is_known
        self._order = order
        self._done = done

    @property
    def test_losses(self) -> Sequence[float]:
        return self._order.test_losses

    def epochs(self) -> Iterator[Iterable[int]]:
        """Batch numbers not trained on yet, epoch by epoch.

        Raises:
            HotsetError: the steps so far were of other batches than the order has.
        """
        done = 0
        # The order is followed again from its beginning, because decisions in it may depend on those before.
        for numbers in self._order.epochs():
            left = iter(numbers)
            for number in islice(left, self._done.size - done):
                if number != self._done[done]:
                    raise HotsetError(
                        f"step {done + 1} of the checkpoint was of batch {self._done[done]}, want {number}",
                        hint="resume on the shards that the run was begun with",
                    )
                done += 1
            # An order that is decided as it goes may have a decision to make at the end of an epoch.
            if not self.is_known:
                yield left
            elif rest := list(left):
                yield rest
        # The order ended before all recorded steps were found: these are other shards or other settings.
        if done < self._done.size:
            raise HotsetError(
                f"the checkpoint has {self._done.size} steps, the run {done}",
                hint="resume on the shards that the run was begun with",
            )


def read_batch_order(path: Path) -> NDArray[np.int32]:
    """Read the training batch of each step, (num_steps,), as a run writes it.

    Raises:
        HotsetError: the file is missing, or anything else than such an array.
    """
    try:
        # Opening a pipe would wait forever.
        if not path.is_file():
            raise FileNotFoundError("there is no such plain file")
        # Only this one header is read, so that nothing of NumPy's parser of headers is trusted.
        whole = path.read_bytes()
        num_steps = (len(whole) - _HEADER_BYTES) // _INT32_BYTES
        header = io.BytesIO()
        described = {"descr": "<i4", "fortran_order": False, "shape": (num_steps,)}
        np.lib.format.write_array_header_1_0(header, described)
        if num_steps < 0 or whole[:_HEADER_BYTES] != header.getvalue():
            raise ValueError("it is no list of batches")
        if len(whole) != _HEADER_BYTES + _INT32_BYTES * num_steps:
            raise ValueError(f"it has {len(whole)} bytes")
    except (OSError, ValueError) as error:
        state = "is damaged" if isinstance(error, ValueError) else "cannot be read"
        raise HotsetError(
            f"{path} {state}: {first_line(error)}", hint="give the folder of a finished run"
        ) from error
    return np.frombuffer(whole, np.int32, offset=_HEADER_BYTES)
