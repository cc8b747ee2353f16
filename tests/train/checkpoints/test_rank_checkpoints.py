"""A run on several ranks is saved, and goes on with any number of ranks to the same bits.

Ranks that do not write the folder of a run take part where rank 0 collects rows.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.tests.support.thread_ranks import ThreadRanks, run_thread_ranks
from hotset.train.build import build_trainer
from hotset.train.checkpoints import writer
from hotset.train.checkpoints.files import CheckpointRecord, newest_whole, write_part, write_record
from hotset.train.checkpoints.rank_checkpoints import SAVED_ERRORS, RankCheckpoints, SavedErrors
from hotset.train.checkpoints.resume import Checkpoint, RunCheckpoints, restore, table_sizes
from hotset.train.config import CheckpointSettings, ChosenExchange, TrainConfig
from hotset.train.data.batch import Batch
from hotset.train.data.shards import Shards
from hotset.train.loop import run_steps
from hotset.train.ranks.ranks import OneRank, Ranks
from hotset.train.rows.embeddings import RowsPart
from hotset.train.run_folder.files import RunFolder
from hotset.train.run_folder.weights import Weights
from hotset.train.trainer import Trainer

SETTINGS = replace(CheckpointSettings(), checkpoint_every=2)
SPEC = ShardSpec(
    num_rows=(60, 1, 90),
    num_hot=(3, 1, 5),
    num_hot_only=26,
    num_mixed=110,
    skew=1.2,
    batch_size=20,
    table_dims=(4, 2, 4),
)


class _KilledError(Exception):
    """The process is gone."""


def train(
    shards: Shards,
    folder: Path,
    fields: dict[str, Any],
    ranks: Ranks,
    *,
    stop_after: int | None = None,
    exchange: ChosenExchange | None = None,
) -> dict[str, bytes]:
    """Go on from the last checkpoint, and save the run every two steps; return weights and states."""
    torch.set_num_threads(1)
    config = TrainConfig(threads=1, micro_batches=4, embedding_optimizer="adagrad", **fields)
    record = newest_whole(folder)
    checkpoint = Checkpoint.open(folder, record, table_sizes(shards, config)) if record else None
    start = checkpoint.start if checkpoint else None
    trainer = build_trainer(shards, config, start=start, tracks_changes=True, ranks=ranks, exchange=exchange)
    if trainer.rank_codecs is not None and trainer.rank_codecs.errors is not None:
        trainer.resumables[SAVED_ERRORS] = SavedErrors(ranks, trainer.rank_codecs.errors)
    if checkpoint:
        restore(trainer, checkpoint)
    kind = RunCheckpoints if ranks.num_ranks == 1 else RankCheckpoints
    saved = kind(trainer, folder, "run", SETTINGS, record)

    def after_step(trainer: Trainer, _: Batch, __: torch.Tensor) -> None:
        if saved.is_due(trainer.step):
            saved.take([])
            saved.settle(wait=True)
        if trainer.step == stop_after:
            raise _KilledError

    try:
        run_steps(trainer, after_step)
    finally:
        saved.close()
    weights = trainer.weights()
    found = {name: weights[name].numpy().tobytes() for name in sorted(weights)}
    for number, table in enumerate(shards.tables):
        found[f"{table.name} state"] = trainer.embeddings.table(number, state=True).numpy().tobytes()
    return found


def on_ranks(shards: Shards, folder: Path, fields: dict[str, Any], num_ranks: int, **options: Any) -> Any:
    if num_ranks == 1:
        return train(shards, folder, fields, OneRank(), **options)
    return run_thread_ranks(num_ranks, lambda ranks: train(shards, folder, fields, ranks, **options), 20)[0]


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("all-fast", "fae", "cache", "hybrid")]


@pytest.mark.parametrize("placement", ["lookahead", *SLOW])
def test_a_run_goes_on_with_another_number_of_ranks(placement: str, tmp_path: Path) -> None:
    shards = Shards.open(write_shards(tmp_path / "shards", SPEC))
    staged = placement in ("lookahead", "cache")
    fields = {"placement": placement, "epochs": 2, "staging_bytes": 1_000 if staged else None}
    wanted = on_ranks(shards, tmp_path / "unbroken", fields, 1)
    folder = tmp_path / "saved"
    for num_ranks, stop_after in ((2, 5), (4, 9), (1, 11)):
        with suppress(_KilledError):
            on_ranks(shards, folder, fields, num_ranks, stop_after=stop_after)
        record = newest_whole(folder)
        assert record is not None and stop_after - 2 < record.state.step <= stop_after
    assert on_ranks(shards, folder, fields, 4) == wanted


def test_ranks_that_begin_with_the_rows_of_another_have_the_bits_of_one(tmp_path: Path) -> None:
    shards = Shards.open(write_shards(tmp_path / "shards", replace(SPEC, embedding_optimizer="adagrad")))
    with suppress(_KilledError):
        on_ranks(shards, tmp_path / "first", {"placement": "all-fast"}, 2, stop_after=5)

    def train_on(ranks: Ranks) -> list[bytes]:
        torch.set_num_threads(1)
        config = TrainConfig(threads=1, micro_batches=4, embedding_optimizer="adagrad", placement="all-fast")
        record = newest_whole(tmp_path / "first")
        assert record is not None
        checkpoint = Checkpoint.open(tmp_path / "first", record, table_sizes(shards, config))
        start = replace(checkpoint.start, done=None, is_fresh=False)
        trainer = build_trainer(shards, config, start=start, ranks=ranks)
        run_steps(trainer, lambda *_: None)
        return [trainer.embeddings.table(n).numpy().tobytes() for n in range(len(shards.tables))]

    wanted = run_thread_ranks(2, train_on, 20)
    assert wanted[0] == train_on(OneRank())


def test_errors_of_gradients_are_saved_and_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = Shards.open(write_shards(tmp_path / "shards", SPEC))
    fields = {"placement": "all-fast"}
    coded = ChosenExchange("none", "int8", feedback=True)
    wanted = on_ranks(shards, tmp_path / "unbroken", fields, 2, exchange=coded)
    assert (
        on_ranks(shards, tmp_path / "without", fields, 2, exchange=replace(coded, feedback=False)) != wanted
    )

    def resumed(folder: Path) -> Any:
        with suppress(_KilledError):
            on_ranks(shards, folder, fields, 2, stop_after=5, exchange=coded)
        return on_ranks(shards, folder, fields, 2, exchange=coded)

    assert resumed(tmp_path / "saved") == wanted
    # Errors that are forgotten are missed.
    monkeypatch.setattr(SavedErrors, "restore", lambda *_: None)
    assert resumed(tmp_path / "forgotten") != wanted


def test_rows_of_a_lost_checkpoint_are_saved_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = Shards.open(write_shards(tmp_path / "shards", SPEC))
    fields = {"placement": "all-fast"}
    wanted = on_ranks(shards, tmp_path / "unbroken", fields, 1)

    def write_but_one(folder: Path, record: CheckpointRecord) -> None:
        if record.state.step == 4:
            raise OSError(28, "No space left on device")
        write_record(folder, record)

    monkeypatch.setattr(writer, "write_record", write_but_one)
    folder = tmp_path / "saved"
    with suppress(_KilledError):
        on_ranks(shards, folder, fields, 2, stop_after=7)
    assert on_ranks(shards, folder, fields, 4) == wanted


def test_ranks_wait_for_a_checkpoint_that_takes_longer_than_they_wait_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = Shards.open(write_shards(tmp_path / "shards", SPEC))
    fields = {"placement": "all-fast"}
    wanted = on_ranks(shards, tmp_path / "unbroken", fields, 1)
    # The disk takes no byte until the ranks have waited for it several times.
    num_signs = 0
    is_patient = threading.Event()

    def gather(self: ThreadRanks, part: torch.Tensor) -> list[torch.Tensor]:
        nonlocal num_signs
        found = gathered(self, part)
        num_signs += self.rank == 1 and found[0].tolist() == [-1]
        if num_signs > 2:
            is_patient.set()
        return found

    def write(path: Path, part: RowsPart) -> tuple[int, str]:
        assert is_patient.wait(60), "nobody waited"
        return write_part(path, part)

    gathered = ThreadRanks.gather
    monkeypatch.setattr(ThreadRanks, "gather", gather)
    monkeypatch.setattr(writer, "write_part", write)
    assert on_ranks(shards, tmp_path / "saved", fields, 2) == wanted


def test_every_part_is_asked_for_in_the_order_of_the_file_and_nothing_is_written(tmp_path: Path) -> None:
    asked: list[str] = []

    def parts_of(name: str) -> Iterator[torch.Tensor]:
        for number in range(2):
            asked.append(f"{name}{number}")
            yield torch.empty(0, 2)

    folder = RunFolder(tmp_path / "run", is_first=False)
    weights = Weights({"b": (4, 2), "a": (4, 2)}, parts_of)
    folder.save_weights(weights)
    folder.save_states(weights)
    folder.log({"step": 1})
    folder.save_batch_order([0])
    folder.finish({})
    assert asked == ["a0", "a1", "b0", "b1"] * 2
    assert list(tmp_path.iterdir()) == []
