"""Devices that this machine does not have are refused; threads are those of one rank among others."""

from __future__ import annotations

import os

import pytest
import torch

from hotset.pipeline.errors import ConfigError
from hotset.train import build_embeddings
from hotset.train.build_embeddings import num_threads, open_device
from hotset.train.gpu.build import keep_products_of_float32

LOCAL = {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4", "RANK": "1"}


@pytest.mark.parametrize(
    ("variables", "wanted", "threads"),
    [
        ({"OMP_NUM_THREADS": "3"}, None, 16),
        (LOCAL, None, 4),
        (LOCAL, 9, 9),
        (LOCAL | {"OMP_NUM_THREADS": "3"}, None, 3),
        (LOCAL | {"OMP_NUM_THREADS": "8"}, None, 4),
        (LOCAL | {"OMP_NUM_THREADS": "1"}, None, 1),
        # Torchrun sets it to 1 where nobody has.
        (LOCAL | {"OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "none"}, None, 4),
        (LOCAL | {"OMP_NUM_THREADS": "2", "TORCHELASTIC_RUN_ID": "none"}, None, 2),
        (LOCAL | {"LOCAL_WORLD_SIZE": "2"}, None, 8),
        (LOCAL | {"LOCAL_WORLD_SIZE": "40"}, None, 1),
        ({"WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1"}, None, 4),
        ({"WORLD_SIZE": "4", "MASTER_ADDR": "node1"}, None, 16),
        (LOCAL | {"OMP_NUM_THREADS": "2,1"}, None, 4),
    ],
)
def test_ranks_of_a_machine_share_its_cores(
    variables: dict[str, str], wanted: int | None, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "OMP_NUM_THREADS", "TORCHELASTIC_RUN_ID")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(build_embeddings, "num_workers", lambda workers: 16)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(16)))
    assert num_threads(wanted) == threads


def test_a_rank_with_cores_of_its_own_takes_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in LOCAL.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(build_embeddings, "num_workers", lambda workers: 4)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(16 if process else 4)))
    assert num_threads(None) == 4


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
