"""ESMM: conversions learned from all impressions, not from those with a click alone.

    hotset train DIR --model esmm:ESMM --model-args '{"hidden": [64, 32]}' --out RUN

The schema has `labels = ["click", "conversion"]`, and a conversion is 0 where there is no click. Two towers
on the same embeddings give the logits a of p(click) and b of p(conversion | click). The product is learned:

    p(click) = s(a)        p(click and conversion) = s(a) s(b) = s(z)        s is the sigmoid

Of a product p, (1 - p) / p = e^-a + e^-b + e^(-a-b). So z = -logsumexp(-a, -b, -a-b), stable at any size of
a and b, and the log loss of the logits a and z is the loss of the paper. `predict` gives both probabilities;
their quotient is p(conversion | click). Source: Ma et al., SIGIR 2018.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn

import hotset


class ESMM(nn.Module):
    """The logits of a click, and of a click and a conversion."""

    per_sample = True

    def __init__(self, inputs: hotset.ModelInputs, hidden: Sequence[int] = (64, 32)) -> None:
        super().__init__()
        if len(inputs.labels) != 2:
            raise ValueError(f"the labels are {inputs.labels}, want two: click, conversion")
        self.click = tower(inputs.num_dense + inputs.total_dim, hidden)
        self.conversion = tower(inputs.num_dense + inputs.total_dim, hidden)

    def forward(self, dense: torch.Tensor, embeddings: dict[str, torch.Tensor]) -> torch.Tensor:
        inputs = torch.cat([dense, *embeddings.values()], dim=1)
        a, b = self.click(inputs), self.conversion(inputs)
        z = -torch.logsumexp(torch.cat([-a, -b, -a - b], dim=1), dim=1, keepdim=True)
        return torch.cat([a, z], dim=1)


def tower(width: int, hidden: Sequence[int]) -> nn.Sequential:
    """Return an MLP with one output."""
    widths = [width, *hidden]
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], 1))
