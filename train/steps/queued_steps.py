"""Training steps queued on a device: the host packs, sends and queues, and waits for nothing.

A step, in the order of its work:
    1. its batch goes up in one copy, from a slot of pinned memory that another thread has filled;
    2. in the stream of moves rows are written back, fetched and initialized, by lists that came with it;
    3. compute decodes where each row is, gathers the rows, passes the dense layers forward and backward, sums
       the gradients of each row and updates it, and takes a step of the dense layers.
Events order the three: a copy waits for the step that last read its place on the device, moves wait for the
copy and for the last step that used what they overwrite, compute waits for both.

Steps whose rows stay on the host are queued around its work (`in_place_steps`). What else cannot be packed is
done at once, while the device stands still: batches in passes, bags, shares, distinct rows in place
(hybrid-dedup), and FAE's copies of all hot rows.
"""
# ruff: noqa: N815  (tensors carry shape suffixes)

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from ..config import MoverName
from ..data.batch import Batch
from ..data.readers import Readers
from ..device.verbs import Device, Event, Graph
from ..execution.embeddings import PlannedStep, WidthStep
from ..gpu_kernels.batch_lists import BatchLists, BatchRoom, DecodedBatch, StepNumbers
from ..recipe.learning_rates import StepRates
from .fused_dlrm import DenseInputs, FusedDlrm
from .in_place_steps import InPlaceSteps
from .input_ring import InputRing
from .packed_batch import HostLists, PackedBatch, PackedRoom, PackedTarget, pack
from .row_moves import choose_moves
from .sent_rates import SentRates
from .step_runner import PreparedStep, StepParts, StepsAtOnce
from .width_tensors import WidthTensors

