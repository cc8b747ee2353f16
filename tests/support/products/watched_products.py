"""Where the operands of torch's products of matrices begin, and the same numbers begun elsewhere."""

from __future__ import annotations

from typing import Any

import pytest
import torch


def moved(tensor: torch.Tensor, floats: int) -> torch.Tensor:
    """The same numbers, so many floats behind the start of a cache line."""
    memory_N = torch.empty(tensor.numel() + 16)
    return memory_N[floats : floats + tensor.numel()].view(tensor.shape).copy_(tensor)


def watch_products(monkeypatch: pytest.MonkeyPatch, *names: str) -> list[int]:
    """Note how many bytes behind the start of a cache line each operand of these products begins, as they
    are called."""
    offsets: list[int] = []

    def watch(product: Any) -> Any:
        def watched(*operands: torch.Tensor, **keywords: torch.Tensor) -> torch.Tensor:
            offsets.extend(operand.data_ptr() % 64 for operand in operands)
            found: torch.Tensor = product(*operands, **keywords)
            return found

        return watched

    for name in names:
        monkeypatch.setattr(torch, name, watch(getattr(torch, name)))
    return offsets
