"""Weights written one tensor at a time are safetensors like any other."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from hotset.train.weights_file import Weights, write_weights


def test_the_library_reads_what_was_written(tmp_path: Path) -> None:
    tensors = {"b": torch.randn(3, 2), "dense.a": torch.randn(5), "C1": torch.randn(0, 4), "é": torch.ones(1)}
    write_weights(tmp_path / "w", Weights.of(tensors))
    found = load_file(tmp_path / "w")
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)
    with safe_open(tmp_path / "w", framework="pt") as file:
        assert file.metadata() is None


def test_one_tensor_at_a_time_is_made(tmp_path: Path) -> None:
    asked: list[str] = []

    def make(name: str) -> torch.Tensor:
        asked.append(name)
        return torch.full((2, 2), float(len(asked)))

    write_weights(tmp_path / "w", Weights({"z": (2, 2), "a": (2, 2)}, make))
    assert asked == ["a", "z"]
    assert load_file(tmp_path / "w")["z"].eq(2).all()


def test_a_tensor_that_is_not_as_announced_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"C1 is torch.float64"):
        write_weights(tmp_path / "w", Weights.of({"C1": torch.zeros(2, dtype=torch.float64)}))
