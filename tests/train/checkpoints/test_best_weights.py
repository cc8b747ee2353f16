"""The best weights of a run, early stops, and both in runs that are resumed."""

from __future__ import annotations

import errno
import itertools
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hotset.pipeline.errors import KIB, ByteSize, ConfigError, HotsetError
from hotset.tests.support.processes.kills import Killed
from hotset.tests.support.processes.ranked_runs import train_on_ranks
from hotset.tests.support.processes.stopped_runs import WITH_LOG, WITH_ORDER, assert_same_files, train_until
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.train import loop, run_log
from hotset.train.build import build_trainer
from hotset.train.checkpoints import best_weights
from hotset.train.config import TrainConfig
from hotset.train.config_parts import CheckpointSettings, RecipeOptions
from hotset.train.data.shards import ShardSet
from hotset.train.evaluate import evaluate
from hotset.train.placements.placements import num_planned_steps
from hotset.train.ranks.ranks import OneRank, Ranks, first_says
from hotset.train.run import RunOptions, train
from hotset.train.run_folder.files import RunFolder
from hotset.train.run_log import TrainSummary
from hotset.train.verify_run import verify_run

SPEC = ShardSpec(
    num_rows=(5, 40, 300),
    num_hot=(3, 5, 9),
    num_hot_only=60,
    num_mixed=600,
    num_evaluation=450,
    num_validation=300,
    batch_size=20,
    skew=1.2,
    order="original",
)
FIELDS: dict[str, Any] = {
    "embedding_optimizer": "adagrad",
    "embedding_lr": 0.5,
    "dense_lr": 0.02,
    "epochs": 6,
    "evaluate_every": 11,
    "staging_bytes": ByteSize(2_500),
    "threads": 1,
}
PLACEMENTS: tuple[dict[str, Any], ...] = (
    {"placement": "all-fast"},
    {"placement": "hybrid"},
    {"placement": "hybrid-dedup"},
    {"placement": "cache"},
    {"placement": "lookahead"},
)
UNSCORED = replace(
    SPEC, num_rows=(5, 40, 20_000), num_hot_only=20, num_mixed=360, num_evaluation=0, num_validation=0
)
"""More rows, for a file, and no sample to evaluate."""
OFF = CheckpointSettings(checkpoint_every="off")
EVERY_4 = CheckpointSettings(checkpoint_every=4)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_shards(folder / "shards", SPEC)
    return folder


def run(data: Path, out: Path, recipe: RecipeOptions, **fields: Any) -> TrainSummary:
    return train(data, TrainConfig(recipe=recipe, **FIELDS | fields), out, RunOptions(checkpoints=OFF))


