"""A plain torch program that trains the layers of an example.

It has embedding tables, loss, optimizers and loop of torch, and the batches and the initial values of
hotset's run.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, embedding_bag

from ....pipeline.folders.totals import for_features
from ....train.build import build_trainer
from ....train.config import TrainConfig
from ....train.data.batch import Batch
from ....train.data.batch_order import SeededOrder
from ....train.data.shards import EvaluationPart, Shards

Logits = NDArray[np.float64]


class PlainModel(nn.Module):
    """The layers of an example on embedding tables of torch.

    Args:
        layers: the module of the example.
        weights: initial rows of each table, by its name.
    """

    def __init__(self, shards: Shards, layers: nn.Module, weights: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self.layers = layers
        self.tables = nn.ModuleList()
        for table in shards.tables:
            own = nn.Embedding(table.num_rows, table.embedding_dim)
            own.load_state_dict({"weight": weights[table.name]})
            self.tables.append(own)
        self._shards = shards
        self._numbers = for_features(shards.tables, range(len(shards.tables)))
        self._histories: dict[str, int] = getattr(layers, "histories", {})

    def forward(self, batch: Batch) -> torch.Tensor:
        """Return (B, L) logits."""
        rows, lengths = {}, {}
        features = zip(self._numbers, batch.features(self._shards.tables), strict=True)
        for number, (name, ids, offsets) in features:
            table: Any = self.tables[number]
            ids_N = torch.from_numpy(np.ascontiguousarray(ids)).long()
            if offsets is None:
                rows[name] = table(ids_N)
                continue
            offsets_B1 = torch.from_numpy(offsets).long()
            if name not in self._histories:
                rows[name] = embedding_bag(ids_N, table.weight, offsets_B1[:-1], mode="sum")
                continue
            # A list ends with the last place, and what is before it is zero.
            place_BT = offsets_B1[1:, None] - self._histories[name] + torch.arange(self._histories[name])
            is_there_BT1 = (place_BT >= offsets_B1[:-1, None]).unsqueeze(2)
            rows[name] = table(ids_N[place_BT.clamp(min=0)]) * is_there_BT1
            lengths[name] = offsets_B1.diff()
        logits: torch.Tensor = self.layers(batch.dense_BK, rows, *([lengths] if lengths else []))
        return logits.reshape(batch.num_samples, -1)


def train_plain(shards: Shards, config: TrainConfig, labels: Sequence[str] = ()) -> Logits:
    """Train in plain torch from the initial values of hotset's run; return logits of the test part, (N, L).

    Args:
        config: seed, epochs, optimizers and constant rates.
        labels: those to train on; empty for the only one of shards without names.
    """
    begun = build_trainer(shards, replace(config, placement="all-fast"))
    weights = {table.name: begun.weights()[table.name] for table in shards.tables}
    layers: Any = copy.deepcopy(begun.model).cpu()
    model = PlainModel(shards, layers.module, weights)
    chosen = config.optimizers(shards.embedding_optimizer)
    kinds: dict[str, Any] = {"adagrad": torch.optim.Adagrad, "adam": torch.optim.Adam}
    optimizers = [
        kinds[chosen.embedding_optimizer](model.tables.parameters(), lr=chosen.embedding_lr),
        kinds[chosen.dense_optimizer](model.layers.parameters(), lr=chosen.dense_lr),
    ]
    model.train()
    for batch in _batches(shards, config):
        logit_BL = model(batch)
        label_BL = torch.from_numpy(shards.labels_of(batch, labels))
        is_there_BL = ~label_BL.isnan()
        losses = binary_cross_entropy_with_logits(logit_BL, label_BL.nan_to_num(), reduction="none")
        for optimizer in optimizers:
            optimizer.zero_grad()
        ((losses * is_there_BL).sum() / shards.batch_size).backward()  # type: ignore[no-untyped-call]
        for optimizer in optimizers:
            optimizer.step()
    model.eval()
    part = EvaluationPart(shards, "test")
    with torch.no_grad():
        found = [model(part.batch(number)).double().numpy() for number in part.numbers]
    return np.concatenate(found)


def _batches(shards: Shards, config: TrainConfig) -> Iterator[Batch]:
    order = SeededOrder(shards.is_hot_only, config.seed, config.epochs, is_grouped=shards.is_grouped)
    for numbers in order.epochs():
        for number in numbers:
            yield shards.training_batch(number)
