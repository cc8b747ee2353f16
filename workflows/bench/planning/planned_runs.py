"""Runs of plans: the log packed with the hot rows of a plan, its steps timed, TorchRec's estimate of them."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from ....pipeline.sizes import ByteSize
from ....pipeline.stages.preprocess import PreprocessConfig, preprocess, remove_from
from ....stats.step_model.step_work import WorkConstants
from ....stats.step_model.torchrec_times import GIB_PER_MS, TorchrecConstants, table_wise
from ....train.config import EmbeddingOptimizer, PlacementName, TrainConfig
from ....train.data.shards import Shards
from ....train.planning.plan_record import PlannedOption
from ....train.ranks.ranks import Ranks
from ....train.ranks.throttled_ranks import ThrottledRanks
from ....train.trainer_building.build_trainer import build_trainer
from ....train.trainer_building.devices import set_threads
from ...recipes import recipe_for

WARM_UP_STEPS = 3
_FAST, _LINK = 897 * GIB_PER_MS, 32 * GIB_PER_MS
"""Bandwidths of TorchRec's planner: fast memory, and the link between it and the host."""
_CACHED_SHARE = 0.2
_UVM_LOSS = 10
"""Its share of lookups that a cache serves, and how many times slower rows are than large copies."""


@dataclass(frozen=True, slots=True)
class PlannedLog:
    """A log that is packed for one plan after another."""

    log: Path
    folder: Path
    batch_size: int
    optimizer: EmbeddingOptimizer

    def preprocessed(self) -> Path:
        """Preprocess as far as plans need; return the folder."""
        data = self.folder / "data"
        preprocess([self.log], self._recipe(1 << 20), data, until="split")
        return data

    def packed(self, hot_bytes: int) -> Path:
        """Pack the log with so many bytes of hot rows, once; return the shards."""
        shards = self.folder / f"shards-{hot_bytes}"
        if not shards.exists():
            data = self.folder / "data"
            remove_from("split", data)
            preprocess([self.log], self._recipe(hot_bytes), data)
            (data / "shards").rename(shards)
        return shards

    def _recipe(self, hot_bytes: int) -> PreprocessConfig:
        recipe = recipe_for("criteo-kaggle")
        hot = ByteSize(max(hot_bytes, 1))
        split = replace(recipe.split, hot_bytes=hot, embedding_optimizer=self.optimizer)
        return replace(recipe, split=split, pack=replace(recipe.pack, batch_size=self.batch_size))


def time_training(
    ranks: Ranks,
    shards: str,
    placement: str,
    staging_bytes: int,
    prefetch: int | None,
    threads: int,
    steps: int,
    seed: int,
    link_bytes_per_second: float | None = None,
) -> float:
    """Train the first steps of a run as one of its ranks; return the mean seconds behind the warm-up.

    Args:
        prefetch: batches that transfers run ahead; None: as many as by default.
        link_bytes_per_second: speed at which ranks are kept by waiting, each way; None: they are not.
    """
    if link_bytes_per_second is not None:
        ranks = ThrottledRanks(ranks, link_bytes_per_second)
    set_threads(threads)
    opened = Shards.open(Path(shards))
    wanted = WARM_UP_STEPS + steps
    config = TrainConfig(
        placement=cast(PlacementName, placement),
        staging_bytes=ByteSize(staging_bytes) if staging_bytes else None,
        prefetch=prefetch,
        threads=threads,
        seed=seed,
        epochs=-(-wanted // opened.num_training_batches),
    )
    trainer = build_trainer(opened, config, ranks=ranks)
    start = 0.0
    with closing(trainer.embeddings), closing(trainer.steps()) as prepared:
        for number, step in enumerate(prepared):
            if number == WARM_UP_STEPS:
                start = time.perf_counter()
            trainer.runner.train(step, trainer.step, trainer.rates.of_step(trainer.step))
            trainer.step += 1
            if trainer.step == wanted:
                break
        seconds = (time.perf_counter() - start) / steps
        trainer.meter.enter(None)
        # Nothing is read ahead any more, and transfers of steps that nobody takes are dropped.
        prepared.close()
        trainer.embeddings.stop()
    return seconds


def torchrec_seconds(
    one: PlannedOption, shards: Shards, constants: WorkConstants, link_bytes_per_second: float | None = None
) -> dict[str, float | None]:
    """Return what TorchRec's planner estimates for the kernel nearest to a placement, None without one.

    Its formula knows one table at a time; tables are spread over the ranks, and each serves all of them.

    Args:
        one: the plan.
        shards: what it trains on.
        constants: of this machine, in place of the planner's own.
        link_bytes_per_second: between ranks; None: as the constants have it.
    """
    # Here both tiers are host memory: rows come at the speed of large working sets, copies at theirs.
    per_byte = max(constants.rows.seconds_per_byte[-1], 1e-15)
    own = _kernel_bandwidth(one["placement"], 1 / per_byte / 1000, constants.copy_bytes_per_second / 1000)
    theirs = _kernel_bandwidth(one["placement"], _FAST, _LINK)
    measured = link_bytes_per_second or constants.message_bytes_per_second
    links = (TorchrecConstants().link_bandwidth, measured / 1000)
    names = ("TorchRec, its constants", "TorchRec, measured constants")
    found: dict[str, float | None] = {}
    for name, bandwidth, link in zip(names, (theirs, own), links, strict=True):
        found[name] = None
        if bandwidth is not None:
            ranks = one["ranks"]
            batch = shards.batch_size // ranks
            table = TorchrecConstants(table_bandwidth=bandwidth, link_bandwidth=link)
            times = [table_wise(batch, ranks, 1, each.embedding_dim, table).total for each in shards.tables]
            found[name] = sum(times) / ranks / 1000
    return found


def _kernel_bandwidth(placement: str, fast: float, link: float) -> float | None:
    """Return the bytes per millisecond with which TorchRec's planner counts for a placement."""
    return {
        "all-fast": fast,
        "hybrid": link / _UVM_LOSS,
        "cache": (_CACHED_SHARE * fast + (1 - _CACHED_SHARE) * link) / _UVM_LOSS,
        # A cache whose rows are there before the step, as its prefetch pipeline has it.
        "lookahead": fast,
    }.get(placement)
