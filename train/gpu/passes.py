"""The kernels of a step, queued on a device, and their memory.

Rows are on the device or are sent from the host. Work with fixed memory is recorded once for each place and
replayed: one call of the host instead of forty. Shapes as in `packed_batch`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np
import torch

from ...pipeline.errors import first_line
from ..data.batch import Batch
from ..device import Device, Event, Graph, StreamName
from ..rows.step_plan import PlannedStep
from ..step import StepParts, StepRates
from .fused_dlrm import DenseInputs, FusedDlrm
from .packed_batch import (
    BatchLists,
    BatchRoom,
    DecodedBatch,
    GroupTensors,
    PackedBatch,
    PackedRoom,
    RowMoves,
    StepNumbers,
)

# ruff: noqa: N815  (tensors carry shape suffixes)


@dataclass(slots=True)
class StepInputs:
    """A packed batch on the device."""

    packed: torch.Tensor
    label_B: torch.Tensor
    dense_BK: torch.Tensor
    dense_rates_2: torch.Tensor
    lists: list[BatchLists]
    """The lookups of each table group."""
    rates: list[torch.Tensor]
    """Numbers of the row optimizer of each table group."""
    moves: list[list[RowMoves]]
    """The rows to move, of each table group and list of `packed_batch.MOVES`."""
    copied: Event
    """When the batch has arrived."""
    read: Event | None = None
    """When the step that reads it is done."""
    graphs: dict[str, Graph] = field(default_factory=dict)
    """Recorded work by its name."""

    @classmethod
    def of(cls, room: PackedRoom, device: Device) -> StepInputs:
        """Allocate the memory of a batch."""
        # Every list is a view of the one range that the copy fills.
        packed = device.allocate([room.num_bytes], torch.uint8)
        rates_R = room.sections["rates"].of(packed)
        dense_rates_2, *rates = (rates_R[place] for place in room.rate_places)
        return cls(
            packed,
            room.sections["label"].of(packed),
            room.sections["dense"].of(packed).view(room.num_samples, room.num_dense),
            dense_rates_2,
            [room.lists_on(packed, group) for group in range(len(room.groups))],
            rates,
            room.moves_on(packed),
            device.record("copies"),
        )


@dataclass(frozen=True, slots=True)
class GroupWork:
    """Memory of a step for one table group."""

    decoded: DecodedBatch
    vectors_BFD: torch.Tensor
    """Rows of all lookups; empty where kernels gather them as they go."""
    grad_BFD: torch.Tensor
    partials_LKD: torch.Tensor
    changed_U: torch.Tensor
    """Slots of the distinct rows that a step changes, where some tables are frozen."""

    @classmethod
    def of(cls, room: BatchRoom, embedding_dim: int, device: Device, *, has_vectors: bool) -> GroupWork:
        """Allocate the memory of a step on batches that fit in ``room``."""
        shape = [room.num_samples, room.num_tables, embedding_dim]
        return cls(
            room.new_decoded(device.torch_device),
            device.allocate(shape if has_vectors else [0], torch.float32),
            device.allocate(shape, torch.float32),
            room.new_partials(embedding_dim, device.torch_device),
            device.allocate([room.num_rows], torch.int32),
        )


@dataclass(frozen=True, slots=True)
class SentRows:
    """Memory for the distinct rows of a batch that stay on the host."""

    on_host_UD: torch.Tensor
    """Pinned; the rows, then the sums of their gradients."""
    near_UD: torch.Tensor
    """The rows on the device, a small table in which lookups are made."""
    sums_UD: torch.Tensor
    """The sums on the device."""

    @classmethod
    def of(cls, room: BatchRoom, embedding_dim: int, device: Device) -> SentRows:
        """Allocate the memory for batches that fit in ``room``."""
        shape = [room.num_rows, embedding_dim]
        return cls(
            device.allocate_pinned(shape, torch.float32),
            device.allocate(shape, torch.float32),
            device.allocate(shape, torch.float32),
        )


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
        """Queue work; record it at the second call, and replay it afterwards.

        It is recorded for all places. The first call is not, because what kernels compile and load cannot be
        recorded.
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
        """Forget recorded work; it will be recorded again with these inputs.

        Kernels may be compiled again for other memory.
        """
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


