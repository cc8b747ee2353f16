"""The tensors of the rows of one width, as kernels of a device take them."""
# ruff: noqa: N815  (tensors carry shape suffixes)

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..device.verbs import Device
from ..execution.row_width import RowWidth
from ..gpu_kernels.batch_lists import RowTensors, SeedTables, SlotLayout
from ..rows.tiers import FileTier


@dataclass(frozen=True, slots=True)
class WidthTensors:
    """The tensors of one width."""

    rows: RowWidth
    fast: RowTensors
    slow: RowTensors
    layout: SlotLayout
    seeds: SeedTables
    root_scales_T: torch.Tensor

    @classmethod
    def of(cls, width: RowWidth, device: Device) -> WidthTensors:
        """Take the tensors of both tiers, and copy what kernels need beside them to the device."""
        executor = width.executor
        fast, slow = executor.fast, executor.slow
        return cls(
            width,
            RowTensors(fast.weights_SD, fast.state_SW),
            RowTensors(slow.weights_SD, slow.state_SW),
            SlotLayout.of(fast.layout, device.torch_device),
            SeedTables.of(slow.layout, executor.initial, device.torch_device),
            torch.from_numpy(executor.optimizer.root_scales).to(device.torch_device),
        )

    @property
    def dim(self) -> int:
        """Floats of a row."""
        return self.fast.weights_SD.shape[1]

    @property
    def state_width(self) -> int:
        """Floats of its optimizer state."""
        return self.fast.state_SW.shape[1]

    @property
    def has_file(self) -> bool:
        """Whether the slow tier is a file, whose rows the host moves while the device stands still."""
        return isinstance(self.rows.executor.slow, FileTier)

    @property
    def holds_rows(self) -> bool:
        """Whether rows live on the fast tier."""
        return self.rows.executor.fast.layout.num_own_slots > 0

    def pin_slow(self, device: Device) -> bool:
        """Let kernels of the device read and write the slow tier; return whether they can."""
        return all(map(device.pin, self.slow))
