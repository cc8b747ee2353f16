"""Products of matrices as the hidden layers compute them on this machine, for those who time them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from ....stats.products.dense_products import multiply, num_edge_floats, num_panel_floats, pack_right
from ....stats.simd import aligned_zeros
from ....train.model.dense_dtype import cpu_features, has_quicker_products


def hidden_product(
    batch: int, inputs: int, outputs: int, dtype: torch.dtype = torch.float32
) -> Callable[[], object]:
    """Return a call that multiplies ones, (batch, inputs) by (inputs, outputs), into memory that is kept.

    In float32 that is torch's product, or ours where hidden layers have ours. Those read weights in panels,
    which a step makes once for all of its tiles; a call does not make them.
    """
    a = torch.ones(batch, inputs, dtype=dtype)
    b = torch.ones(inputs, outputs, dtype=dtype)
    out = torch.empty(batch, outputs, dtype=dtype)
    if dtype != torch.float32 or not has_quicker_products(cpu_features()):
        return partial(torch.mm, a, b, out=out)
    panels = aligned_zeros(num_panel_floats(inputs, outputs))
    pack_right(b.numpy(), panels)
    edge = aligned_zeros(num_edge_floats(inputs))
    return partial(multiply, a.numpy(), panels, out.numpy(), edge)
