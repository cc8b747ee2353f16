"""Multiplies matrices by torch, or by oneDNN where measured to be faster.

Torch multiplies float32 with MKL, whose kernels for AVX-512 run on Intel's processors alone; on AMD's it
uses AVX2. oneDNN, which is a part of torch, uses AVX-512 on both. `_linear_pointwise` is the one operator
that reaches it in float32; it is private, so a torch without it multiplies with MKL. Its fused ReLU is not
used: it turns NaN into 0, and a diverging run must be noticed.

Rates of one thread in GF/s, `torch.mm` / oneDNN, torch 2.13, minima of CPU time measured in turns; of the
outputs, the gradient of the inputs and the gradient of the weights:

| samples, inputs, outputs | EPYC of family 26 (Zen 5) | EPYC of family 25 (Zen 4) |
| --- | --- | --- |
| 512, 368, 512 | 117 / 255, - / 257, - / 226 | 104 / 109, 104 / 111, 103 / 103 |
| 512, 512, 256 | 115 / 255, - / 250, - / 223 | 103 / 111, 104 / 110, 96 / 100 |
| 128, 512, 256 | 115 / 224, - / 231, - / 203 | 102 / 106, 101 / 103, 94 / 91 |
| 512, 256, 64 | not measured | 97 / 100, 99 / 100, 89 / 70 |
| 512, 512, 16 | not measured | 77 / 86, 81 / 81, 38 / 35 |
| 512, 64, 16 | not measured | 75 / 37, 75 / 42, 64 / 22 |
| 32, 512, 512 | not measured | 87 / 85, 89 / 87, 92 / 77 |

On an Intel Xeon with AVX-512 all products of a step take 23.9 CPU microseconds a sample with MKL and 32.9
with oneDNN. In bfloat16 `torch.mm` itself calls oneDNN.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from .gradients import ParameterViews

_LINEAR = getattr(getattr(torch.ops.mkldnn, "_linear_pointwise", None), "default", None)
"""oneDNN's linear layer, ``x w' + b``; None where torch has none."""
Library = Literal["torch", "oneDNN"]
_FASTER_WITH_ONEDNN = frozenset({"AuthenticAMD", "avx512f"})
_LEAST_WIDTH = 128
"""Fewest inputs and outputs of a layer that oneDNN multiplies."""


def choose_library(features: frozenset[str], dtype: str) -> Library:
    """Return the library that multiplies wide layers on a CPU.

    A function of its arguments alone, so that resumed runs, ranks and placements agree.

    Args:
        features: `cpu_features` of this machine.
        dtype: ``fp32`` or ``bf16``.
    """
    is_faster = dtype == "fp32" and features >= _FASTER_WITH_ONEDNN
    return "oneDNN" if is_faster and _LINEAR is not None else "torch"


def is_wide(num_inputs: int, num_outputs: int) -> bool:
    """Return whether a layer is wide enough for oneDNN."""
    return min(num_inputs, num_outputs) >= _LEAST_WIDTH


def multiply(
    left_MK: torch.Tensor,
    right_KN: torch.Tensor,
    out_MN: torch.Tensor,
    *,
    by_onednn: bool,
    is_added: bool = False,
) -> torch.Tensor:
    """Return the product: in ``out_MN``, or by oneDNN in newly allocated memory.

    oneDNN takes a thousand times as long where the right matrix has gaps between its rows or columns, so
    torch multiplies such matrices.

    Args:
        is_added: add it to what is in ``out_MN``, and return that.
    """
    num_inputs, num_outputs = right_KN.shape
    if by_onednn and right_KN.stride() in ((num_outputs, 1), (1, num_inputs)):
        assert _LINEAR is not None
        product_MN: torch.Tensor = _LINEAR(left_MK, right_KN.t(), None, "none", [], "")
        return out_MN.add_(product_MN) if is_added else product_MN
    if is_added:
        return torch.addmm(out_MN, left_MK, right_KN, out=out_MN)
    return torch.mm(left_MK, right_KN, out=out_MN)


@dataclass(frozen=True, slots=True)
class StepWeights:
    """The parameters of a model as the tiles of a step read them."""

    values: ParameterViews
    """Parameters by name, float32."""
    rounded: ParameterViews | None
    """The same in bfloat16, whose matrices are multiplied; None: products are in float32."""
    library: Library
    """Multiplies wide layers."""
    most_samples: int
    """Samples of the largest tile."""

    @property
    def dtype(self) -> torch.dtype:
        """Type of the products."""
        return torch.float32 if self.rounded is None else torch.bfloat16


class Matrix:
    """A weight and the products with it, in the number type of the step.

    Args:
        name: of the weight.
        weights: those of the model.
        num_inputs: that are used; None: as many as are stored.
    """

    def __init__(self, name: str, weights: StepWeights, num_inputs: int | None = None) -> None:
        stored = weights.values if weights.rounded is None else weights.rounded
        self._name = name
        self._weight_KN = stored[name][:num_inputs]
        # A transposed view for the backward pass: it is multiplied without a copy.
        self._weight_NK = self._weight_KN.t()
        self._by_onednn = weights.library == "oneDNN" and is_wide(*self._weight_KN.shape)
        # Products in bfloat16 are kept apart, because the gradients themselves are float32.
        self._product_KN = None if weights.rounded is None else torch.empty_like(self._weight_KN)

    def multiply(self, inputs_TK: torch.Tensor, out_TN: torch.Tensor) -> torch.Tensor:
        """Return the product, see `multiply`."""
        return multiply(inputs_TK, self._weight_KN, out_TN, by_onednn=self._by_onednn)

    def write_gradient(
        self, inputs_TK: torch.Tensor, grad_TN: torch.Tensor, gradients: ParameterViews
    ) -> None:
        """Write the gradient of the weight."""
        target_KN = gradients[self._name]
        if target_KN.shape[0] != inputs_TK.shape[1]:
            target_KN = target_KN[: inputs_TK.shape[1]]
        out_KN = target_KN if self._product_KN is None else self._product_KN
        found_KN = multiply(inputs_TK.t(), grad_TN, out_KN, by_onednn=self._by_onednn)
        if found_KN is not target_KN:
            target_KN.copy_(found_KN)

    def input_gradient(
        self, grad_TN: torch.Tensor, out_TK: torch.Tensor, *, is_added: bool = False
    ) -> torch.Tensor:
        """Return the gradient by the inputs, see `multiply`."""
        return multiply(grad_TN, self._weight_NK, out_TK, by_onednn=self._by_onednn, is_added=is_added)
