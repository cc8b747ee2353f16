"""Products that are timed are those that hidden layers have, whoever computes them."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from hotset.stats.products.dense_products import multiply
from hotset.workflows.bench.training import hidden_products as module
from hotset.workflows.bench.training.hidden_products import hidden_product


@pytest.mark.parametrize("is_own", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sizes", [(9, 40, 64), (32, 64, 33), (1, 1, 1)])
def test_a_product_is_the_one_of_the_layers(
    is_own: bool, dtype: torch.dtype, sizes: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[str] = []

    def noted(name: str, call: Any) -> Any:
        def noting(*args: Any, **options: Any) -> Any:
            used.append(name)
            return call(*args, **options)

        return noting

    monkeypatch.setattr(module, "has_quicker_products", lambda _: is_own)
    monkeypatch.setattr(module, "multiply", noted("ours", multiply))
    monkeypatch.setattr(torch, "mm", noted("torch", torch.mm))
    call = hidden_product(*sizes, dtype)
    assert used == []
    call()
    # Products in bf16 are torch's everywhere.
    is_ours = is_own and dtype == torch.float32
    assert used == ["ours" if is_ours else "torch"]
    assert isinstance(call, partial)
    out = call.args[2] if is_ours else call.keywords["out"].float().numpy()
    np.testing.assert_array_equal(out, np.full((sizes[0], sizes[2]), sizes[1], np.float32))
