"""Small training runs, the placements they are repeated under, and the comparison of their bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hotset.tests.support.shard_factory import ShardSpec
from hotset.train.build import build_trainer
from hotset.train.config import TrainConfig
from hotset.train.data.batch import Batch, RecordedOrder
from hotset.train.data.shards import ShardSet
from hotset.train.loop import Trainer, run_steps
from hotset.train.model.shapes import ModelInputs

STATELESS: tuple[dict[str, Any], ...] = ({"placement": "hybrid"}, {"placement": "hybrid-dedup"})


STAGING: tuple[dict[str, Any], ...] = (
    {"placement": "lookahead"},
    *({"placement": "cache", "cache_policy": policy} for policy in ("lru", "lfu", "dataset")),
    {"placement": "cache", "cache_batches": 3},
    {"placement": "hybrid-uva"},
)


EACH_WAY = (*STATELESS, *STAGING[:2], STAGING[-1])
"""One placement of each way to keep and to move rows: the policies of a cache choose rows, and touch none."""


TIGHT = ShardSpec(
    num_rows=(300, 400), num_hot=(3, 5), num_hot_only=40, num_mixed=400, skew=1.2, batch_size=20
)


FIELDS: dict[str, Any] = {
    "embedding_optimizer": "adagrad",
    "epochs": 2,
    "staging_bytes": 2_000,
    "prefetch": 3,
}


def no_log(trainer: Trainer, batch: Batch, loss_sum: torch.Tensor) -> None:
    """Log nothing."""


def trained(
    shards: ShardSet, order: list[int] | None = None, after_step: Callable[..., None] = no_log, **fields: Any
) -> Trainer:
    """A model trained on ``shards`` with the settings ``fields``, in ``order`` where one is given."""
    torch.set_num_threads(1)
    epochs = fields.get("epochs", 1)
    recorded = None if order is None else RecordedOrder(np.array(order, np.int32), epochs)
    trainer = build_trainer(shards, TrainConfig(**fields), recorded)
    run_steps(trainer, after_step)
    return trainer


def assert_equal_bits(first: Trainer, second: Trainer) -> None:
    """Compare all weights, and the optimizer state of all rows."""
    weights, others = first.weights(), second.weights()
    assert weights.keys() == others.keys()
    for name in weights:
        assert torch.equal(weights[name], others[name]), name
    for table in range(len(first.shards.tables)):
        assert torch.equal(
            first.embeddings.table(table, state=True), second.embeddings.table(table, state=True)
        )


def assert_placements_agree(
    shards: ShardSet, placements: Sequence[dict[str, Any]] = EACH_WAY, **fields: Any
) -> Trainer:
    """Train under all-fast, and to its bits under ``placements`` and fae, which takes its order."""
    all_fast = trained(shards, **fields | {"placement": "all-fast"})
    for changes in placements:
        assert_equal_bits(trained(shards, **fields | changes), all_fast)
    assert_equal_bits(trained(shards, all_fast.batch_numbers, **fields | {"placement": "fae"}), all_fast)
    return all_fast


def joined(batches: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the samples of several batches as one dictionary, by torch alone."""
    whole = {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}
    for name in whole:
        if name.endswith("_offsets"):
            lengths = torch.cat([batch[name].diff() for batch in batches])
            whole[name] = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    return whole


def weighted_sum(vectors: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return a loss whose gradient differs from feature to feature."""
    total = torch.zeros(())
    for number, (_, each) in enumerate(sorted(vectors.items()), 1):
        total = total + (number * each.square() + each).sum()
    return total


class LinearNet(nn.Module):
    """A linear layer of everything; its samples are not said to be independent."""

    def __init__(self, inputs: ModelInputs, scale: float = 1.0) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs.num_dense + inputs.total_dim, 1)
        self.scale = scale

    def forward(self, dense: torch.Tensor, embeddings: dict[str, torch.Tensor]) -> torch.Tensor:
        logits: torch.Tensor = self.layer(torch.cat([dense, *embeddings.values()], dim=1))
        return self.scale * logits.squeeze(1)


LABEL_COLUMNS = ("label", "label_buy", "label_share")


def labeled_batch(labels_BL: NDArray[np.float32], weights_B: NDArray[np.float32] | None = None) -> Batch:
    """A batch without features, whose further labels are columns of samples."""
    others = {name: labels_BL[:, number] for number, name in enumerate(LABEL_COLUMNS[: labels_BL.shape[1]])}
    of_samples: dict[str, Any] = {name: np.ascontiguousarray(found) for name, found in others.items()}
    label_B = torch.from_numpy(of_samples.pop("label"))
    if weights_B is not None:
        of_samples["weight"] = weights_B
    nothing = torch.zeros(len(labels_BL), 0)
    return Batch(
        label_B, nothing, np.zeros((len(labels_BL), 0), np.int32), None, False, of_samples=of_samples
    )