Kernels = Mapping[str, Callable[..., None]]
"""Kernels by name, see `gpu_kernels.kernel_table`."""
_LOSSES_AT_ONCE = 256
"""Losses whose memory is allocated together."""


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
        mover: what moves rows between the tiers.
        num_threads: threads of the run, some of which move rows where threads do.
    """

    is_at_once = False

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
        mover: MoverName = "auto",
        num_threads: int = 1,
    ) -> None:
        self._device = device
        self._fused = fused
        self._parts = parts
        self._kernels = kernels
        self._is_recorded = is_recorded
        self._at_once = StepsAtOnce(parts)
        self._in_place = InPlaceSteps(device, parts, batch_size, num_dense)
        self._widths = [WidthTensors.of(width, device) for width in parts.embeddings.widths]
        self.moves = choose_moves(mover, device, kernels, self._widths, parts.embeddings, num_threads)
        """What moves the rows of steps."""
        # The kernels add up a batch as one.
        self._has_shares = any(
            width.executor.shares is not None and width.executor.shares.num_shares > 1
            for width in parts.embeddings.widths
        )
        self._readers = readers
        self._ring = InputRing(device, num_ahead + readers.num_threads)
        self._num_inputs = num_ahead
        self._num_packed = self._num_sent = 0
        self.sent_bytes = 0
        """Bytes of all copies of batches so far."""
        self.sent_samples = 0
        """Samples of these batches; steps that are taken at once send none."""
        # That of the thread that packs; inputs on the device follow when its first batch is sent.
        self._packing_room = PackedRoom(
            batch_size,
            num_dense,
            tuple(BatchRoom(batch_size, len(width.tables), 0, 0, 0) for width in parts.embeddings.widths),
            tuple(width.executor.optimizer.step_rates(0.0).size for width in parts.embeddings.widths),
            0,
        )
        self._made: tuple[PackedRoom | None, list[_Inputs]] = None, []
        """The memory on the device, and the batches that it has room for; replaced at once, as threads that
        pack read it."""
        self._work: list[_WidthWork] = []
        self._warm: set[str] = set()
        """Work that was queued before."""
        self._rates = SentRates(
            self._packing_room,
            [width.executor.optimizer for width in parts.embeddings.widths],
            None if fused is None else fused.next_rates,
        )
        self._losses: list[tuple[torch.Tensor, torch.Tensor]] = []
        """Memory for losses of steps to come, each as a vector and as a number."""

    def prepare(self, step: PlannedStep) -> PreparedStep:
        if self._has_shares or not all(map(_can_be_queued, step.parts)):
            return PreparedStep(step)
        # The lists of each width: lookups by row, the slots of staged rows, and the rows to move.
        widths = []
        moves = []
        for width, part in zip(self._widths, step.parts, strict=True):
            staged_U = np.empty(0, np.int64) if part.plan.staged_U is None else part.plan.staged_U
            widths.append(HostLists.of(part.lookups, width.rows.executor.fast.layout, staged_U))
            moves.append(self.moves.lists_of(part))
        # A batch larger than all before it enlarges the room; memory on the device follows in `train`.
        num_moves = sum(sources_N.size for of_width in moves for sources_N, _ in of_width)
        self._packing_room = self._packing_room.with_room_for(widths, num_moves)
        # The whole batch goes to a slot of pinned memory, ready for its one copy. Slots are taken in the
        # order of the steps, and filled by whichever reader is free.
        slot = self._ring.take(self._packing_room.num_bytes)
        batch = step.batch
        number = self._num_packed
        self._num_packed += 1
        arguments = (
            number,
            self._packing_room,
            slot,
            batch.label_B.numpy(),
            batch.dense_BK.numpy(),
            widths,
            moves,
        )
        copies_hot = any(part.plan.copy_hot for part in step.parts)
        return PreparedStep(step, self._readers.submit(self._pack, *arguments), copies_hot)

    def _pack(self, number: int, room: PackedRoom, *arguments: Any) -> PackedBatch:
        """Pack a batch in a reader, which also counts what the loop has queued meanwhile."""
        self._parts.embeddings.note_transfers(waits=False)
        packed = pack(room, *arguments)
        # Batches are sent in their order, so it is known where they go: views are made here, not in the loop.
        made_for, inputs = self._made
        return (
            replace(packed, target=inputs[number % len(inputs)].target_of(packed))
            if made_for is room
            else packed
        )

    def train(self, prepared: PreparedStep, number: int, rates: StepRates) -> torch.Tensor:
        # What cannot be packed, and copies of all hot rows, run while the device stands still.
        step = prepared.step
        if InPlaceSteps.can_take(step):
            loss_1, loss = self._new_loss()
            self._in_place.train(step, number, rates, loss_1)
            return loss
        packed = None if prepared.packing is None else prepared.packing.result()
        if packed is None or prepared.copies_hot:
            self._device.synchronize()
        if packed is None:
            return self._at_once.train(prepared, number, rates)
        if prepared.copies_hot:
            for width, part in zip(self._widths, step.parts, strict=True):
                width.rows.executor.copy_hot(part.plan)
        # The copy goes up first, then rows move, then compute waits for both.
        if packed.room is not self._made[0]:
            self._make_room(packed.room)
        inputs, target = self._send(packed, rates)
        if step.item is not None:
            self.moves.queue(step.item, packed, inputs.copied, target.moves)
        self._device.wait("compute", inputs.copied)
        # With fused layers a step is one piece of work; else the model runs between two.
        loss_1, loss = self._new_loss()
        if self._fused is not None:
            self._queue(inputs, "step", self._whole_step)
            self._device.launch("compute", loss_1.copy_, self._fused.loss_1)
        else:
            self._queue(inputs, "look up", self._look_up)
            self._device.launch("compute", self._train_dense, inputs, packed.num_samples, number, loss_1)
            self._queue(inputs, "update", self._update)
            self._device.launch("compute", self._step_dense, rates.dense)
        # These inputs are free once all of this has run.
        inputs.read = self._device.record("compute")
        self._parts.embeddings.mark_updated(step)
        return loss

    def synchronize(self) -> None:
        self._device.synchronize()
        self._parts.embeddings.note_transfers()

    def _send(self, packed: PackedBatch, rates: StepRates) -> tuple[_Inputs, PackedTarget]:
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
        target = packed.target or inputs.target_of(packed)
        self._device.copy("copies", packed.source, target.received)
        inputs.copied = self._device.record("copies")
        self._ring.sent(inputs.copied)
        return inputs, target

    def _whole_step(self, inputs: _Inputs) -> None:
        """Queue all of a step whose dense layers are kernels."""
        assert self._fused is not None
        (width,), (work,), (lists,) = self._widths, self._work, inputs.lists
        self._launch("decode_batch", lists, width.layout, work.decoded)
        dense_inputs = DenseInputs(
            inputs.label_B,
            inputs.dense_BK,
            lists.num_samples_1,
            width.fast.weights_SD,
            work.decoded.slots_BF,
            work.grad_BFD,
        )
        self._fused.queue_passes(self._launch, dense_inputs)
        self._update(inputs)
        self._fused.queue_step(self._launch, inputs.dense_rates_2)

    def _look_up(self, inputs: _Inputs) -> None:
        """Queue the vectors of all lookups."""
        for width, work, lists in zip(self._widths, self._work, inputs.lists, strict=True):
            self._launch("decode_batch", lists, width.layout, work.decoded)
            slots_BF = work.decoded.slots_BF
            self._launch(
                "gather_rows", width.fast.weights_SD, slots_BF, lists.num_samples_1, work.vectors_BFD
            )

    def _update(self, inputs: _Inputs) -> None:
        """Queue one optimizer step on every row of the batch."""
        for width, work, lists, rates_T in zip(
            self._widths, self._work, inputs.lists, inputs.rates, strict=True
        ):
            numbers = StepNumbers(rates_T, width.root_scales_T)
            optimizer = width.rows.executor.optimizer
            self._launch(
                "sum_and_step",
                lists,
                work.decoded,
                work.grad_BFD,
                work.partials_LKD,
                optimizer,
                numbers,
                width.fast,
            )

    def _train_dense(self, inputs: _Inputs, num_samples: int, number: int, loss_1: torch.Tensor) -> None:
        """Pass the dense layers forward and backward; a kernel as far as the device is concerned."""
        # The model gets detached rows, and leaves their gradients in ``grad``.
        batch = Batch(
            inputs.label_B[:num_samples].float(),
            inputs.dense_BK[:num_samples],
            np.empty((num_samples, 0), np.int32),
            None,
            is_hot_only=False,
        )
        embeddings = [work.vectors_BFD[:num_samples].detach() for work in self._work]
        loss_1.copy_(self._parts.dense.train(batch, embeddings, number))
        for emb_BFD, work in zip(embeddings, self._work, strict=True):
            assert emb_BFD.grad is not None
            work.grad_BFD[:num_samples].copy_(emb_BFD.grad)

    def _step_dense(self, rate: float) -> None:
        self._parts.prepare_dense(rate)
        for step in self._parts.step_dense:
            step()

    def _launch(self, kernel: str | Callable[..., object], *arguments: object) -> None:
        """Queue a kernel, given by its name where there is a choice of them."""
        self._device.launch(
            "compute", self._kernels[kernel] if isinstance(kernel, str) else kernel, *arguments
        )

    def _queue(self, inputs: _Inputs, name: str, queue_work: Callable[[_Inputs], None]) -> None:
        """Queue work with fixed memory: recorded at its first time for these inputs, and replayed.

        It is queued once without, because what kernels compile and load cannot be recorded.
        """
        if not self._is_recorded or name not in self._warm:
            self._warm.add(name)
            queue_work(inputs)
            return
        if name not in inputs.graphs:
            inputs.graphs[name] = self._device.capture(lambda: queue_work(inputs))
        self._device.replay(inputs.graphs[name])

    def _make_room(self, room: PackedRoom) -> None:
        """Allocate memory on the device for batches of these sizes."""
        # Queued work may still use the old memory; recorded work has its addresses, and goes with it.
        self._device.synchronize()
        self._warm.clear()  # kernels may be compiled anew for other memory
        self._made = room, [_Inputs.of(room, self._device) for _ in range(self._num_inputs)]
        self._work = [
            _WidthWork.of(sizes, width.rows.embedding_dim, self._device, has_vectors=self._fused is None)
            for sizes, width in zip(room.widths, self._widths, strict=True)
        ]

    def _new_loss(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(1,) and () float64 for the loss of a step, the same memory, which whoever keeps it may read
        later."""
        if not self._losses:
            losses = self._device.allocate([_LOSSES_AT_ONCE], torch.float64)
            self._losses = list(zip(losses.view(-1, 1).unbind(), losses.unbind(), strict=True))
        return self._losses.pop()


