"""Whole runs on several ranks, each a thread of this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hotset.tests.support.thread_ranks import run_thread_ranks
from hotset.train import run
from hotset.train.config import TrainConfig
from hotset.train.ranks.ranks import Ranks
from hotset.train.run_log import TrainSummary


def train_on_ranks(
    num_ranks: int,
    monkeypatch: pytest.MonkeyPatch,
    shards: Path,
    config: TrainConfig,
    out: Path,
    of_others: Mapping[str, Any] | None = None,
    **options: Any,
) -> TrainSummary:
    """Call `train` at each rank; returns what it returns at rank 0.

    Args:
        of_others: options that other ranks have instead.
    """
    own = threading.local()

    @contextmanager
    def joined_ranks(timeout_seconds: float) -> Iterator[Ranks]:
        yield own.ranks

    def work(ranks: Ranks) -> TrainSummary:
        own.ranks = ranks
        own_options = options | dict(of_others or {}) if ranks.rank else options
        return run.train(shards, config, out, run.RunOptions(**own_options))

    monkeypatch.setattr(run, "joined_ranks", joined_ranks)
    return run_thread_ranks(num_ranks, work)[0]
