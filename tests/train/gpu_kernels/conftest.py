"""Where the kernels of a GPU run in tests: there, or else in Triton's interpreter."""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch

if not torch.cuda.is_available():
    # Read when a kernel is defined, so before any test imports one.
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture
def device() -> torch.device:
    """The device of the kernels' tensors."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(params=["torch", "triton"])
def engine(request: pytest.FixtureRequest) -> str:
    """How the kernels run."""
    if request.param == "triton" and importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed: pip install 'hotset[gpu-dev]'")
    return str(request.param)
