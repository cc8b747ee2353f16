"""Training of several features that look up in one table, against tables of torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from hotset.pipeline.errors import ByteSize
from hotset.pipeline.folders.totals import by_feature
from hotset.tests.support.naive.naive_lookups import SPEC, naive_embeddings
from hotset.tests.support.shard_factory import write_shards
from hotset.tests.support.trained_models import EACH_WAY, assert_equal_bits, assert_placements_agree, trained
from hotset.train.build import build_trainer
from hotset.train.config import TrainConfig
from hotset.train.data.shards import Shards
from hotset.train.loop import run_steps
from hotset.train.placements.placements import count_row_lookups


def test_training_is_that_of_tables_of_torch_that_features_share(tmp_path: Path) -> None:
    shards = Shards.open(write_shards(tmp_path / "shards", SPEC))
    fields: dict[str, Any] = {"embedding_optimizer": "adagrad", "dense_optimizer": "sgd", "threads": 1}
    fields |= {"embedding_lr": 0.1, "dense_lr": 0.05, "placement": "all-fast"}
    torch.set_num_threads(1)
    trainer = build_trainer(shards, TrainConfig(**fields))
    begun = {name: trainer.weights()[name].clone() for name in trainer.weights()}
    tables = {each.name: begun[each.name].requires_grad_() for each in shards.tables}
    twin = build_trainer(shards, TrainConfig(**fields)).model
    run_steps(trainer, lambda *_: None)
    rows = torch.optim.Adagrad(tables.values(), lr=0.1, eps=1e-10)
    layers = torch.optim.SGD(twin.parameters(), lr=0.05)
    for number in trainer.batch_numbers:
        batch = shards.training_batch(number)
        logit_B = twin.logits(batch.dense_BK, naive_embeddings(tables, batch, shards))
        loss = binary_cross_entropy_with_logits(logit_B, batch.label_B, reduction="sum") / shards.batch_size
        for optimizer in (rows, layers):
            optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        for optimizer in (rows, layers):
            optimizer.step()
    for name, tensor in tables.items():
        assert not torch.equal(
            trainer.weights()[name], build_trainer(shards, TrainConfig(**fields)).weights()[name]
        )
        torch.testing.assert_close(trainer.weights()[name], tensor.detach(), rtol=1e-4, atol=1e-5)


def test_lookups_of_rows_are_counted_over_all_features_of_a_table(tmp_path: Path) -> None:
    shards = Shards.open(write_shards(tmp_path / "shards", SPEC))
    wanted = {table.name: np.zeros(table.num_rows, np.int64) for table in shards.tables}
    for number in range(shards.num_training_batches):
        for name, ids_N, _ in shards.training_batch(number).features(shards.tables):
            table = next(each for each in shards.tables if name in {one.name for one in by_feature([each])})
            np.add.at(wanted[table.name], ids_N, 1)
    for tables in ((0, 1), (2,)):
        counts = np.concatenate([wanted[shards.tables[table].name] for table in tables])
        np.testing.assert_array_equal(count_row_lookups(shards, tables), counts)


@pytest.mark.parametrize("optimizer", ["adam", pytest.param("rowwise-adagrad", marks=pytest.mark.slow)])
def test_placements_threads_and_devices_end_with_equal_bits(tmp_path: Path, optimizer: str) -> None:
    shards = Shards.open(write_shards(tmp_path / "shards", SPEC))
    fields: dict[str, Any] = {"embedding_optimizer": optimizer, "epochs": 2, "prefetch": 1}
    fields |= {"staging_bytes": ByteSize(4_000)}
    all_fast = assert_placements_agree(shards, **fields)
    others = ({"placement": "all-fast"}, {"placement": "fae"}, *EACH_WAY)
    late = [each | {"device": f"late:{number}"} for number, each in enumerate(others)]
    for changes in (*late, {"placement": "lookahead", "threads": 3}):
        assert_equal_bits(trained(shards, all_fast.batch_numbers, **changes, **fields), all_fast)