def validations(out: Path) -> dict[int, float]:
    """AUC of the validation part by step, as the run logged it."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line["validation"]["auc"] for line in lines if "validation" in line}


@pytest.fixture(scope="module")
def stopped(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TrainSummary]:
    """A run that all-fast stops early, with its best weights."""
    out = tmp_path_factory.mktemp("stopped") / "run"
    return out, run(data, out, RecipeOptions(patience=3), placement="all-fast")


def test_a_run_without_progress_stops_with_its_best_weights(
    data: Path, stopped: tuple[Path, TrainSummary]
) -> None:
    out, summary = stopped
    found = validations(out)
    assert summary.stopped is not None and "--patience 3" in summary.stopped
    best = max(found, key=lambda step: found[step])
    assert summary.best_step == best == summary.num_steps - 33 and summary.num_steps < 6 * 33
    assert summary.validation is not None and summary.validation.auc == found[best]
    # The weights on disk are those that were scored, and nothing of the way is left.
    assert evaluate(out, data).to_dict()["validation"]["auc"] == found[best]
    assert not list(out.glob("best-*")) and len(list(out.iterdir())) == 6


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("fields", PLACEMENTS[1:])
def test_every_placement_stops_with_the_bits_of_all_fast(
    data: Path, tmp_path: Path, stopped: tuple[Path, TrainSummary], fields: dict[str, Any]
) -> None:
    summary = run(data, tmp_path / "run", RecipeOptions(patience=3), **fields)
    assert summary.best_step == stopped[1].best_step
    assert_same_files(tmp_path / "run", stopped[0], WITH_ORDER)


@pytest.mark.parametrize(
    "fields",
    # That the others have the same bits at the same step is tested above.
    [
        *(pytest.param(each, marks=pytest.mark.slow) for each in PLACEMENTS[:-1]),
        PLACEMENTS[-1],
        {"placement": "fae"},
    ],
)
def test_the_weights_of_the_best_step_are_those_of_a_run_that_ends_there(
    data: Path, tmp_path: Path, fields: dict[str, Any]
) -> None:
    kept = run(data, tmp_path / "kept", RecipeOptions(keep_best=True, max_steps=60), **fields)
    assert kept.best_step is not None and kept.best_step < 60 and kept.num_steps == 60
    run(data, tmp_path / "short", RecipeOptions(max_steps=kept.best_step), **fields)
    for name in ("kept", "short"):
        assert evaluate(tmp_path / name, data).auc == kept.auc
    assert_same_files(tmp_path / "kept", tmp_path / "short", ("weights.safetensors",))


def test_a_limit_of_steps_takes_the_steps_of_a_longer_run(data: Path, tmp_path: Path) -> None:
    for steps in (40, 50):
        summary = run(data, tmp_path / str(steps), RecipeOptions(max_steps=steps), placement="lookahead")
        assert (summary.num_steps, summary.stopped) == (steps, f"--max-steps {steps}")
    short, long = (validations(tmp_path / name) for name in ("40", "50"))
    assert list(short) == [11, 22, 33, 40] and all(short[step] == long[step] for step in (11, 22, 33))


def test_a_target_stops_at_the_evaluation_that_reaches_it(data: Path, tmp_path: Path) -> None:
    summary = run(data, tmp_path / "run", RecipeOptions(stop_at_auc=0.6))
    found = validations(tmp_path / "run")
    assert summary.stopped is not None and summary.stopped.startswith("AUC")
    assert (
        found[summary.num_steps]
        >= 0.6
        > max([0.0, *(found[step] for step in found if step < summary.num_steps)])
    )


def test_without_a_number_of_steps_each_epoch_is_evaluated(data: Path, tmp_path: Path) -> None:
    run(data, tmp_path / "run", RecipeOptions(keep_best=True), evaluate_every=None, epochs=2)
    assert list(validations(tmp_path / "run")) == [33, 66]


def test_evaluations_come_by_time_too(data: Path, tmp_path: Path) -> None:
    # Each step takes longer than this.
    run(data, tmp_path / "run", RecipeOptions(max_steps=3), evaluate_every="0.000001s")
    assert list(validations(tmp_path / "run"))[:3] == [1, 2, 3]


@pytest.mark.parametrize("stop", [12, *(pytest.param(stop, marks=pytest.mark.slow) for stop in (5, 30, 50))])
@pytest.mark.parametrize("placement", ["lookahead", pytest.param("fae", marks=pytest.mark.slow)])
def test_a_killed_run_ends_with_the_best_weights_of_the_unbroken_one(
    data: Path, tmp_path: Path, stop: int, placement: str
) -> None:
    recipe = RecipeOptions(patience=2, max_steps=90)
    unbroken = run(data, tmp_path / "unbroken", recipe, placement=placement)
    if unbroken.num_steps < stop:
        return
    config = TrainConfig(recipe=recipe, **FIELDS | {"placement": placement})
    train_until(stop * 20, data, config, tmp_path / "run")
    resumed = train(data, config, tmp_path / "run", RunOptions(checkpoints=EVERY_4))
    assert (resumed.best_step, resumed.num_steps, resumed.stopped) == (
        unbroken.best_step,
        unbroken.num_steps,
        unbroken.stopped,
    )
    assert_same_files(tmp_path / "run", tmp_path / "unbroken", (*WITH_ORDER, "metrics.jsonl"))


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_run_killed_as_it_is_sealed_has_its_best_weights(
    data: Path, stopped: tuple[Path, TrainSummary], when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seal = RunFolder.seal

    def killed(folder: RunFolder) -> None:
        if when == "after":
            seal(folder)
        raise Killed

    config = TrainConfig(recipe=RecipeOptions(patience=3), **FIELDS | {"placement": "all-fast"})
    options = RunOptions(checkpoints=EVERY_4)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(RunFolder, "seal", killed)
        train(data, config, tmp_path / "run", options)
    if when == "before":
        train(data, config, tmp_path / "run", options)
    assert not verify_run(tmp_path / "run")
    assert_same_files(tmp_path / "run", stopped[0], ("weights.safetensors",))


@pytest.mark.parametrize(
    "placement", ["lookahead", *(pytest.param(name, marks=pytest.mark.slow) for name in ("fae", "cache"))]
)
def test_ranks_stop_with_the_best_weights_of_one_process(
    placement: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = RecipeOptions(patience=1, max_time="1h")
    fields = FIELDS | {"placement": placement, "micro_batches": 2}
    alone = run(data, tmp_path / "alone", recipe, **fields)
    config = TrainConfig(recipe=recipe, **fields)
    # Saved often, so that files of best weights that checkpoints name are kept, too.
    saved = CheckpointSettings(checkpoint_every=20)
    found = train_on_ranks(2, monkeypatch, data, config, tmp_path / "ranks", checkpoints=saved)
    assert found.best_step is not None and found.best_step < found.num_steps == alone.num_steps < 198
    assert_same_files(tmp_path / "ranks", tmp_path / "alone", WITH_LOG)
    assert not list((tmp_path / "ranks").glob("best-*"))


def test_ranks_stop_and_evaluate_by_the_clock_of_the_first(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Rank 1 never finds that it is time; rank 0 evaluates after each step, and stops at its fifth.
    looks = itertools.count()

    def says(ranks: Ranks, own: bool) -> bool:
        is_time = ranks.rank == 0 and ((look := next(looks)) % 2 == 0 or look == 9)
        return first_says(ranks, is_time)

    monkeypatch.setattr(run_log, "first_says", says)
    recipe = RecipeOptions(max_time="1h")
    config = TrainConfig(recipe=recipe, **FIELDS | {"evaluate_every": "1h"})
    found = train_on_ranks(2, monkeypatch, data, config, tmp_path / "run", checkpoints=OFF)
    assert (found.stopped, found.num_steps) == ("--max-time 1h", 5)
    assert list(validations(tmp_path / "run")) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("recipe", [{"patience": 1}, {"stop_at_auc": 0.9}, {"keep_best": True}])
def test_without_a_validation_part_it_is_refused(recipe: dict[str, Any], tmp_path: Path) -> None:
    write_shards(tmp_path / "shards")
    with pytest.raises(ConfigError, match=r"is decided by a validation part, and .*shards has none"):
        run(tmp_path, tmp_path / "run", RecipeOptions(**recipe))
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_rows_in_a_file_are_planned_to_the_last_of_a_limited_number_of_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The limit lies in the second epoch; the run is killed in the middle, and at its end.
    data = write_shards(tmp_path / "shards", UNSCORED).parent
    recipe = RecipeOptions(max_steps=27)
    fields = FIELDS | {"evaluate_every": None, "epochs": 2}
    wanted = run(data, tmp_path / "wanted", recipe, **fields | {"placement": "all-fast"})
    config = TrainConfig(recipe=recipe, **fields, placement="lookahead", slow_bytes=ByteSize(400 * KIB))
    assert num_planned_steps(config, ShardSet.open(data)) == 27, "rows are in a file"

    def kill_at_end(*_: object) -> None:
        raise Killed

    train_until(14 * 20, data, config, tmp_path / "run")
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(RunFolder, "save_weights", kill_at_end)
        train(data, config, tmp_path / "run", RunOptions(checkpoints=EVERY_4))
    found = train(data, config, tmp_path / "run", RunOptions(checkpoints=EVERY_4))
    assert (found.num_steps, found.stopped) == (wanted.num_steps, wanted.stopped) == (27, "--max-steps 27")
    assert_same_files(tmp_path / "run", tmp_path / "wanted", WITH_ORDER)


def test_a_run_that_is_stopped_at_its_last_step_writes_its_rows_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing is read ahead, so the write-back behind the last step is not queued before that step.
    monkeypatch.setattr(loop, "BackgroundIterator", lambda steps, *_: steps)
    data = write_shards(tmp_path / "shards", UNSCORED).parent
    fields = FIELDS | {"evaluate_every": None, "epochs": 1, "placement": "lookahead"}
    for name, recipe in (("stopped", RecipeOptions(max_steps=19)), ("whole", RecipeOptions())):
        assert run(data, tmp_path / name, recipe, **fields).num_steps == 19
    assert_same_files(tmp_path / "stopped", tmp_path / "whole", ("weights.safetensors",))


@pytest.mark.parametrize("recipe", [{"patience": 1}, {"max_time": "1h"}])
def test_rows_in_a_file_that_is_planned_to_the_end_are_refused(
    recipe: dict[str, Any], data: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="needs all rows before the last step"):
        run(data, tmp_path / "run", RecipeOptions(**recipe), slow_bytes=ByteSize(1_000))


def test_room_for_the_best_weights_is_reserved_before_the_first_step(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    monkeypatch.setattr(os, "posix_fallocate", lambda descriptor, start, count: taken.append(count))
    config = TrainConfig(**FIELDS, recipe=RecipeOptions(keep_best=True, max_steps=22))
    train(data, config, tmp_path / "whole", RunOptions(checkpoints=OFF))
    weight_bytes = (tmp_path / "whole" / "weights.safetensors").stat().st_size
    best_bytes, _ = taken
    assert best_bytes <= 2 * weight_bytes < best_bytes + 20_000, "a header is not counted"

    def is_full(descriptor: int, start: int, count: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", is_full)
    with pytest.raises(HotsetError, match=r"has no room for .* of best weights: No space left") as caught:
        train(data, config, tmp_path / "run", RunOptions(checkpoints=OFF))
    assert "--keep-best" in str(caught.value.hint) and not (tmp_path / "run").exists()


def test_a_changed_file_of_best_weights_is_refused(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = best_weights.BestWeights.save

    def save_and_damage(self: Any, loop: Any) -> None:
        save(self, loop)
        path = self._path(loop.step)
        path.write_bytes(path.read_bytes()[:-1] + b"x")

    monkeypatch.setattr(best_weights.BestWeights, "save", save_and_damage)
    with pytest.raises(HotsetError, match=r"best-\d+.safetensors is damaged"):
        run(data, tmp_path / "run", RecipeOptions(patience=1))


def test_rates_lowered_on_a_plateau_are_those_of_a_resumed_run(data: Path, tmp_path: Path) -> None:
    recipe = RecipeOptions(lr_schedule="plateau")
    plain = run(data, tmp_path / "plain", RecipeOptions(), placement="all-fast", epochs=3)
    unbroken = run(data, tmp_path / "unbroken", recipe, placement="all-fast", epochs=3)
    assert unbroken.auc != plain.auc, "the rates were lowered"
    # Another placement, killed behind the first evaluations; a schedule on the way is no early end.
    config = TrainConfig(recipe=recipe, **FIELDS | {"epochs": 3, "placement": "lookahead"})
    train_until(70 * 20, data, config, tmp_path / "run", every=10)
    train(data, config, tmp_path / "run")
    assert_same_files(tmp_path / "run", tmp_path / "unbroken", WITH_LOG)


def test_plateau_needs_a_validation_part_and_not_the_rows_before_the_end() -> None:
    recipe = RecipeOptions(lr_schedule="plateau")
    assert recipe.needs_validation == "--lr-schedule plateau" and recipe.may_stop is None


def test_files_that_a_checkpoint_names_are_kept(data: Path, tmp_path: Path) -> None:
    trainer = build_trainer(ShardSet.open(data), TrainConfig(**FIELDS))
    best = best_weights.BestWeights(tmp_path, 1, OneRank())
    kept = []
    # A checkpoint names the best weights of its moment, and better ones come after each.
    for trainer.step in (5, 7, 9, 11):
        best.save(trainer)
        kept.append({int(path.stem.rpartition("-")[2]) for path in tmp_path.iterdir()})
        best.state()
    # One checkpoint is kept, and one is being written.
    assert kept == [{5}, {5, 7}, {5, 7, 9}, {7, 9, 11}]
    trainer.embeddings.transfers.close()