@dataclass(slots=True)
class _Inputs:
    """A packed batch on the device."""

    packed: torch.Tensor
    moves: torch.Tensor
    """Rows to move, of which each batch has its own lists."""
    label_B: torch.Tensor
    dense_BK: torch.Tensor
    dense_rates_2: torch.Tensor
    lists: list[BatchLists]
    """The lookups of each width."""
    rates: list[torch.Tensor]
    """Numbers of the row optimizer of each width."""
    copied: Event
    """When the batch has arrived."""
    read: Event | None = None
    """When the step that reads it is done."""
    graphs: dict[str, Graph] = field(default_factory=dict)

    def target_of(self, packed: PackedBatch) -> PackedTarget:
        """Return where a batch goes."""
        return packed.target_in(self.packed, self.moves)

    @classmethod
    def of(cls, room: PackedRoom, device: Device) -> _Inputs:
        # Every list is a view of the one range that the copy fills.
        packed = device.allocate([room.num_bytes], torch.uint8)
        return cls(
            packed,
            room.sections["moves"].of(packed),
            room.sections["label"].of(packed),
            room.sections["dense"].of(packed).view(room.num_samples, room.num_dense),
            room.sections["dense_rates"].of(packed),
            [room.lists_on(packed, width) for width in range(len(room.widths))],
            [room.sections[f"rates{width}"].of(packed) for width in range(len(room.widths))],
            device.record("copies"),
        )


@dataclass(frozen=True, slots=True)
class _WidthWork:
    """Memory of a step for one row width."""

    decoded: DecodedBatch
    vectors_BFD: torch.Tensor
    """Rows of all lookups; empty where kernels gather them as they go."""
    grad_BFD: torch.Tensor
    partials_LKD: torch.Tensor

    @classmethod
    def of(cls, room: BatchRoom, embedding_dim: int, device: Device, *, has_vectors: bool) -> _WidthWork:
        shape = [room.num_samples, room.num_tables, embedding_dim]
        return cls(
            room.new_decoded(device.torch_device),
            device.allocate(shape if has_vectors else [0], torch.float32),
            device.allocate(shape, torch.float32),
            room.new_partials(embedding_dim, device.torch_device),
        )


def _can_be_queued(part: WidthStep) -> bool:
    """Whether the device can do a step by itself: each row has a slot there, and each sample one lookup."""
    return part.ids.bags_N is None and part.plan.in_place is None and part.plan.split is None
