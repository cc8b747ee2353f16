"""Work with fixed memory, recorded once for each place and replayed: a call of the host instead of forty."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

from ...pipeline.errors import first_line
from ..device.verbs import Device, StreamName
from .step_memory import StepInputs

_log = logging.getLogger(__name__)


class RecordedWork:
    """Queues work of a device.

    Args:
        device: runs it.
        is_recorded: whether work is recorded at all; all kernels must allow it.
    """

    def __init__(self, device: Device, *, is_recorded: bool) -> None:
        self._device = device
        self.is_recorded = is_recorded
        """No more once the device has refused to record something."""
        self._warm: set[str] = set()
        """Work that was queued before."""
        self._places: Sequence[StepInputs] = ()

    def queue(
        self, stream: StreamName, name: str, inputs: StepInputs, queue_work: Callable[[StepInputs], None]
    ) -> None:
        """Queue work: recorded at its second time, for all places, and replayed from then on.

        It is queued once without, because what kernels compile and load cannot be recorded.
        """
        if not self.is_recorded or name not in self._warm:
            self._warm.add(name)
            queue_work(inputs)
            return
        if name not in inputs.graphs:
            self._record(stream, name, queue_work)
        if name in inputs.graphs:
            self._device.replay(stream, inputs.graphs[name])
        else:
            queue_work(inputs)

    def begin(self, places: Sequence[StepInputs]) -> None:
        """Take all work as new, and these as the inputs that it will have: kernels may be compiled again for
        other memory."""
        self._warm.clear()
        self._places = places

    def _record(self, stream: StreamName, name: str, queue_work: Callable[[StepInputs], None]) -> None:
        """Record work for all places now, so that no later step takes the time."""
        try:
            for place in self._places:
                place.graphs[name] = self._device.capture(stream, partial(queue_work, place))
        except RuntimeError as error:
            # That costs speed, and not the run: nothing of the work has been queued.
            self.is_recorded = False
            reason = first_line(error)
            _log.warning("the device cannot record %r, so each kernel is queued by itself: %s", name, reason)
