"""How the kernels of a GPU run in tests: with torch, and in Triton; on a GPU, or else in its interpreter."""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

if TYPE_CHECKING:
    from hotset.tests.support.gpu.device_batches import Kernels

if not torch.cuda.is_available():
    # Read when a kernel is defined, so before any test imports one.
    os.environ["TRITON_INTERPRET"] = "1"
else:
    # As runs have it: in some environments torch rounds the factors of products of float32.
    torch.set_float32_matmul_precision("highest")


@pytest.fixture(params=["torch", "triton"])
def engine(request: pytest.FixtureRequest, device: torch.device) -> str:
    """How the kernels run."""
    if request.param == "triton" and importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed: pip install 'hotset[gpu-dev]'")
    if request.param == "triton" and device.type == "cpu" and torch.cuda.is_available():
        pytest.skip("a process has Triton's interpreter or its compiler")
    return str(request.param)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    """Where the tensors of the kernels are."""
    return torch.device(request.param)


@pytest.fixture
def on(engine: str, device: torch.device, rng: np.random.Generator) -> Kernels:
    """The kernels, with tensors for them."""
    from hotset.tests.support.gpu.device_batches import Kernels

    return Kernels(engine, device, rng)
