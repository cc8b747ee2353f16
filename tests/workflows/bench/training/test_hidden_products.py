"""Products that are timed are those that hidden layers have, whoever computes them."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from hotset.stats.products.layer_products import layer_outputs
from hotset.stats.products.panels import num_stored_rows, unpack
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
    monkeypatch.setattr(module, "layer_outputs", noted("ours", layer_outputs))
    monkeypatch.setattr(torch, "mm", noted("torch", torch.mm))
    call = hidden_product(*sizes, dtype)
    assert used == []
    call()
    # Products in bf16 are torch's everywhere.
    is_ours = is_own and dtype == torch.float32
    assert used == ["ours" if is_ours else "torch"]
    assert isinstance(call, partial)
    if is_ours:
        out = np.empty((sizes[0], sizes[2]), np.float32)
        unpack(call.args[-1], num_stored_rows(sizes[0]), out)
    else:
        out = call.keywords["out"].float().numpy()
    np.testing.assert_array_equal(out, np.full((sizes[0], sizes[2]), sizes[1], np.float32))
