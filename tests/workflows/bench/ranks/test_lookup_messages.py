"""Rows that cross once for each lookup have as many bytes as lookups say, and change no number."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from hotset.stats.exchange.fixed_homes import striped_homes
from hotset.stats.exchange.volume import count_remote_lookups
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.train.config import TrainConfig
from hotset.train.data.shards import Shards
from hotset.train.exchange.rank_reader import RankReader
from hotset.train.ranks.ranks import Ranks
from hotset.train.ranks.thread_ranks import run_thread_ranks
from hotset.train.trainer_building.build_trainer import build_trainer
from hotset.workflows.bench.ranks.lookup_messages import as_others_send

SPEC = ShardSpec(
    num_rows=(60, 1, 90),
    num_hot=(3, 1, 5),
    num_hot_only=0,
    num_mixed=60,
    skew=1.2,
    batch_size=20,
    multi_hot=(2,),
)


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_others_send_more_and_end_with_the_same_bits(num_ranks: int, tmp_path: Path) -> None:
    shards = Shards.open(write_shards(tmp_path / "shards", SPEC))

    def work(ranks: Ranks, sends: str) -> Any:
        torch.set_num_threads(1)
        config = TrainConfig(threads=1, placement="all-fast", embedding_optimizer="adagrad")
        trainer = build_trainer(shards, config, ranks=ranks, homes="striped")
        losses = []
        with closing(trainer.embeddings), closing(trainer.steps()) as steps:
            for step in steps:
                if sends != "hotset":
                    step = as_others_send(trainer, step, per_lookup=sends == "lookups")
                rates = trainer.rates.of_step(trainer.step)
                losses.append(float(trainer.runner.train(step, trainer.step, rates)))
                trainer.step += 1
            trainer.embeddings.finish()
        tables = [trainer.embeddings.table(n).numpy().tobytes() for n in range(3)]
        return trainer.coded.counts.sent_bytes, losses, tables

    found = {
        sends: run_thread_ranks(num_ranks, partial(work, sends=sends), 20)
        for sends in ("hotset", "distinct", "lookups")
    }
    for each in found.values():
        assert each[0][1:] == found["hotset"][0][1:]
    # Four floats of every distinct row that a rank looks up elsewhere, or of every such lookup, each way.
    reader = RankReader(shards, (0, 1, 2), num_ranks)
    homes = striped_homes(reader.num_rows, num_ranks)
    rows = lookups = 0
    for number in range(shards.num_training_batches):
        batch = reader.read(number)
        lookups += count_remote_lookups(batch.lookups, batch.ranks_N, homes[batch.keys_U])
        for key, mask in zip(batch.keys_U.tolist(), batch.masks_U.tolist(), strict=True):
            rows += (mask & ~(1 << int(homes[key]))).bit_count()
    for kind in ("vectors", "gradients"):
        assert sum(each[0][kind] for each in found["distinct"]) == 16 * rows
        assert sum(each[0][kind] for each in found["lookups"]) == 16 * lookups
    assert sum(each[0]["vectors"] for each in found["hotset"]) < 16 * rows
