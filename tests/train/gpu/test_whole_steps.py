"""Training with Triton's kernels alone, in its interpreter, queued by the late device as a GPU queues it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.tests.support.trained_models import assert_equal_bits, trained
from hotset.train.data.shards import Shards
from hotset.train.gpu import row_moves
from hotset.train.run_log import summarize_transfers

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="Triton's interpreter is off where there is a GPU"),
]
SPEC = ShardSpec(num_hot_only=20, num_mixed=50, batch_size=16, embedding_optimizer="adagrad")
SETTINGS: dict[str, Any] = {"dense_optimizer": "adagrad", "bottom_mlp": (7,), "top_mlp": (9, 5)}


def test_rows_and_layers_train_as_with_torch(tmp_path: Path) -> None:
    shards = Shards.open(write_shards(tmp_path / "shards", SPEC))
    wanted, found = (
        trained(shards, device="late:3", placement="all-fast", kernels=kernels, **SETTINGS)
        for kernels in ("torch", "triton")
    )
    for name, tensor in wanted.model.state_dict().items():
        torch.testing.assert_close(found.model.state_dict()[name], tensor, rtol=1e-4, atol=1e-5)
    for table in range(len(shards.tables)):
        rows = found.embeddings.table(table)
        torch.testing.assert_close(rows, wanted.embeddings.table(table), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "changes",
    [
        {"placement": "lookahead"},
        {"placement": "lookahead", "mover": "threads"},
        {"placement": "cache"},
        {"placement": "cache", "mover": "threads"},
        {"placement": "hybrid"},
        {"placement": "hybrid-dedup"},
    ],
    ids=str,
)
def test_placements_give_equal_bits(
    changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Rows that threads move come as several pieces.
    monkeypatch.setattr(row_moves, "PIECE_BYTES", 640)
    shards = Shards.open(write_shards(tmp_path / "shards", SPEC))
    fields = {"kernels": "triton", "staging_bytes": 1_600, **SETTINGS}
    wanted = trained(shards, device="late:3", placement="all-fast", **fields)
    found = trained(shards, device="late:5", **changes, **fields)
    moves_rows = not changes["placement"].startswith("hybrid")
    assert summarize_transfers(found).mover == (changes.get("mover", "kernel") if moves_rows else None)
    assert_equal_bits(found, wanted)
