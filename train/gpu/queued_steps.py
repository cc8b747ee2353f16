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
micro-batches. The loop's thread does as little as it can: readers pack,
make views, count what has moved, mark the rows that have changed, and release the batches of finished steps.

Other steps whose rows stay on the host (hybrid, and mixed batches of fae) are queued around the host's work.
The host looks the rows up in all its threads, into pinned memory; the vectors are copied to the device in one
copy, the dense layers run, and the gradients are copied back in another, during which the device takes the
step of its dense layers; then the host updates the rows. A batch's vectors depend on the updates of the batch
before, so nothing can be looked up ahead, and the link's time is a lower bound of such a step.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch

from ...stats.batch_rows import LookupsByRow
from ..device import Device
from ..optimizing import StepRates
from ..rows.step_plan import GroupStep, PlannedStep
from ..rows.tiers import Layout
from ..step import HostSteps, StepParts
from ..threads import PLACES_AT_A_TIME, Readers
from .fused_dlrm import FusedDlrm
from .packed_batch import (
    BatchRoom,
    GroupTensors,
    HostLists,
    InputRing,
    PackedBatch,
    PackedRoom,
    SentRates,
    pack,
)
from .passes import DevicePasses, Kernels, RecordedWork, StepInputs
from .row_moves import RowMover

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

    @property
    def num_prepared(self) -> int:
        """Return how many steps were given to be packed."""
        return self._num_packed

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
