"""Products of matrices as the hidden layers compute them on this machine, for those who time them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from ....stats.products.layer_products import layer_outputs
from ....stats.products.panels import PART_FLOATS, num_panel_floats, num_stored_rows
from ....stats.simd import aligned_zeros
from ....train.model.dense_dtype import cpu_features, has_quicker_products


def hidden_product(
    batch: int, inputs: int, outputs: int, dtype: torch.dtype = torch.float32
) -> Callable[[], object]:
    """Return a call that multiplies ones, (batch, inputs) by (inputs, outputs), into memory that is kept.

    In float32 that is torch's product, or ours where hidden layers have ours, which is that of a layer, with
    bias and ReLU.
    """
    a = torch.ones(batch, inputs, dtype=dtype)
    b = torch.ones(inputs, outputs, dtype=dtype)
    out = torch.empty(batch, outputs, dtype=dtype)
    if dtype != torch.float32 or not has_quicker_products(cpu_features()):
        return partial(torch.mm, a, b, out=out)
    stored = num_stored_rows(batch)
    panels, products = (aligned_zeros(num_panel_floats(stored, width)) for width in (inputs, outputs))
    panels[:] = 1
    bias, parts = np.zeros(outputs, np.float32), aligned_zeros(2 * PART_FLOATS)
    return partial(layer_outputs, panels, stored, b.numpy(), bias, parts, products)
