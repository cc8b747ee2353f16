"""Devices that this machine does not have are refused."""

from __future__ import annotations

import pytest
import torch

from hotset.pipeline.errors import ConfigError
from hotset.train.build_embeddings import open_device
from hotset.train.gpu.build import keep_products_of_float32


@pytest.mark.parametrize("name", ["tpu9", "meta"])
def test_an_unknown_device_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        open_device(name)


def test_a_missing_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="no CUDA device"):
        open_device("cuda")


def test_the_gpu_that_is_named_is_the_one_that_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    # Torch's own `set_device` is kept: it takes no device without a number.
    monkeypatch.setattr(torch._C, "_cuda_setDevice", used.append, raising=False)
    assert open_device("cuda:1") == torch.device("cuda:1") and used == [1]
    assert open_device("cuda") == torch.device("cuda:0") and used == [1, 0]
    with pytest.raises(ConfigError, match="has 2 CUDA devices, and 'cuda:2' is none of them"):
        open_device("cuda:2")


@pytest.mark.parametrize(("name", "wanted"), [("cuda", ["highest"]), ("cpu", [])])
def test_products_of_float32_are_those_of_float32(
    name: str, wanted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_to: list[str] = []
    monkeypatch.setattr(torch, "set_float32_matmul_precision", set_to.append)
    keep_products_of_float32(torch.device(name))
    assert set_to == wanted
