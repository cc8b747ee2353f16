"""The device of a loop of one's own: where the fast tier is, and what moves rows to it.

The loop computes with torch at once and asks the device for nothing but moves, which a thread queues ahead of
their batches. The host waits for them at each lookup: who calls may read the embeddings from any stream.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..device.verbs import Device
from ..execution.embeddings import Embeddings as Rows
from ..execution.row_width import RowWidth
from ..gpu_kernels.kernel_table import choose_kernels
from ..steps.row_moves import MovesByThreads
from ..steps.thread_mover import ThreadMover
from ..steps.width_tensors import WidthTensors


class LoopDevice:
    """The host, or a device that moves rows in a stream of its own.

    Args:
        verbs: of the device; None: the host.
        num_threads: threads of the loop, some of which gather rows.
    """

    def __init__(self, verbs: Device | None, num_threads: int) -> None:
        self._verbs = verbs
        self._num_threads = num_threads
        self._mover: ThreadMover | None = None
        """The threads that move rows, once there are any to move."""

    def take_over(self, rows: Rows) -> Rows:
        """Let the rows, of which no transfer is sent yet, be moved in the stream of moves; return them."""
        if self._verbs is None or not any(map(_has_staging_slots, rows.widths)):
            return rows
        if self._mover is None:
            self._mover = self._new_mover(self._verbs, rows.widths)
        # Puts its own transfers in the place of those that wait for steps to be queued.
        MovesByThreads(self._mover, self._verbs, rows)
        return rows

    def renewed(self, rows: Rows) -> Rows:
        """Return the same tiers with new transfers: those that were stopped stay so."""
        return self.take_over(Rows(sum(len(width.tables) for width in rows.widths), rows.widths, self._verbs))

    def _new_mover(self, verbs: Device, widths: Sequence[RowWidth]) -> ThreadMover:
        tensors = [WidthTensors.of(width, verbs) for width in widths]
        return ThreadMover(verbs, choose_kernels(verbs.torch_device), tensors, self._num_threads)


def _has_staging_slots(width: RowWidth) -> bool:
    fast = width.executor.fast
    return fast.num_slots > fast.layout.num_own_slots
