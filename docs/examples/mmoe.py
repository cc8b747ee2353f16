"""MMoE: several labels share experts, which a gate of each label mixes.

    hotset train DIR --model mmoe:MMoE --model-args '{"num_experts": 8}' --out RUN

With the inputs x of a sample and the experts f_1 … f_E, label l has the logit

    logit_l = tower_l(Σ_e g_e f_e(x))        g = softmax(W_l x)

`--loss-weights` weighs the labels. Source: Ma et al., KDD 2018.

Shapes: B samples, E experts, W the width of an expert.
"""

import torch
from torch import nn

import hotset


class MMoE(nn.Module):
    """One logit of each sample and label."""

    per_sample = True

    def __init__(
        self,
        inputs: hotset.ModelInputs,
        num_experts: int = 4,
        expert_width: int = 32,
        tower_width: int = 16,
    ) -> None:
        super().__init__()
        width = inputs.num_dense + inputs.total_dim
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, expert_width), nn.ReLU()) for _ in range(num_experts)
        )
        self.gates = nn.ModuleList()
        self.towers = nn.ModuleList()
        for _ in range(inputs.num_logits):
            self.gates.append(nn.Linear(width, num_experts, bias=False))
            self.towers.append(
                nn.Sequential(nn.Linear(expert_width, tower_width), nn.ReLU(), nn.Linear(tower_width, 1))
            )

    def forward(self, dense: torch.Tensor, embeddings: dict[str, torch.Tensor]) -> torch.Tensor:
        inputs = torch.cat([dense, *embeddings.values()], dim=1)
        experts_BEW = torch.stack([expert(inputs) for expert in self.experts], dim=1)
        logits = []
        for gate, tower in zip(self.gates, self.towers, strict=True):
            mix_BE1 = torch.softmax(gate(inputs), dim=1).unsqueeze(2)
            logits.append(tower((mix_BE1 * experts_BEW).sum(1)).squeeze(1))
        return torch.stack(logits, dim=1) if len(logits) > 1 else logits[0]
