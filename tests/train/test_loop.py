"""Training: a model learns, whatever the placement (their equal bits: `test_equal_bits`)."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
import torch
from numba.core.dispatcher import Dispatcher

from hotset.pipeline.errors import ByteSize
from hotset.stats import compile_notice
from hotset.stats.kernel import kernel
from hotset.stats.row_bytes import OPTIMIZERS
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.tests.support.trained_models import assert_equal_bits, trained
from hotset.train.build import build_trainer
from hotset.train.config import PlacementName, TrainConfig
from hotset.train.data.shard_file import UnchangedFile
from hotset.train.data.shards import ShardSet
from hotset.train.loop import read_ahead, run_steps
from hotset.train.placements.placements import num_steps_ahead
from hotset.train.rows.step_plan import PlannedStep
from hotset.workflows import characterise
from hotset.workflows.characterise import DrawnShards


def test_two_equal_runs_end_with_equal_bits_and_seeds_differ(tmp_path: Path) -> None:
    shards = ShardSet.open(write_shards(tmp_path / "shards"))
    first, again, other = (trained(shards, seed=seed) for seed in (1, 1, 2))
    assert_equal_bits(first, again)
    assert first.batch_numbers != other.batch_numbers
    assert not torch.equal(first.weights()["C3"], other.weights()["C3"])


def test_rows_never_looked_up_keep_their_initial_values(tmp_path: Path) -> None:
    shards = ShardSet.open(write_shards(tmp_path / "shards", skew=3.0))
    untrained = build_trainer(shards, TrainConfig()).weights()["C3"].clone()
    weights = trained(shards).weights()["C3"]
    batches = [shards.training_batch(number).ids_BF[:, 2] for number in range(shards.num_training_batches)]
    seen = np.isin(np.arange(300), np.concatenate(batches))
    changed = (weights != untrained).any(dim=1).numpy()
    assert not changed[~seen].any() and changed[seen].all()


def test_a_short_batch_takes_a_small_step(tmp_path: Path) -> None:
    """One sample in a batch of nominally 64 moves SGD's weights by a 64th of its gradient."""
    spec = ShardSpec(batch_size=64, num_hot_only=0, num_mixed=1, num_evaluation=0)
    alone = ShardSpec(batch_size=1, num_hot_only=0, num_mixed=1, num_evaluation=0)
    shards, ones = (
        ShardSet.open(write_shards(tmp_path / name, s)) for name, s in (("a", spec), ("b", alone))
    )
    before = build_trainer(shards, TrainConfig()).weights()["C2"]
    rate: dict[str, Any] = {"embedding_lr": 0.5, "dense_lr": 0.5}
    short, full = (trained(s, **rate).weights()["C2"] - before for s in (shards, ones))
    assert short.abs().max() > 0
    torch.testing.assert_close(short * 64, full, rtol=1e-3, atol=1e-6)


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_model_learns_what_was_planted(optimizer: Any, tmp_path: Path) -> None:
    spec = ShardSpec(num_hot_only=3000, num_mixed=3000, num_evaluation=2000, batch_size=64)
    shards = ShardSet.open(write_shards(tmp_path / "shards", spec))
    before = build_trainer(shards, TrainConfig()).predictor.score()
    after = trained(shards, embedding_optimizer=optimizer, epochs=2).predictor.score()
    assert before.auc is not None and after.auc is not None
    assert before.auc < 0.7 < 0.8 < after.auc


@pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="nothing is compiled")
def test_no_clock_of_a_run_counts_compiling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock moves while a kernel is compiled, by 1,000 s each, and at no other time."""
    seconds = 0.0
    compile_types = Dispatcher.compile

    def compile_slowly(self: Dispatcher, types: Any) -> Any:
        nonlocal seconds
        seconds += 1000.0
        return compile_types(self, types)

    monkeypatch.setattr(Dispatcher, "compile", compile_slowly)
    monkeypatch.setattr(compile_notice, "perf_counter", lambda: seconds)
    # Whole seconds have exact differences, those that earlier tests compiled for would not.
    monkeypatch.setattr(compile_notice._Compiling, "seconds", 0.0)

    def run_new_kernel(_: PlannedStep) -> None:
        assert kernel(_twice)(2) == 4

    shards = ShardSet.open(write_shards(tmp_path / "shards"))
    trainer = build_trainer(shards, TrainConfig(placement="lookahead", staging_bytes=ByteSize(4096)))
    # A kernel that this process has not run yet, at every step.
    trainer.before_step.append(run_new_kernel)
    run_steps(trainer, lambda *_: None)
    assert seconds >= 1000.0 * shards.num_training_batches
    assert trainer.meter.training_seconds == 0
    transfers = trainer.embeddings.transfers
    assert transfers.busy_seconds == transfers.stall_seconds == 0


def _twice(number: int) -> int:
    return 2 * number


def test_fae_counts_its_copies(tmp_path: Path) -> None:
    shards = ShardSet.open(write_shards(tmp_path / "shards"))
    trainer = trained(shards, placement="fae", fae_variant="code", epochs=2)
    hot_bytes = 35 * 4 * 4
    assert trainer.meter.bytes_to_fast["switch"] == trainer.meter.bytes_to_slow["switch"] == 2 * hot_bytes
    assert trainer.meter.bytes_to_fast["mixed"] == 2 * 150 * 3 * 4 * 4
    assert trainer.meter.bytes_to_fast["hot_only"] == trainer.meter.bytes_to_fast["evaluation"] == 0
    assert trainer.order.test_losses == []


def test_hybrid_moves_a_vector_a_lookup_each_way(tmp_path: Path) -> None:
    shards = ShardSet.open(write_shards(tmp_path / "shards"))
    num_bytes = 220 * 3 * 4 * 4
    assert trained(shards, placement="hybrid").meter.training_bytes() == (num_bytes, num_bytes)
    to_fast, to_slow = trained(shards, placement="hybrid-dedup").meter.training_bytes()
    batches = [shards.training_batch(number).ids_BF for number in range(shards.num_training_batches)]
    distinct = sum(np.unique(ids[:, f]).size for ids in batches for f in range(3))
    assert to_fast == to_slow == distinct * 4 * 4


@pytest.mark.gpu
@pytest.mark.parametrize("placement", ["all-fast", "hybrid", "hybrid-dedup", "fae", "cache", "lookahead"])
def test_every_placement_trains_on_the_gpu(placement: Any, tmp_path: Path) -> None:
    spec = ShardSpec(num_hot_only=3000, num_mixed=3000, num_evaluation=2000, batch_size=64)
    shards = ShardSet.open(write_shards(tmp_path / "shards", spec))
    trainer = trained(shards, placement=placement, device="cuda", embedding_optimizer="adagrad", epochs=2)
    scores = trainer.predictor.score()
    assert scores.auc is not None and scores.auc > 0.8
    assert trainer.meter.training_seconds > 0


@pytest.mark.parametrize("placement", ["all-fast", "lookahead"])
def test_the_first_step_reads_nothing_beyond_the_batches_planned(
    placement: PlacementName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of one batch each: opening them reads none, and no footer is read at all."""
    folder = tmp_path / "shards"
    monkeypatch.setattr(characterise, "_FILE_SAMPLES", 16)
    drawn: dict[str, Any] = {
        "num_batches": 300,
        "batch_size": 16,
        "rows_of_table": 400,
        "hot_rows_of_table": 20,
    }
    DrawnShards(skew=0.5, num_tables=3, **drawn).write(folder)
    read: list[tuple[str, int]] = []
    read_at = UnchangedFile.read_at

    def counting(file: UnchangedFile, position: int, num_bytes: int) -> Any:
        read.append((file._path.name, num_bytes))
        return read_at(file, position, num_bytes)

    monkeypatch.setattr(UnchangedFile, "read_at", counting)
    shards = ShardSet.open(folder)
    assert len(shards._files) == 301 and read == []
    budget = {"staging_bytes": ByteSize(8_000), "prefetch": 1} if placement == "lookahead" else {}
    trainer = build_trainer(shards, TrainConfig(placement=placement, threads=1, **budget))  # type: ignore[arg-type]
    with closing(read_ahead(trainer)) as steps:
        trainer.runner.train(next(iter(steps)), 0, trainer.rates.of_step(0))
    order = list(next(iter(trainer.order.epochs())))
    names = [shards._files[shards._training[number].file].path.name for number in order]
    found = {name for name, _ in read}
    # What is known ahead is the beginning of the order, and its samples are read of the next steps alone.
    assert found == set(names[: len(found)]) and len(found) < 100
    ids_bytes, row_bytes = 3 * 4, 3 * 4 + 13 * 4 + 4
    num_samples = sum(size % (16 * row_bytes) == 0 for _, size in read)
    assert num_samples <= num_steps_ahead(trainer.config, shards.mixed_share) + 2
    assert sum(size for _, size in read) <= 16 * (num_samples * row_bytes + len(found) * ids_bytes)
