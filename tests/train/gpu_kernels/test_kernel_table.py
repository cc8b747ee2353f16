"""Kernels are chosen by name."""

from __future__ import annotations

import pytest
import torch

from hotset.pipeline.errors import ConfigError
from hotset.train.gpu_kernels import dense_twins, row_twins
from hotset.train.gpu_kernels.kernel_table import TWINS, choose_kernels

HOST = torch.device("cpu")


def test_the_host_has_the_twins() -> None:
    kernels = choose_kernels(HOST)
    assert kernels.keys() == TWINS.keys()
    assert kernels["sum_and_step"] is row_twins.sum_and_step
    assert choose_kernels(HOST, "torch:gather_dots, torch")["gather_dots"] is dense_twins.gather_dots


@pytest.mark.parametrize("wanted", ["cuda:gather_dots", "torch:dots", "gather_dots", "torch:gather_dots,"])
def test_a_kernel_that_is_not_there_is_refused(wanted: str) -> None:
    with pytest.raises(ConfigError, match="no kernel"):
        choose_kernels(HOST, wanted)


def test_triton_on_the_host_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ConfigError, match="needs a GPU and the package triton"):
        choose_kernels(HOST, "triton:gather_dots")
