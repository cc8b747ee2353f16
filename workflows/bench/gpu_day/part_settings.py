"""The settings that every part of a GPU day gets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from ....train.build_embeddings import SIMULATED, open_device


@dataclass(frozen=True, slots=True)
class PartSettings:
    """The settings that a part works with."""

    device: str
    """Name of the device: cuda, cpu, or late, a simulated GPU."""
    scratch: Path
    """Folder for temporary files."""
    is_small: bool
    """Few rows and samples: only to see that everything runs."""
    kernels: str | None = None
    """Kernels that are replaced by their twins, as `train --kernels` has it."""

    @property
    def torch_device(self) -> torch.device:
        """Torch device of the tensors."""
        return open_device(self.device)

    @property
    def step_kernels(self) -> str | None:
        """The kernels of steps: on a simulated GPU those of a GPU, too, with torch."""
        return "torch" if self.device.startswith(SIMULATED) else self.kernels
