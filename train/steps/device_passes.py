"""The kernels of a training step, queued on a device: on rows that are there, and on rows sent from the host.

Shapes as in `gpu_kernels.batch_lists`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from ..data.batch import Batch
from ..device.verbs import Device
from ..execution.row_width import PlannedStep
from ..gpu_kernels.batch_lists import StepNumbers
from ..recipe.learning_rates import StepRates
from .fused_dlrm import DenseInputs, FusedDlrm
from .packed_batch import PackedBatch, PackedRoom
from .recorded_work import RecordedWork
from .step_memory import SentRows, StepInputs, WidthWork
from .step_runner import StepParts
from .width_tensors import WidthTensors

Kernels = Mapping[str, Callable[..., None]]
"""Kernels by name, see `gpu_kernels.kernel_table`."""


class DevicePasses:
    """Queues what compute does for a step.

    Args:
        device: runs it.
        parts: what steps work on.
        kernels: of the device.
        widths: tensors of the rows of each width.
        fused: the dense layers as kernels; None: the step in ``parts`` passes them.
        recorded: queues work with fixed memory.
    """

    def __init__(
        self,
        device: Device,
        parts: StepParts,
        kernels: Kernels,
        widths: Sequence[WidthTensors],
        fused: FusedDlrm | None,
        recorded: RecordedWork,
    ) -> None:
        self._device = device
        self._parts = parts
        self._kernels = kernels
        self._widths = widths
        self._fused = fused
        self._recorded = recorded
        self._work: list[WidthWork] = []
        self._sent: list[SentRows] = []
        """Memory of rows that stay on the host; none before the first step that sends some."""

    def make_room(self, room: PackedRoom) -> None:
        """Allocate memory for batches of these sizes; the device stands still."""
        self._work = [
            WidthWork.of(sizes, width.dim, self._device, has_vectors=self._fused is None)
            for sizes, width in zip(room.widths, self._widths, strict=True)
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
            self._recorded.queue("compute", "look up", inputs, self._look_up)
            self._device.launch("compute", self._train_dense, inputs, num_samples, number, loss_1)
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
        """Take a step whose rows stay on the host, which has updated them when this returns.

        The batch is on its way while the host gathers its rows. The sums of their gradients come down, to
        where the rows were, beside the step of the dense layers.
        """
        device = self._device
        if not self._sent:
            sizes = zip(packed.room.widths, self._widths, strict=True)
            self._sent = [SentRows.of(room, width.dim, device) for room, width in sizes]
        hosts = [width.rows.executor.in_place for width in self._widths]
        sent = list(zip(hosts, step.parts, packed.sent_rows, self._sent, strict=True))
        for host, part, slots_U, memory in sent:
            rows_UD = memory.on_host_UD[: slots_U.size]
            host.read_rows(part.lookups, slots_U, rows_UD)
            device.copy("copies", rows_UD, memory.near_UD[: slots_U.size])
        # Behind the copy of the batch, too, which is in the same stream.
        device.wait("compute", device.record("copies"))
        self._pass_sent_rows(inputs, packed.num_samples, number, loss_1)
        device.wait("moves", device.record("compute"))
        for _, _, slots_U, memory in sent:
            device.copy("moves", memory.sums_UD[: slots_U.size], memory.on_host_UD[: slots_U.size])
        landed = device.record("moves")
        if self._fused is not None:
            self._recorded.queue("compute", "step of the layers", inputs, self._step_fused)
        else:
            device.launch("compute", self._step_dense, rates.dense)
        inputs.read = device.record("compute")
        # The rows of the next batch may be the same, so it is gathered after this.
        device.wait_on_host(landed)
        for host, part, slots_U, memory in sent:
            host.apply_sums(part.lookups, slots_U, memory.on_host_UD[: slots_U.size], rates.rows)

    def _pass_sent_rows(
        self, inputs: StepInputs, num_samples: int, number: int, loss_1: torch.Tensor
    ) -> None:
        """Queue the passes of the layers over rows that were sent, and the sums of the rows' gradients."""
        if self._fused is not None:
            self._recorded.queue("compute", "passes of sent rows", inputs, self._pass_sent_fused)
            self._device.launch("compute", loss_1.copy_, self._fused.loss_1)
            return
        self._recorded.queue("compute", "look up sent rows", inputs, self._look_up_sent)
        self._device.launch("compute", self._train_dense, inputs, num_samples, number, loss_1)
        self._recorded.queue("compute", "sums of sent rows", inputs, self._sum_sent)

    def _whole_step(self, inputs: StepInputs) -> None:
        """Queue all of a step whose dense layers are kernels."""
        self._pass_fused(inputs, self._widths[0].fast.weights_SD)
        self._update(inputs)
        self._step_fused(inputs)

    def _pass_sent_fused(self, inputs: StepInputs) -> None:
        self._pass_fused(inputs, self._sent[0].near_UD)
        self._sum_sent(inputs)

    def _pass_fused(self, inputs: StepInputs, weights_SD: torch.Tensor) -> None:
        """Queue everything up to the gradient of each lookup, of rows in ``weights_SD``."""
        assert self._fused is not None
        (width,), (work,), (lists,) = self._widths, self._work, inputs.lists
        self._launch("decode_batch", lists, width.layout, work.decoded)
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

    def _look_up(self, inputs: StepInputs) -> None:
        """Queue the vectors of all lookups."""
        self._gather(inputs, [width.fast.weights_SD for width in self._widths])

    def _look_up_sent(self, inputs: StepInputs) -> None:
        self._gather(inputs, [memory.near_UD for memory in self._sent])

    def _gather(self, inputs: StepInputs, tables: Sequence[torch.Tensor]) -> None:
        """Queue the vectors of all lookups, of rows of each width in ``tables``."""
        for width, weights_SD, work, lists in zip(
            self._widths, tables, self._work, inputs.lists, strict=True
        ):
            self._launch("decode_batch", lists, width.layout, work.decoded)
            slots_BF = work.decoded.slots_BF
            self._launch("gather_rows", weights_SD, slots_BF, lists.num_samples_1, work.vectors_BFD)

    def _sum_sent(self, inputs: StepInputs) -> None:
        """Queue the sums of the gradients of rows that were sent."""
        for memory, work, lists in zip(self._sent, self._work, inputs.lists, strict=True):
            sums = (work.grad_BFD, work.partials_LKD, memory.sums_UD)
            self._launch("sum_gradients", lists, work.decoded, *sums)

    def _update(self, inputs: StepInputs) -> None:
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

    def _train_dense(self, inputs: StepInputs, num_samples: int, number: int, loss_1: torch.Tensor) -> None:
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
