"""DIN: a history as the sum of its elements, each weighed by the candidate.

    hotset train DIR --model din:DIN --model-args '{"candidate": "item", "history": "seen"}' --out RUN

In the schema both look up in one table: `seen = { kind = "integer", list = true, table = "item" }`. With the
embedding v of the candidate and e_1 … e_T of the history, the user is

    u = Σ_t a_t e_t         a_t = MLP([e_t, v, e_t - v, e_t * v])
    logit = MLP([x, u])     x: the dense features and all other embeddings, v among them

The weights a_t have no softmax, so that u says how much of the history is about the candidate. The paper
also tries Dice in place of PReLU, which needs whole batches. Source: Zhou et al., KDD 2018, section 4.3.

Shapes: B samples, T elements of the longest history, D numbers of a row.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn

import hotset


class DIN(nn.Module):
    """One logit of each sample; the log has one label."""

    per_sample = True

    def __init__(
        self,
        inputs: hotset.ModelInputs,
        candidate: str = "item",
        history: str = "seen",
        longest: int = 50,
        attention: Sequence[int] = (80, 40),
        hidden: Sequence[int] = (200, 80),
    ) -> None:
        super().__init__()
        self.histories = {history: longest}
        self.candidate, self.history = candidate, history
        widths = {table.name: table.embedding_dim for table in inputs.tables}
        if candidate not in widths or widths.get(history) != widths[candidate]:
            raise ValueError(f"want {candidate!r} and {history!r} with rows of one width, found {widths}")
        self.attention = mlp(4 * widths[candidate], attention)
        self.last = mlp(inputs.num_dense + inputs.total_dim, hidden)

    def forward(
        self, dense: torch.Tensor, embeddings: dict[str, torch.Tensor], lengths: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        elements_BTD = embeddings[self.history]
        longest = elements_BTD.shape[1]
        candidate_BTD = embeddings[self.candidate].unsqueeze(1).expand(-1, longest, -1)
        both = [elements_BTD, candidate_BTD, elements_BTD - candidate_BTD, elements_BTD * candidate_BTD]
        weight_BT1 = self.attention(torch.cat(both, dim=2))
        # A shorter history is at the end, after rows of zeros, which add nothing.
        user_BD = (weight_BT1 * elements_BTD).sum(1)
        others = [rows_BD for name, rows_BD in embeddings.items() if name != self.history]
        return self.last(torch.cat([dense, *others, user_BD], dim=1)).squeeze(1)


def mlp(width: int, hidden: Sequence[int]) -> nn.Sequential:
    """Return an MLP with one output."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise([width, *hidden]):
        layers += [nn.Linear(fan_in, fan_out), nn.PReLU()]
    return nn.Sequential(*layers, nn.Linear([width, *hidden][-1], 1))