def _without_frozen(
    lists: BatchLists, decoded: DecodedBatch, is_frozen_F: torch.Tensor, changed_U: torch.Tensor
) -> None:
    """Write the slots of distinct rows, with -1 for those of frozen tables."""
    # Rows are table after table; what follows the last one is never used.
    numbers_U = torch.arange(changed_U.numel(), dtype=torch.int32, device=changed_U.device)
    tables_U = torch.searchsorted(lists.row_offsets_F1[1:-1].contiguous(), numbers_U, right=True)
    changed_U.copy_(torch.where(is_frozen_F[tables_U], -1, decoded.slots_U))


Kernels = Mapping[str, Callable[..., None]]
"""Kernels by name, see `twins.kernel_of`."""


class DevicePasses:
    """Queues what compute does for a step.

    Args:
        device: runs it.
        parts: what steps work on.
        kernels: of the device.
        groups: tensors of the rows of each table group.
        fused: the dense layers as kernels; None: the step in ``parts`` passes them.
        recorded: queues work with fixed memory.
        room: of the largest batch; its lists may be short.
    """

    def __init__(
        self,
        device: Device,
        parts: StepParts,
        kernels: Kernels,
        groups: Sequence[GroupTensors],
        fused: FusedDlrm | None,
        recorded: RecordedWork,
        room: PackedRoom,
    ) -> None:
        self._device = device
        self._parts = parts
        self._kernels = kernels
        self._groups = groups
        self._fused = fused
        self._recorded = recorded
        self._room = room
        self._work: list[GroupWork] = []
        self._sent: list[SentRows] = []
        """Memory of rows that stay on the host; none before the first step that sends some."""

    def make_room(self, room: PackedRoom) -> None:
        """Allocate memory for batches of these sizes; the device is idle."""
        self._work = [
            GroupWork.of(sizes, group.dim, self._device, has_vectors=self._fused is None)
            for sizes, group in zip(room.groups, self._groups, strict=True)
        ]
        self._sent = []

    def train_on_device(
        self, inputs: StepInputs, num_samples: int, number: int, rates: StepRates, loss_1: torch.Tensor
    ) -> None:
        """Queue a step all of whose rows are on the device."""
        # With fused layers a step is one piece of work; else the model runs between two.
        if self._fused is not None:
            self._recorded.queue("compute", "step", inputs, self._whole_step)
            self._device.launch("compute", loss_1.copy_, self._fused.loss_1)
        else:
            near = [group.fast.weights_SD for group in self._groups]
            self._recorded.queue("compute", "look up", inputs, partial(self._gather, tables=near))
            self._launch_dense(inputs, num_samples, number, loss_1)
            self._recorded.queue("compute", "update", inputs, self._update)
            self._device.launch("compute", self._step_dense, rates.dense)
        # These inputs are free once all of this has run.
        inputs.read = self._device.record("compute")

    def train_on_sent_rows(
        self,
        step: PlannedStep,
        inputs: StepInputs,
        packed: PackedBatch,
        number: int,
        rates: StepRates,
        loss_1: torch.Tensor,
    ) -> None:
        """Take a step whose rows stay on the host.

        The host has updated them when this returns. The batch is copied while the host gathers its rows. The
        sums of their gradients are copied back, to where the rows were, during the step of the dense layers.
        """
        device = self._device
        if not self._sent:
            sizes = zip(packed.room.groups, self._groups, strict=True)
            self._sent = [SentRows.of(room, group.dim, device) for room, group in sizes]
        hosts = [group.rows.in_place for group in self._groups]
        sent = list(zip(hosts, step.parts, packed.sent_rows, self._sent, strict=True))
        for host, part, slots_U, memory in sent:
            rows_UD = memory.on_host_UD[: slots_U.size]
            host.read_rows(part.lookups, slots_U, rows_UD)
            device.copy("copies", rows_UD, memory.near_UD[: slots_U.size])
        # The passes wait for the copy of the batch, too, which is in the same stream.
        self._pass_and_step(
            partial(self._pass_sent_rows, inputs, packed.num_samples, number, loss_1),
            [
                (memory.sums_UD[: slots_U.size], memory.on_host_UD[: slots_U.size])
                for _, _, slots_U, memory in sent
            ],
            partial(self._step_layers, inputs, rates),
        )
        inputs.read = device.record("compute")
        for host, part, slots_U, memory in sent:
            host.apply_sums(part.lookups, slots_U, memory.on_host_UD[: slots_U.size], rates.rows)

    def train_on_sent_bags(
        self, step: PlannedStep, number: int, rates: StepRates, loss_1: torch.Tensor
    ) -> None:
        """Take a step whose rows stay on the host, which adds up the lookups of each bag.

        The host has updated them when this returns; the loss may be written later.
        """
        groups = [group.rows for group in self._groups]
        count = step.batch.num_samples
        host, near = ([each[:count] for each in memory] for memory in self._bags)
        of_rows = list(zip(groups, step.parts, host[2:], strict=True))
        # Labels and dense values are on their way while the host looks up.
        host[0].copy_(step.batch.label_B)
        host[1].copy_(step.batch.dense_BK)
        for values, target in zip(host[:2], near[:2], strict=True):
            self._device.copy("copies", values, target)
        for (group, part, host_BFD), near_BFD in zip(of_rows, near[2:], strict=True):
            group.in_place.look_up_bags(part, host_BFD.view(-1, group.embedding_dim))
            self._device.copy("copies", host_BFD, near_BFD)
        # Gradients take the places of the vectors.
        batch = replace(step.batch, label_B=near[0], dense_BK=near[1])
        self._pass_and_step(
            partial(
                self._device.launch, "compute", self._train_dense, batch, near[2:], near[2:], number, loss_1
            ),
            list(zip(near[2:], host[2:], strict=True)),
            partial(self._device.launch, "compute", self._step_dense, rates.dense),
        )
        for group, part, grad_BFD in of_rows:
            group.in_place.update(part, grad_BFD.view(-1, group.embedding_dim), rates.rows)

    @cached_property
    def _bags(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Labels, dense values and the vectors of each table group, on the host and on the device."""
        num_samples = self._room.num_samples
        shapes = [[num_samples], [num_samples, self._room.num_dense]]
        shapes += [[num_samples, group.rows.reader.num_bags, group.dim] for group in self._groups]
        return (
            [self._device.allocate_pinned(shape, torch.float32) for shape in shapes],
            [self._device.allocate(shape, torch.float32) for shape in shapes],
        )

    def _pass_and_step(
        self,
        queue_passes: Callable[[], None],
        gradients: Sequence[tuple[torch.Tensor, torch.Tensor]],
        queue_step: Callable[[], None],
    ) -> None:
        """Queue the dense layers on what was sent; return once the host has the gradients.

        They are copied during the step of the layers. The rows of the next batch may be the same, so it is
        looked up after this.
        """
        device = self._device
        device.wait("compute", device.record("copies"))
        queue_passes()
        device.wait("moves", device.record("compute"))
        for near, host in gradients:
            device.copy("moves", near, host)
        landed = device.record("moves")
        queue_step()
        device.wait_on_host(landed)

    def _pass_sent_rows(
        self, inputs: StepInputs, num_samples: int, number: int, loss_1: torch.Tensor
    ) -> None:
        """Queue the dense layers on sent rows, and the rows' gradient sums."""
        if self._fused is not None:
            self._recorded.queue("compute", "passes of sent rows", inputs, self._pass_sent_fused)
            self._device.launch("compute", loss_1.copy_, self._fused.loss_1)
            return
        near = [memory.near_UD for memory in self._sent]
        self._recorded.queue("compute", "look up sent rows", inputs, partial(self._gather, tables=near))
        self._launch_dense(inputs, num_samples, number, loss_1)
        self._recorded.queue("compute", "sums of sent rows", inputs, self._sum_sent)

    def _whole_step(self, inputs: StepInputs) -> None:
        """Queue all of a step whose dense layers are kernels."""
        self._pass_fused(inputs, self._groups[0].fast.weights_SD)
        self._update(inputs)
        self._step_fused(inputs)

    def _pass_sent_fused(self, inputs: StepInputs) -> None:
        self._pass_fused(inputs, self._sent[0].near_UD)
        self._sum_sent(inputs)

    def _pass_fused(self, inputs: StepInputs, weights_SD: torch.Tensor) -> None:
        """Queue everything up to the gradient of each lookup, of rows in ``weights_SD``."""
        assert self._fused is not None
        (group,), (work,), (lists,) = self._groups, self._work, inputs.lists
        self._launch("decode_batch", lists, group.layout, work.decoded)
        dense_inputs = DenseInputs(
            inputs.label_B,
            inputs.dense_BK,
            lists.num_samples_1,
            weights_SD,
            work.decoded.slots_BF,
            work.grad_BFD,
        )
        self._fused.queue_passes(self._launch, dense_inputs)

    def _step_fused(self, inputs: StepInputs) -> None:
        assert self._fused is not None
        self._fused.queue_step(self._launch, inputs.dense_rates_2)

    def _gather(self, inputs: StepInputs, tables: Sequence[torch.Tensor]) -> None:
        """Queue the vectors of all lookups, of rows of each table group in ``tables``."""
        for group, weights_SD, work, lists in zip(
            self._groups, tables, self._work, inputs.lists, strict=True
        ):
            self._launch("decode_batch", lists, group.layout, work.decoded)
            slots_BF = work.decoded.slots_BF
            self._launch("gather_rows", weights_SD, slots_BF, lists.num_samples_1, work.vectors_BFD)

    def _sum_sent(self, inputs: StepInputs) -> None:
        """Queue the sums of the gradients of rows that were sent."""
        for memory, work, lists in zip(self._sent, self._work, inputs.lists, strict=True):
            sums = (work.grad_BFD, work.partials_LKD, memory.sums_UD)
            self._launch("sum_gradients", lists, work.decoded, *sums)

    def _update(self, inputs: StepInputs) -> None:
        """Queue one optimizer step on every row of the batch."""
        for group, work, lists, rates_T in zip(
            self._groups, self._work, inputs.lists, inputs.rates, strict=True
        ):
            numbers = StepNumbers(rates_T, group.root_scales_T)
            optimizer = group.rows.optimizer
            decoded = work.decoded
            if group.is_frozen_F is not None:
                self._launch(_without_frozen, lists, decoded, group.is_frozen_F, work.changed_U)
                decoded = decoded._replace(slots_U=work.changed_U)
            self._launch(
                "sum_and_step",
                lists,
                decoded,
                work.grad_BFD,
                work.partials_LKD,
                optimizer,
                numbers,
                group.fast,
            )

    def _launch_dense(self, inputs: StepInputs, num_samples: int, number: int, loss_1: torch.Tensor) -> None:
        """Queue the dense layers on the vectors of a packed batch."""
        no_ids = np.empty((num_samples, 0), np.int32)
        batch = Batch(inputs.label_B[:num_samples], inputs.dense_BK[:num_samples], no_ids, None, False)
        vectors = [work.vectors_BFD[:num_samples] for work in self._work]
        grads = [work.grad_BFD[:num_samples] for work in self._work]
        self._device.launch("compute", self._train_dense, batch, vectors, grads, number, loss_1)

    def _train_dense(
        self,
        batch: Batch,
        vectors: Sequence[torch.Tensor],
        grads: Sequence[torch.Tensor],
        number: int,
        loss_1: torch.Tensor,
    ) -> None:
        """Run the dense layers forward and backward, as one kernel."""
        # The model gets detached rows, and leaves their gradients in ``grad``.
        embeddings = [vectors_BFD.detach() for vectors_BFD in vectors]
        batch = replace(batch, label_B=batch.label_B.float())
        loss_1.copy_(self._parts.dense.train(batch, embeddings, number))
        for emb_BFD, grad_BFD in zip(embeddings, grads, strict=True):
            assert emb_BFD.grad is not None
            grad_BFD.copy_(emb_BFD.grad)

    def _step_layers(self, inputs: StepInputs, rates: StepRates) -> None:
        """Queue the step of the dense layers alone."""
        if self._fused is not None:
            self._recorded.queue("compute", "step of the layers", inputs, self._step_fused)
        else:
            self._device.launch("compute", self._step_dense, rates.dense)

    def _step_dense(self, rate: float) -> None:
        self._parts.prepare_dense(rate)
        for step in self._parts.step_dense:
            step()

    def _launch(self, kernel: str | Callable[..., object], *arguments: object) -> None:
        """Queue a kernel, given by its name where there is a choice of them."""
        self._device.launch(
            "compute", self._kernels[kernel] if isinstance(kernel, str) else kernel, *arguments
        )
