"""The ways to train that ``hotset bench train`` compares, each timed behind a warm-up."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch

from ....train.config import TrainConfig
from ....train.data.batch_order import RecordedOrder
from ....train.data.shards import Shards
from ....train.trainer import Trainer, run_steps
from ....train.trainer_building.build_trainer import build_trainer
from ....train.trainer_building.devices import set_threads
from .dlrm_reference import ReferenceBatch, ReferenceTraining

WARM_UP_STEPS = 3
"""Steps of each turn before the clock starts."""


@dataclass(frozen=True, slots=True)
class Seconds:
    """The time of one contestant in one round."""

    wall_seconds: float
    cpu_seconds: float
    """CPU seconds of all threads."""


class Contestant(Protocol):
    """One way to train."""

    def run(self, threads: int) -> Seconds:
        """Train on the batches of a round with so many threads."""


class TorchContestant:
    """A reference on batches that lie in memory."""

    def __init__(self, training: ReferenceTraining, batches: list[ReferenceBatch]) -> None:
        self._training = training
        self._batches = batches

    def run(self, threads: int) -> Seconds:
        torch.set_num_threads(threads)
        for batch in self._batches[:WARM_UP_STEPS]:
            self._training.step(batch)
        start = _now()
        for batch in self._batches[WARM_UP_STEPS:]:
            self._training.step(batch)
        return _since(start)


class HotsetContestant:
    """A training run of hotset that reads, plans and trains; a new one in each round."""

    def __init__(self, shards: Shards, order: list[int], config: TrainConfig) -> None:
        self._shards = shards
        self._order = RecordedOrder(np.array(order, np.int32))
        self._config = config

    def run(self, threads: int) -> Seconds:
        set_threads(threads)
        trainer = build_trainer(self._shards, replace(self._config, threads=threads), self._order)
        # The clock starts when the warm-up is over.
        start = _now()

        def after_step(running: Trainer, *_: Any) -> None:
            nonlocal start
            if running.step == WARM_UP_STEPS:
                start = _now()

        run_steps(trainer, after_step)
        return _since(start)


def _now() -> Seconds:
    return Seconds(time.perf_counter(), time.process_time())


def _since(start: Seconds) -> Seconds:
    now = _now()
    return Seconds(now.wall_seconds - start.wall_seconds, now.cpu_seconds - start.cpu_seconds)
