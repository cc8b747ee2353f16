"""Multiplies matrices by torch, or by oneDNN where measured to be faster.

Torch multiplies float32 with MKL, whose kernels for AVX-512 run on Intel's processors alone; on AMD's it
uses AVX2. oneDNN, which is a part of torch, uses AVX-512 on both. `_linear_pointwise` is the one operator
that reaches it in float32; it is private, so a torch without it multiplies with MKL. Its fused ReLU is not
used: it turns NaN into 0, and a diverging run must be noticed.

Rates of one thread in GF/s, `torch.mm` / oneDNN, torch 2.13, minima of CPU time measured in turns; of the
outputs, the gradient of the inputs and the gradient of the weights:

| samples, inputs, outputs | EPYC of family 26 (Zen 5) | EPYC of family 25 (Zen 4) |
| --- | --- | --- |
| 512, 368, 512 | 107 / 233, 107 / 238, 109 / 208 | 104 / 109, 104 / 111, 103 / 103 |
| 512, 512, 256 | 111 / 238, 108 / 238, 105 / 222 | 103 / 111, 104 / 110, 96 / 100* |
| 512, 256, 64 | 106 / 210, 107 / 212, 93 / 180 | 97 / 100, 99 / 100, 89 / 70* |
| 512, 512, 16 | 90 / 156, 97 / 169, 51 / 108 | 77 / 86, 81 / 81, 38 / 35* |
| 512, 32, 512 | 103 / 141, 97 / 184, 94 / 149 | not measured |
| 512, 64, 16 | 86 / 67, 86 / 74, 78 / 49 | 75 / 37, 75 / 42, 64 / 22* |
| 32, 512, 512 | not measured | 87 / 85, 89 / 87, 92 / 77 |

oneDNN copies its left matrix where that is transposed, as for the gradient of the weights, but not its right
one. So the narrower of both is on the left, and the product may be transposed: without that the 222 of the
second line are 187, and the 180 of the third 128. Those with a star were measured before.

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
_LEAST_WEIGHTS = 8192
"""Fewest weights of a layer that oneDNN multiplies."""


def choose_library(features: frozenset[str], dtype: str) -> Library:
    """Return the library that multiplies large layers on a CPU.

    A function of its arguments alone, so that resumed runs, ranks and placements agree.

    Args:
        features: `cpu_features` of this machine.
        dtype: ``fp32`` or ``bf16``.
    """
    is_faster = dtype == "fp32" and features >= _FASTER_WITH_ONEDNN
    return "oneDNN" if is_faster and _LINEAR is not None else "torch"


def is_large(num_inputs: int, num_outputs: int) -> bool:
    """Return whether a layer is large enough for oneDNN."""
    return num_inputs * num_outputs >= _LEAST_WEIGHTS


def multiply(
    left_MK: torch.Tensor,
    right_KN: torch.Tensor,
    out_MN: torch.Tensor,
    *,
    by_onednn: bool,
    is_added: bool = False,
) -> torch.Tensor:
    """Return the product: in ``out_MN``, or by oneDNN in new memory, perhaps transposed.

    oneDNN takes a thousand times as long where a matrix has gaps between its rows or columns, so torch
    multiplies such matrices.

    Args:
        is_added: add it to what is in ``out_MN``, and return that.
    """
    has_gaps = not (
        (left_MK.is_contiguous() or left_MK.t().is_contiguous())
        and (right_KN.is_contiguous() or right_KN.t().is_contiguous())
    )
    if by_onednn and not has_gaps:
        assert _LINEAR is not None
        # The left matrix is copied where it is transposed: the narrower one goes there.
        if left_MK.is_contiguous() or left_MK.shape[0] <= right_KN.shape[1]:
            product_MN: torch.Tensor = _LINEAR(left_MK, right_KN.t(), None, "none", [], "")
        else:
            product_MN = _LINEAR(right_KN.t(), left_MK, None, "none", [], "").t()
        return out_MN.add_(product_MN) if is_added else product_MN
    if is_added:
        return torch.addmm(out_MN, left_MK, right_KN, out=out_MN)
    return torch.mm(left_MK, right_KN, out=out_MN)


def keep_freed_memory() -> None:
    """Let products reuse memory, where the C library is glibc.

    oneDNN returns each product in new memory, and so does autograd. glibc gives freed memory back to the
    system above twice the largest block that was mapped alone and freed, and heeds blocks of up to 32 MiB.
    Without one of that size a step waits for thousands of page faults: 12 % of its CPU time at 2,048 samples
    and dim 16.
    """
    torch.empty(31 << 20, dtype=torch.uint8, device="cpu")


@dataclass(frozen=True, slots=True)
class StepWeights:
    """The parameters of a model as the tiles of a step read them."""

    values: ParameterViews
    """Parameters by name, float32."""
    rounded: ParameterViews | None
    """The same in bfloat16, whose matrices are multiplied; None: products are in float32."""
    library: Library
    """Multiplies large layers."""
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
        self.weight_KN = stored[name][:num_inputs]
        # A view for the backward pass: it is multiplied without a copy.
        self._weight_NK = self.weight_KN.t()
        self._by_onednn = weights.library == "oneDNN" and is_large(*self.weight_KN.shape)
        # Products in bfloat16 are kept apart, because the gradients themselves are float32.
        self._product_KN = None if weights.rounded is None else torch.empty_like(self.weight_KN)

    def outputs(self, inputs_TK: torch.Tensor, out_TN: torch.Tensor) -> torch.Tensor:
        """Return the product of inputs; see `multiply`."""
        return multiply(inputs_TK, self.weight_KN, out_TN, by_onednn=self._by_onednn)

    def input_gradient(
        self, grad_TN: torch.Tensor, out_TK: torch.Tensor, *, is_added: bool = False
    ) -> torch.Tensor:
        """Return the gradient by the inputs; see `multiply`."""
        return multiply(grad_TN, self._weight_NK, out_TK, by_onednn=self._by_onednn, is_added=is_added)

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
