"""Training steps that the host queues on a device without waiting.

The host packs batches, sends them and queues the work. A step, in the order of its work:
    1. its batch is copied to the device from a slot of pinned memory that another thread has filled;
    2. in the stream of moves rows are written back, fetched and initialized, by lists that came with it;
    3. compute decodes where each row is, gathers the rows, runs the dense layers forward and backward, sums
       the gradients of each row and updates it, and takes a step of the dense layers.
Events order the three: a copy waits for the step that last read its place on the device, moves wait for the
copy and for the last step that used what they overwrite, compute waits for both. The second and the third are
recorded once for each place and replayed.

Distinct rows that stay on the host (hybrid-dedup) are sent after their batch, and the sums of their gradients
come back. What cannot be packed runs synchronously, while the device is idle: batches in passes, bags and
micro-batches. The loop's thread does as little as it can: readers pack, make views, count what has moved,
mark the rows that have changed, and release the batches of finished steps.

Other steps whose rows stay on the host (hybrid, and mixed batches of fae) are queued around the host's work.
The host looks the rows up in all its threads, into pinned memory; the vectors are copied to the device in one
copy, the dense layers run, and the gradients are copied back in another, during which the device takes the
step of its dense layers; then the host updates the rows. A batch's vectors depend on the updates of the batch
before, so nothing can be looked up ahead, and the link's time is a lower bound of such a step.

Rows move between the tiers by kernels, or by the host. Kernels read and write the slow tier in pinned memory.
A transfer of a step is queued with the step, whose copy includes its lists; the host only queues. Other
transfers, such as the flush of an epoch, and those of rows in a file or in memory that cannot be pinned, are
run by the host while the device is idle.

Threads of the host that gather rows for a copy were tried on an H100. They moved up to 1.4 times the rows per
second at dim 16 and half of them at dim 128, and training was no faster.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from ...stats.batch_rows import LookupsByRow
from ..device import Device, Event
from ..metrics import Kind
from ..rows.embeddings import Embeddings
from ..rows.step_plan import GroupStep, PlannedStep, Transfer, Transfers, Work
from ..rows.tiers import Layout
from ..step import HostSteps, StepParts, StepRates
from ..threads import PLACES_AT_A_TIME, Readers
from .fused_dlrm import FusedDlrm
from .packed_batch import (
    MOVES,
    BatchRoom,
    GroupTensors,
    HostLists,
    InputRing,
    PackedBatch,
    PackedRoom,
    RowMoves,
    RowTensors,
    SentRates,
    pack,
)
from .passes import DevicePasses, Kernels, RecordedWork, StepInputs

_LOSSES_AT_ONCE = 256
"""Losses whose memory is allocated together."""
_KEPT_STEPS = 2
"""Steps that callers of the loop may still hold: the last one, and the one before until that is replaced."""


class QueuedSteps:
    """The steps of a run on a device.

    Args:
        device: runs them.
        parts: what steps work on.
        kernels: of the device.
        batch_size: samples of the largest batch.
        num_dense: dense features.
        num_ahead: batches on the device at a time, at most.
        readers: pack batches, one each besides those.
        fused: the dense layers as kernels; None: the step in ``parts`` passes them.
        is_recorded: whether work with fixed memory is recorded once and replayed; all kernels must allow it.
    """

    is_synchronous = False

    def __init__(
        self,
        device: Device,
        parts: StepParts,
        kernels: Kernels,
        batch_size: int,
        num_dense: int,
        num_ahead: int,
        readers: Readers,
        *,
        fused: FusedDlrm | None = None,
        is_recorded: bool,
    ) -> None:
        self._device = device
        self._parts = parts
        self._on_host = HostSteps(parts)
        self._groups = [GroupTensors.of(group, device) for group in parts.embeddings.groups]
        self._recorded = RecordedWork(device, is_recorded=is_recorded)
        # Layouts of a device that holds no rows, where all are sent with the step.
        sizes = [[0] * len(group.tables) for group in parts.embeddings.groups]
        self._no_rows = [Layout.of(zeros, zeros) for zeros in sizes]
        self.moves = RowMover(device, kernels, self._groups, parts.embeddings)
        """The mover of the rows of steps."""
        # The kernels add up a batch as one, and a packed one has no weights and a single label.
        has_shares = any(group.micro_batches.num_micro_batches > 1 for group in parts.embeddings.groups)
        self._is_packed = not has_shares and parts.dense.objective is None
        self._readers = readers
        self._ring = InputRing(device, num_ahead + readers.num_threads + PLACES_AT_A_TIME - 1)
        self._num_inputs = num_ahead
        self._num_packed = self._num_sent = 0
        self.sent_bytes = 0
        """Bytes of all copies of batches so far."""
        self.sent_samples = 0
        """Samples of these batches; synchronous steps send none."""
        # That of the thread that packs; inputs on the device follow when its first batch is sent.
        self._packing_room = PackedRoom(
            batch_size,
            num_dense,
            tuple(BatchRoom(batch_size, len(group.tables), 0, 0, 0) for group in parts.embeddings.groups),
            tuple(group.optimizer.step_rates(0.0).size for group in parts.embeddings.groups),
            0,
        )
        self._passes = DevicePasses(
            device, parts, kernels, self._groups, fused, self._recorded, self._packing_room
        )
        self._made: tuple[PackedRoom | None, list[StepInputs]] = None, []
        """The memory on the device, and the batches that it has room for; replaced in one assignment, since
        threads that pack read it."""
        self._rates = SentRates(
            self._packing_room,
            [group.optimizer for group in parts.embeddings.groups],
            None if fused is None else fused.next_rates,
        )
        self._losses: list[tuple[torch.Tensor, torch.Tensor]] = []
        """Memory for losses of steps to come, each as a vector and as a number."""
        self._done: deque[PlannedStep] = deque()
        """Steps that the loop has queued, and whose batches readers let go."""
        self._letting_go = threading.Lock()

    @property
    def is_recorded(self) -> bool:
        """Return whether steps are recorded as graphs; no more once the device has refused to."""
        return self._recorded.is_recorded

    def prepare(self, step: PlannedStep) -> PlannedStep:
        sends_rows = all(part.ids.bags_N is None and _sends(part, "rows") for part in step.parts)
        if not self._is_packed or not (sends_rows or all(map(_can_be_queued, step.parts))):
            return step
        # The lists of each table group: lookups by row, the slots of staged rows, and the rows to move. Rows
        # that are sent keep their order.
        groups = []
        moves = []
        for group, nothing, part in zip(self._groups, self._no_rows, step.parts, strict=True):
            layout = nothing if sends_rows else group.rows.fast.layout
            staged_U = np.arange(part.lookups.num_rows) if sends_rows else part.plan.staged_U
            lists = HostLists(part.lookups, layout, np.empty(0, np.int64) if staged_U is None else staged_U)
            groups.append(lists)
            moves.append(self.moves.lists_of(part))
        # A batch larger than all before it enlarges the room; memory on the device follows in `train`.
        num_moves = sum(sources_N.size for of_width in moves for sources_N, _ in of_width)
        self._packing_room = self._packing_room.with_room_for(groups, num_moves)
        # The whole batch goes to a slot of pinned memory, ready for its one copy. Slots are taken in the
        # order of the steps, and filled by whichever reader is free.
        slot = self._ring.take(self._packing_room.num_bytes)
        batch = step.batch
        number = self._num_packed
        self._num_packed += 1
        arguments = (
            number,
            [part.lookups for part in step.parts] if sends_rows else [],
            self._packing_room,
            slot,
            batch.label_B.numpy(),
            batch.dense_BK.numpy(),
            groups,
            moves,
        )
        return replace(step, packing=self._readers.submit(self._pack, *arguments))

    def _pack(
        self, number: int, sent: Sequence[LookupsByRow], room: PackedRoom, *arguments: Any
    ) -> PackedBatch:
        """Pack a batch in a reader, and do the loop's leftover work."""
        self._let_go()
        self._parts.embeddings.note_transfers(waits=False)
        packed = pack(room, *arguments)
        # Rows that are sent with the step are named here.
        sent_rows = [
            group.rows.in_place.slots_of_rows(lookups)
            for group, lookups in zip(self._groups, sent, strict=False)
        ]
        # Batches are sent in their order, so it is known where they go: views are made here, not in the loop.
        made_for, inputs = self._made
        target = inputs[number % len(inputs)].packed[: packed.num_bytes] if made_for is room else None
        return replace(packed, target=target, sent_rows=tuple(sent_rows))

    def _let_go(self, num_kept: int = _KEPT_STEPS) -> None:
        """Release the memory of finished steps, which costs as much as queueing."""
        with self._letting_go:
            while len(self._done) > num_kept:
                self._done.popleft()

    def train(self, step: PlannedStep, number: int, rates: StepRates) -> torch.Tensor:
        if all(_sends(part, "bags") for part in step.parts):
            loss_1, loss = self._new_loss()
            self._passes.train_on_sent_bags(step, number, rates, loss_1)
            self._parts.embeddings.mark_updated(step)
            return loss
        # What cannot be packed runs while the device is idle.
        if step.packing is None:
            self._device.synchronize()
            return self._on_host.train(step, number, rates)
        packed: PackedBatch = step.packing.result()
        # The batch is copied first, then rows move, then compute waits for both.
        if packed.room is not self._made[0]:
            self._make_room(packed.room)
        inputs = self._send(packed, rates)
        loss_1, loss = self._new_loss()
        if packed.sent_rows:
            self._passes.train_on_sent_rows(step, inputs, packed, number, rates, loss_1)
        else:
            self._wait_for_rows(step, inputs)
            self._passes.train_on_device(inputs, packed.num_samples, number, rates, loss_1)
        self._parts.embeddings.mark_updated(step, inputs.read)
        self._done.append(step)
        return loss

    def synchronize(self) -> None:
        self._device.synchronize()
        self._parts.embeddings.note_transfers()
        self._let_go(0)

    def _send(self, packed: PackedBatch, rates: StepRates) -> StepInputs:
        """Queue the copy of a batch to the next inputs."""
        _, made = self._made
        inputs = made[self._num_sent % len(made)]
        self._num_sent += 1
        self.sent_bytes += packed.num_bytes
        self.sent_samples += packed.num_samples
        # What is known last is written last: the rates of the step.
        packed.rates[:] = self._rates.of(rates)
        # The copy waits, on the device, for the step that last read this place.
        if inputs.read is not None:
            self._device.wait("copies", inputs.read)
        target = inputs.packed[: packed.num_bytes] if packed.target is None else packed.target
        self._device.copy("copies", packed.source, target)
        inputs.copied = self._device.record("copies")
        self._ring.sent(inputs.copied)
        return inputs

    def _wait_for_rows(self, step: PlannedStep, inputs: StepInputs) -> None:
        """Queue the moves of a step; compute waits for batch and rows."""
        arrived = inputs.copied
        if step.item is not None and self.moves.begin(step.item, inputs.copied):
            self._recorded.queue("moves", "moves", inputs, self._move_rows)
            # Moves have waited for the copy, so an event after them is after both.
            arrived = self._device.record("moves")
        self._device.wait("compute", arrived)

    def _move_rows(self, inputs: StepInputs) -> None:
        self.moves.launch(inputs.moves)

    def _make_room(self, room: PackedRoom) -> None:
        """Allocate memory on the device for batches of these sizes."""
        # Queued work may still use the old memory; recorded work has its addresses, and goes with it.
        self._device.synchronize()
        places = [StepInputs.of(room, self._device) for _ in range(self._num_inputs)]
        self._recorded.begin(places)
        self._made = room, places
        self._passes.make_room(room)

    def _new_loss(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the memory for a step's loss as (1,) and () float64.

        Both are the same memory, which whoever keeps it may read later.
        """
        if not self._losses:
            losses = self._device.allocate([_LOSSES_AT_ONCE], torch.float64)
            self._losses = list(zip(losses.view(-1, 1).unbind(), losses.unbind(), strict=True))
        return self._losses.pop()


def _can_be_queued(part: GroupStep) -> bool:
    """Return whether the device can do a step alone.

    Each row needs a slot, each sample one lookup.
    """
    return part.ids.bags_N is None and part.plan.in_place is None and part.plan.split is None


def _sends(part: GroupStep, what: Literal["bags", "rows"]) -> bool:
    """Return whether all rows of a step stay on the host, and one vector per bag or distinct row is sent."""
    in_place = part.plan.in_place
    return in_place is not None and in_place.is_whole and in_place.sends == what


_log = logging.getLogger(__name__)

MovedRows = list[tuple[NDArray[np.int64], NDArray[np.int64]]]
"""Sources and targets of each of `MOVES`."""
_NONE = np.empty(0, np.int64)
_NO_ROWS: MovedRows = [(_NONE, _NONE)] * len(MOVES)
_StepWork = tuple[tuple[Transfer | None, ...], Kind]
"""One transfer per table group, and the kind of work they count as."""


class QueuedTransfers(Transfers[Work]):
    """The items of a run on a device.

    Args:
        run: does the work of an item on the host, synchronously, while the device is idle.
        device: runs the items of steps.
    """

    def __init__(self, run: Callable[[Work], None], device: Device) -> None:
        super().__init__(run)
        self._device = device
        # The thread that plans ahead puts items; that of the steps takes them.
        self._lock = threading.Lock()
        self._computed: dict[int, Event] = {}
        """When batches are computed that items to come may wait for."""

    @property
    def num_done(self) -> int:
        with self._lock:
            return self.num_items - len(self._queue)

    def put(self, work: Work, after: int) -> int:
        with self._lock:
            return super().put(work, after)

    def begin(self, number: int) -> Work:
        """Make moves wait for what item ``number`` waits for; return its work.

        Items before it that belong to no step are run first.
        """
        self._run_before(number)
        with self._lock:
            item = self._queue.popleft()
        assert item.number == number
        # The stream runs in order: having waited for the events up to ``after`` once, later items need not.
        for batch in [batch for batch in self._computed if batch <= item.after]:
            self._device.wait("moves", self._computed.pop(batch))
        return item.work

    def wait_for(self, number: int) -> None:
        """Run an item, and those before it, synchronously, while the device is idle."""
        self._run_before(number + 1)

    def mark_computed(self, number: int, computed: Event | None = None) -> None:
        """Mark the batch of item ``number`` as computed by all queued work."""
        self._computed[number] = computed or self._device.record("compute")

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let the device finish; items not yet begun are left for later."""
        self._device.synchronize()
        yield
        # What the block asked of a GPU outside its streams is over before they continue.
        self._device.synchronize()

    def drain(self) -> None:
        self._run_before(self.num_items)
        self._device.synchronize()

    def close(self) -> None:
        self._queue.clear()
        self._device.synchronize()
        self._device.close()

    def _run_before(self, number: int) -> None:
        """Run the items before ``number`` that are left."""
        while self._queue and self._queue[0].number < number:
            with self._lock:
                item = self._queue.popleft()
            self._device.synchronize()
            self._computed.clear()
            self._run(item.work)


class RowMover:
    """Moves the rows of steps: by kernels in the stream of moves, or on the host while the device is idle.

    Args:
        device: runs the steps.
        kernels: of the device.
        groups: tensors of the rows.
        embeddings: the same rows, whose transfers are not begun.
    """

    def __init__(
        self, device: Device, kernels: Kernels, groups: Sequence[GroupTensors], embeddings: Embeddings
    ) -> None:
        assert isinstance(embeddings.transfers, QueuedTransfers), "host and device take turns"
        self._transfers: QueuedTransfers[_StepWork] = embeddings.transfers
        self._device = device
        self._kernels = kernels
        self._groups = [each.rows for each in groups]
        # Kernel, source and target of each of `MOVES`.
        self._ways: list[tuple[tuple[str, Any, RowTensors], ...]] = [
            (
                ("move_rows", each.fast, each.slow),
                ("move_rows", each.slow, each.fast),
                ("make_rows", each.seeds, each.fast),
            )
            for each in groups
        ]
        self.name = "kernel" if _can_move(device, groups) else None
        """The mover: kernel; None: the host moves rows, or none move."""

    def lists_of(self, part: GroupStep) -> MovedRows:
        """The lists that go up with the batch."""
        transfer = part.plan.transfer
        if self.name is None or transfer is None:
            return _NO_ROWS
        # A write-back goes from slots to rows, the others from rows to slots.
        write_back, fetch, initialize = transfer.write_back, transfer.fetch, transfer.initialize
        return [
            (write_back.slots_N, write_back.rows_N),
            (fetch.rows_N, fetch.slots_N),
            (initialize.rows_N, initialize.slots_N),
        ]

    def begin(self, item: int, copied: Event) -> bool:
        """Begin the transfer of the next step, or let the host run it.

        Args:
            item: the number of the transfer.
            copied: event of the copy of the batch.

        Returns:
            Whether the rows are moved by what `launch` queues, which compute has to wait for.
        """
        if self.name is None:
            self._transfers.wait_for(item)
            return False
        transfers, kind = self._transfers.begin(item)
        for group, transfer in zip(self._groups, transfers, strict=True):
            if transfer is not None:
                group.staged.begin(transfer, kind)
        self._device.wait("moves", copied)
        return True

    def launch(self, moves: Sequence[Sequence[RowMoves]]) -> None:
        """Queue the moves of a step after `begin` returned true for it.

        They can be recorded.

        Args:
            moves: the rows to move on the device, of each table group and list of `MOVES`.
        """
        # In this order: a slot is free, and a row up to date on the slow tier, once it is written back. Lists
        # without rows are launched, too, since what is recorded is the same for every step.
        for ways, of_width in zip(self._ways, moves, strict=True):
            for (name, source, target), of_kind in zip(ways, of_width, strict=True):
                self._device.launch("moves", self._kernels[name], of_kind, source, target)


def _can_move(device: Device, groups: Sequence[GroupTensors]) -> bool:
    """Return whether kernels move the rows of a run; pin what they, or copies of all hot rows, access."""
    if any(each.has_file for each in groups) or not any(each.has_staging for each in groups):
        # Copies of all hot rows (fae) are faster from pinned memory.
        for each in groups:
            if each.rows.fast.layout.num_own_slots and not each.has_file:
                each.pin_slow(device)
        return False
    # A system may refuse to pin many pages, and those of a mapped file.
    if not all([each.pin_slow(device) for each in groups]):
        _log.warning("the slow tier cannot be pinned, so the device waits while the host moves rows")
        return False
    return True
