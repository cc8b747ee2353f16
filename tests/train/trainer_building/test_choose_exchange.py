"""``--exchange auto`` chooses by the link, is recorded, and is kept by a run that is resumed."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from hotset.pipeline.errors import HotsetError
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.train import run
from hotset.train.checkpoints.checkpoint_settings import CheckpointSettings
from hotset.train.config import TrainConfig
from hotset.train.options.interval import parse_interval
from hotset.train.options.rank_options import RankOptions
from hotset.train.ranks.link_speed import LinkSpeed
from hotset.train.ranks.ranks import OneRank, RankError, Ranks
from hotset.train.ranks.thread_ranks import run_thread_ranks
from hotset.train.run_results.run_summary import TrainSummary
from hotset.train.trainer_building import choose_exchange as module
from hotset.train.trainer_building.build_trainer import build_trainer

SLOW_LINK, FAST_LINK = LinkSpeed(1e-3, 1e3), LinkSpeed(1e-3, 1e15)
SPEC = ShardSpec(num_rows=(60, 1, 900), num_hot=(3, 1, 5), num_mixed=220, batch_size=20)
CONFIG = TrainConfig(threads=1, placement="all-fast", embedding_optimizer="adagrad")


class _KilledError(Exception):
    """The process is gone."""


@pytest.fixture
def train_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., TrainSummary]:
    """Train on so many ranks, each a thread, to a folder of ``tmp_path``; killed after some samples."""
    write_shards(tmp_path / "shards", SPEC)
    of_thread = threading.local()

    @contextmanager
    def joined(_: float) -> Iterator[Ranks]:
        yield of_thread.ranks

    monkeypatch.setattr(run, "joined_ranks", joined)
    saved = CheckpointSettings(checkpoint_every=parse_interval("2"))

    def train(
        out: str,
        num_ranks: int,
        killed_after: int | None = None,
        of_last: dict[str, Any] | None = None,
        **options: Any,
    ) -> TrainSummary:
        def progress(kind: str, done: int, *_: object) -> None:
            if kind == "train" and killed_after is not None and done >= killed_after:
                raise _KilledError

        def work(ranks: Ranks) -> TrainSummary:
            of_thread.ranks = ranks
            return run.train(
                tmp_path / "shards",
                CONFIG,
                tmp_path / out,
                checkpoints=saved,
                rank_options=RankOptions(**options | ((of_last or {}) if ranks.rank else {})),
                progress=progress,
            )

        return work(OneRank()) if num_ranks == 1 else run_thread_ranks(num_ranks, work, 20)[0]

    return train


def test_a_slow_link_gets_small_codecs_and_a_fast_one_none(
    train_on: Callable[..., TrainSummary], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "measure_link", lambda ranks: SLOW_LINK)
    slow = train_on("slow", 2, exchange="auto").exchange
    assert slow is not None and slow.prediction is not None and not slow.has_equal_bits
    assert slow.codecs == {"vectors": "int8", "gradients": "int8", "dense": "bf16"}
    # Prediction and outcome, both of a step.
    assert slow.prediction.seconds_per_step > 4e-3 and slow.seconds_per_step > 0
    assert [sum(each.values()) > 0 for each in slow.bytes_by_rank] == [True, True]
    recorded = json.loads((tmp_path / "slow" / "config.json").read_text())["exchange"]
    assert recorded["vectors"] == "int8" and recorded["ranks"] == 2 and recorded["homes"] == "by-use"
    # What an option names is not chosen.
    named = train_on("named", 2, exchange="auto", exchange_back="fp16", exchange_dense="none").exchange
    assert named is not None and named.codecs == {"vectors": "int8", "gradients": "fp16", "dense": "none"}

    monkeypatch.setattr(module, "measure_link", lambda ranks: FAST_LINK)
    fast = train_on("fast", 2, exchange="auto").exchange
    assert fast is not None and fast.has_equal_bits and set(fast.codecs.values()) == {"none"}
    train_on("exact", 2)
    files = [(tmp_path / out / "weights.safetensors").read_bytes() for out in ("fast", "exact", "slow")]
    assert files[0] == files[1] != files[2]
    assert "exchange" not in json.loads((tmp_path / "exact" / "config.json").read_text())


def test_a_resumed_run_keeps_its_codecs_and_ends_with_the_bits_of_an_unbroken_one(
    train_on: Callable[..., TrainSummary], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "measure_link", lambda ranks: SLOW_LINK)
    train_on("unbroken", 2, exchange="auto")
    with suppress(_KilledError):
        train_on("killed", 2, killed_after=150, exchange="auto")
    # Nothing is measured any more: the link may be another one by now.
    monkeypatch.setattr(module, "measure_link", lambda ranks: FAST_LINK)
    for num_ranks, options, found in (
        (2, {"exchange": "int4"}, "exchange.vectors is 'int8', here 'int4'"),
        (2, {"exchange": "auto", "homes": "striped"}, "exchange.homes is 'by-use', here 'striped'"),
        (1, {"exchange": "auto"}, "exchange is {'vectors': 'int8'.*here None"),
    ):
        with pytest.raises(HotsetError, match=found):
            train_on("killed", num_ranks, **options)
    train_on("killed", 2, exchange="auto")
    files = [(tmp_path / out / "weights.safetensors").read_bytes() for out in ("unbroken", "killed")]
    assert files[0] == files[1]


def test_ranks_with_other_codecs_are_refused_by_name(train_on: Callable[..., TrainSummary]) -> None:
    for own, other, name in (
        ({"exchange": "auto"}, {"exchange": "none"}, "exchange"),
        ({"exchange": "int8"}, {"exchange_back": "int4"}, "exchange_back"),
        ({"exchange": "auto"}, {"exchange_dense": "none"}, "exchange_dense"),
    ):
        with pytest.raises(RankError, match=f"rank 1 has another {name} than rank 0"):
            train_on("run", 2, of_last=other, **own)


def test_rows_that_are_not_finite_stop_the_run_by_name(
    train_on: Callable[..., TrainSummary], monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_an_infinity(*arguments: Any, **named: Any) -> Any:
        trainer = build_trainer(*arguments, **named)
        for width in trainer.embeddings.widths:
            width.executor.fast.weights_SD[:] = float("inf")
        return trainer

    monkeypatch.setattr(run, "build_trainer", with_an_infinity)
    with pytest.raises(HotsetError, match=r"the \w+ of (row \d+ of table|the) .* not finite"):
        train_on("run", 2, exchange="int8", exchange_dense="bf16")
