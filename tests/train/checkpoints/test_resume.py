"""Signals are noted during training, and obeyed at once the second time.

A run that is stopped anywhere ends with the bits of one that is not, under every placement.

Also the tests of `files`, `writer`, `run`, `run_log`, `embeddings`, and of the order of a resumed run.
"""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hotset.pipeline.errors import KIB, ByteSize, HotsetError
from hotset.pipeline.folders.manifest import checksum_of
from hotset.tests.support.processes.kills import Killed
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.train.build import build_trainer
from hotset.train.checkpoints import resume as run_checkpoints
from hotset.train.checkpoints import writer
from hotset.train.checkpoints.files import newest_whole, record_paths, write_part
from hotset.train.checkpoints.resume import (
    Checkpoint,
    Interrupted,
    Interrupts,
    _is_over,
    restore,
    table_sizes,
)
from hotset.train.config import TrainConfig
from hotset.train.config_parts import CheckpointSettings, RecipeOptions
from hotset.train.data.shards import ShardSet
from hotset.train.loop import run_steps
from hotset.train.model.shapes import ModelInputs
from hotset.train.run import RunOptions, train
from hotset.train.run_folder.files import CHECKPOINTS, claimed
from hotset.train.run_folder.weights import write_weights
from hotset.train.verify_run import verify_run


def test_the_first_signal_is_noted_and_the_second_obeyed() -> None:
    interrupts = Interrupts()
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), interrupts.noted():
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupts.number == signal.SIGINT
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_signals_are_obeyed_again_after_training() -> None:
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    with Interrupts().noted():
        assert signal.getsignal(signal.SIGINT) is not before[0]
    assert [signal.getsignal(number) for number in numbers] == before


def test_signals_are_left_alone_outside_the_main_thread() -> None:
    before = signal.getsignal(signal.SIGTERM)
    found = []

    def work() -> None:
        with Interrupts().noted():
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [before]


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        interrupts = Interrupts()
        with interrupts.noted():
            os.kill(os.getpid(), signal.SIGTERM)
        assert interrupts.number is None
    finally:
        signal.signal(signal.SIGTERM, before)


SPEC = ShardSpec(
    num_rows=(300, 400, 7),
    num_hot=(3, 5, 2),
    num_hot_only=60,
    num_mixed=300,
    num_evaluation=40,
    skew=1.2,
    batch_size=20,
    multi_hot=(1,),
    table_dims=(4, 4, 2),
)
NUM_STEPS = 36
PLACEMENTS: tuple[dict[str, Any], ...] = (
    {"placement": "all-fast"},
    {"placement": "hybrid"},
    {"placement": "hybrid-dedup"},
    {"placement": "fae"},
    {"placement": "lookahead"},
    {"placement": "cache", "cache_policy": "lfu"},
    {"placement": "lookahead", "slow_bytes": ByteSize(60 * KIB)},
    {"placement": "hybrid", "slow_bytes": ByteSize(1)},
    {"placement": "lookahead", "device": "late:3", "slow_bytes": ByteSize(60 * KIB)},
    {"placement": "cache", "device": "late:4", "cache_policy": "lru"},
)
FIELDS: dict[str, Any] = {
    "embedding_optimizer": "adagrad",
    "epochs": 2,
    "staging_bytes": ByteSize(2_500),
    "prefetch": 1,
    "threads": 1,
    "log_every": 7,
    "evaluate_every": 13,
}
OFF = CheckpointSettings(checkpoint_every="off")


TAKE = run_checkpoints.RunCheckpoints.take


@pytest.fixture(autouse=True)
def _checkpoints_are_written_before_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let training wait, so that the steps of checkpoints do not depend on the speed of the disk."""

    def take_and_wait(self: Any, metrics: Any, *, is_logged: bool = True) -> None:
        TAKE(self, metrics, is_logged=is_logged)
        self.advance(to_end=True)
        self._writer._end.exception()

    monkeypatch.setattr(run_checkpoints.RunCheckpoints, "take", take_and_wait)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_shards(folder / "shards", SPEC)
    return folder


def every(steps: int, keep: int = 2) -> CheckpointSettings:
    return CheckpointSettings(checkpoint_every=steps, keep_checkpoints=keep)


def run_until(
    data: Path,
    out: Path,
    stop: int | None,
    settings: CheckpointSettings,
    kind: str = "kill",
    source: Any = None,
    **fields: Any,
) -> None:
    """Train, and end as if killed, or by a signal, after so many steps."""

    def progress(stage: str, done: int, total: int, note: str = "", step: int = 0, /) -> None:
        if stage == "train" and stop is not None and done >= min(stop, NUM_STEPS) * SPEC.batch_size:
            if kind == "kill":
                raise Killed
            os.kill(os.getpid(), signal.SIGINT)

    try:
        config = TrainConfig(**FIELDS | fields)
        train(data, config, out, RunOptions(model_source=source, checkpoints=settings, progress=progress))
    except (Killed, Interrupted):
        assert stop is not None


def results(out: Path) -> dict[str, bytes]:
    """The files of a finished run that its bits decide."""
    assert (out / "manifest.json").exists() and not (out / CHECKPOINTS).exists()
    names = ("weights.safetensors", "batch_order.npy", "metrics.jsonl")
    return {name: (out / name).read_bytes() for name in names}


@pytest.fixture(scope="module")
def unbroken(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, bytes]]:
    """Return the results of runs that nothing stops; each is made once for all tests."""
    kept: dict[str, dict[str, bytes]] = {}

    def results_of(**fields: Any) -> dict[str, bytes]:
        name = repr(sorted(fields.items()))
        if name not in kept:
            out = tmp_path_factory.mktemp("unbroken") / "run"
            run_until(data, out, None, OFF, **fields)
            kept[name] = results(out)
        return kept[name]

    return results_of


@pytest.fixture(scope="module")
def stopped(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path, int], None]:
    """Copies a run that was killed after so many steps, with a checkpoint every five; each is made once."""
    kept: dict[int, Path] = {}

    def copy_to(out: Path, stop: int) -> None:
        if stop not in kept:
            kept[stop] = tmp_path_factory.mktemp("stopped") / "run"
            run_until(data, kept[stop], stop, every(5))
        shutil.copytree(kept[stop], out)

    return copy_to


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    fields=st.sampled_from(PLACEMENTS),
    optimizer=st.sampled_from(["sgd", "adagrad", "adam"]),
    stops=st.lists(st.integers(1, NUM_STEPS), min_size=1, max_size=3).map(sorted),
    steps=st.integers(1, 9),
    kind=st.sampled_from(["kill", "signal"]),
)
def test_a_stopped_run_ends_with_the_bits_of_an_unbroken_one(
    data: Path,
    unbroken: Callable[..., dict[str, bytes]],
    fields: dict[str, Any],
    optimizer: str,
    stops: list[int],
    steps: int,
    kind: str,
) -> None:
    fields = fields | {"embedding_optimizer": optimizer}
    with folder() as out:
        for stop in stops:
            run_until(data, out / "stopped", stop, every(steps), kind, **fields)
        run_until(data, out / "stopped", None, every(steps), **fields)
        assert results(out / "stopped") == unbroken(**fields)


@pytest.mark.parametrize(
    "fields",
    # In quick runs one of each way to keep and to move rows; the test above draws from all.
    [
        pytest.param(fields, marks=pytest.mark.slow if number in (1, 2, 5, 8) else [])
        for number, fields in enumerate(PLACEMENTS)
    ],
)
def test_every_placement_goes_on_in_the_middle_of_the_second_epoch(
    data: Path, tmp_path: Path, unbroken: Callable[..., dict[str, bytes]], fields: dict[str, Any]
) -> None:
    run_until(data, tmp_path / "stopped", 25, every(4), **fields)
    assert [path.name for path in record_paths(tmp_path / "stopped" / CHECKPOINTS)] != []
    run_until(data, tmp_path / "stopped", None, every(4), **fields)
    assert results(tmp_path / "stopped") == unbroken(**fields)


class ImmediateExecutor(Executor):
    """Runs what it is given before it returns, so that no outcome depends on another thread."""

    def __init__(self, *_: object) -> None:
        pass

    def submit(self, call: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(call(*args, **named))
        return done


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("fields", [PLACEMENTS[number] for number in (0, 3, 4, 6)])
def test_a_checkpoint_whose_rows_are_copied_between_later_steps_is_one_of_its_own_step(
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    unbroken: Callable[..., dict[str, bytes]],
    fields: dict[str, Any],
) -> None:
    wanted = unbroken(**fields)
    # One part of 4 rows after each step, and no checkpoint waits for the disk.
    monkeypatch.setattr(writer, "ThreadPoolExecutor", ImmediateExecutor)
    monkeypatch.setattr(run_checkpoints.RunCheckpoints, "take", TAKE)
    monkeypatch.setattr(run_checkpoints, "_PART_BYTES", 160)
    monkeypatch.setattr(writer.CheckpointWriter, "is_ready", True)
    run_until(data, tmp_path / "stopped", 30, every(4), **fields)
    record = newest_whole(tmp_path / "stopped" / CHECKPOINTS)
    assert record is not None and record.state.step < 28, "parts were copied over several steps"
    run_until(data, tmp_path / "stopped", None, every(4), **fields)
    assert results(tmp_path / "stopped") == wanted


def test_rows_are_restored_under_any_other_placement(
    data: Path, tmp_path: Path, unbroken: Callable[..., dict[str, bytes]]
) -> None:
    wanted = unbroken()["weights.safetensors"]
    run_until(data, tmp_path / "stopped", 25, every(8), "signal")
    shards = ShardSet.open(data)
    record = newest_whole(tmp_path / "stopped" / CHECKPOINTS)
    assert record is not None and record.state.step == 25
    for fields in PLACEMENTS:
        if fields["placement"] == "fae":  # which has an order of its own
            continue
        config = TrainConfig(**FIELDS | fields)
        sizes = table_sizes(shards, config)
        checkpoint = Checkpoint.open(tmp_path / "stopped" / CHECKPOINTS, record, sizes)
        trainer = build_trainer(shards, config, spill_folder=tmp_path, start=checkpoint.start)
        restore(trainer, checkpoint)
        run_steps(trainer, lambda *_: None)
        write_weights(tmp_path / "other", trainer.weights())
        assert (tmp_path / "other").read_bytes() == wanted, fields


def test_the_second_checkpoint_has_only_the_rows_that_changed(data: Path, tmp_path: Path) -> None:
    run_until(data, tmp_path / "run", 9, every(4, keep=5), placement="lookahead")
    newest, first = record_paths(tmp_path / "run" / CHECKPOINTS)[:2]
    shards = ShardSet.open(data)
    found = json.loads(newest.read_bytes())
    own = sum(entry["rows"] for entry in found["rows"] if "000000008" in entry["path"])
    touched: set[tuple[int, int]] = set()
    record = newest_whole(newest.parent)
    assert record is not None
    sizes = table_sizes(shards, TrainConfig(**FIELDS))
    numbers = Checkpoint.open(newest.parent, record, sizes).tensors["run.batches"]
    for number in numbers[4:8].tolist():
        batch = shards.training_batch(number)
        touched |= {(0, int(row)) for row in np.unique(batch.ids_BF[:, 0])}
        touched |= {(2, int(row)) for row in np.unique(batch.ids_BF[:, 1])}
        touched |= {(1, int(row)) for row in np.unique(batch.bags[0].ids_N)}
    assert own == len(touched)
    assert first.exists()


def test_files_are_merged_and_old_checkpoints_removed(data: Path, tmp_path: Path) -> None:
    run_until(data, tmp_path / "run", 34, every(2))
    checkpoints = tmp_path / "run" / CHECKPOINTS
    paths = record_paths(checkpoints)
    assert len(paths) == 2
    records = [json.loads(path.read_bytes()) for path in paths]
    listed = {entry["path"] for record in records for entry in (*record["rows"], record["dense"])}
    assert {path.name for path in checkpoints.iterdir()} == listed | {path.name for path in paths}
    # 17 checkpoints, and not a file of rows of each for both widths.
    assert len(records[0]["rows"]) < 17


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("damage", ["record", "dense", "rows", "missing", "other"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(
    data: Path,
    tmp_path: Path,
    unbroken: Callable[..., dict[str, bytes]],
    stopped: Callable[[Path, int], None],
    damage: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    wanted = unbroken()
    stopped(tmp_path / "run", 11)
    checkpoints = tmp_path / "run" / CHECKPOINTS
    newest = record_paths(checkpoints)[0]
    assert newest.name == "step-000000010.json"
    path = {
        "record": newest,
        "dense": checkpoints / "dense-000000010.safetensors",
        "rows": next(checkpoints.glob("rows-000000010-*")),
        "missing": next(checkpoints.glob("rows-000000010-*")),
        "other": newest,
    }[damage]
    whole = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "other":
        path.write_text("[]")
    else:
        path.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
    with caplog.at_level(logging.WARNING):
        run_until(data, tmp_path / "run", None, every(5))
    assert "going back to the checkpoint of step 5" in caplog.text and path.name in caplog.text
    assert results(tmp_path / "run") == wanted


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_whose_checkpoints_are_all_damaged_is_refused(
    data: Path, tmp_path: Path, stopped: Callable[[Path, int], None]
) -> None:
    stopped(tmp_path / "run", 11)
    for path in record_paths(tmp_path / "run" / CHECKPOINTS):
        path.write_text("{}")
    before = contents(tmp_path / "run")
    with pytest.raises(HotsetError, match=r"no checkpoint in .* is whole"):
        train(data, TrainConfig(**FIELDS), tmp_path / "run")
    assert contents(tmp_path / "run") == before


@pytest.mark.parametrize(
    ("change", "message"), [({"unlogged_samples": 1}, "it lacks its losses"), ({"step": 6}, "is of step 6")]
)
def test_a_record_that_was_sealed_again_is_not_trusted(
    data: Path, tmp_path: Path, stopped: Callable[[Path, int], None], change: dict[str, int], message: str
) -> None:
    stopped(tmp_path / "run", 6)
    (path,) = record_paths(tmp_path / "run" / CHECKPOINTS)
    parts = json.loads(path.read_bytes())
    del parts["checksum"]
    parts["state"] |= change
    path.write_text(json.dumps(parts | {"checksum": checksum_of(parts)}))
    with pytest.raises(HotsetError, match=message):
        train(data, TrainConfig(**FIELDS), tmp_path / "run")


def test_a_link_in_place_of_a_file_is_refused(
    data: Path, tmp_path: Path, stopped: Callable[[Path, int], None]
) -> None:
    stopped(tmp_path / "run", 6)
    dense = tmp_path / "run" / CHECKPOINTS / "dense-000000005.safetensors"
    shutil.move(dense, tmp_path / "elsewhere")
    dense.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(HotsetError, match="not a plain file"):
        train(data, TrainConfig(**FIELDS), tmp_path / "run")


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"seed": 1}, "config.seed is 0, here 1"),
        ({"placement": "all-fast"}, "config.placement is 'lookahead'"),
    ],
)
def test_other_settings_are_refused_and_the_run_left_as_it_is(
    data: Path, tmp_path: Path, stopped: Callable[[Path, int], None], fields: dict[str, Any], named: str
) -> None:
    stopped(tmp_path / "run", 6)
    before = contents(tmp_path / "run")
    with pytest.raises(HotsetError, match=f"other settings: {named}") as caught:
        train(data, TrainConfig(**FIELDS | fields), tmp_path / "run")
    assert "give the settings of that run to resume it" in str(caught.value.hint)
    assert contents(tmp_path / "run") == before


def test_another_number_of_threads_may_go_on(
    data: Path,
    tmp_path: Path,
    unbroken: Callable[..., dict[str, bytes]],
    stopped: Callable[[Path, int], None],
) -> None:
    wanted = unbroken()
    stopped(tmp_path / "run", 11)
    run_until(data, tmp_path / "run", None, every(7), threads=2)
    torch.set_num_threads(1)
    assert results(tmp_path / "run") == wanted


def test_a_finished_run_is_refused(data: Path, tmp_path: Path) -> None:
    run_until(data, tmp_path / "run", None, OFF)
    with pytest.raises(HotsetError, match="holds a finished run"):
        train(data, TrainConfig(**FIELDS), tmp_path / "run")


def test_two_processes_do_not_train_in_one_folder(
    data: Path, tmp_path: Path, stopped: Callable[[Path, int], None]
) -> None:
    stopped(tmp_path / "run", 6)
    with claimed(tmp_path / "run"), pytest.raises(HotsetError, match="is being written by another process"):
        train(data, TrainConfig(**FIELDS), tmp_path / "run")


@pytest.mark.parametrize("step", [6, 13])
def test_a_signal_saves_the_last_step(data: Path, tmp_path: Path, step: int) -> None:
    run_until(data, tmp_path / "run", step, every(100), "signal")
    record = newest_whole(tmp_path / "run" / CHECKPOINTS)
    assert record is not None and record.state.step == step


def test_an_evaluation_that_was_interrupted_is_made_once_more(
    data: Path, tmp_path: Path, unbroken: Callable[..., dict[str, bytes]]
) -> None:

    def progress(stage: str, done: int, total: int, note: str = "", step: int = 0, /) -> None:
        if stage == "evaluate":
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted):
        options = RunOptions(checkpoints=every(100), progress=progress)
        train(data, TrainConfig(**FIELDS), tmp_path / "run", options)
    record = newest_whole(tmp_path / "run" / CHECKPOINTS)
    assert record is not None and (record.state.step, record.state.is_logged) == (13, False)
    run_until(data, tmp_path / "run", None, every(100))
    assert results(tmp_path / "run") == unbroken()


def test_rows_that_were_initialized_ahead_of_a_checkpoint_are_counted_once(
    data: Path, tmp_path: Path
) -> None:
    fields: dict[str, Any] = {"placement": "lookahead", "staging_bytes": ByteSize(20_000), "prefetch": 4}
    run_until(data, tmp_path / "unbroken", None, OFF, **fields)
    for stop in (4, 9, 24, None):
        run_until(data, tmp_path / "run", stop, every(50), "signal", **fields)
    first, second = (summary_of(tmp_path / name)["rows_by_table"] for name in ("unbroken", "run"))
    assert {name: rows["made"] for name, rows in first.items()} == {
        name: rows["made"] for name, rows in second.items()
    }


def summary_of(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "summary.json").read_bytes())
    return found


def test_the_summary_counts_all_steps_of_a_resumed_run(data: Path, tmp_path: Path) -> None:
    run_until(data, tmp_path / "unbroken", None, OFF, placement="hybrid")
    run_until(data, tmp_path / "run", 11, every(5), "signal", placement="hybrid")
    run_until(data, tmp_path / "run", None, every(5), placement="hybrid")
    first, second = (summary_of(tmp_path / name) for name in ("unbroken", "run"))
    for name in "num_steps num_training_samples bytes_to_fast bytes_to_slow rows_by_table auc".split():
        assert first[name] == second[name], name
    assert second["seconds_by_kind"]["mixed"] > 0


@pytest.mark.parametrize("placement", ["lookahead", "cache"])
def test_split_and_shortened_batches_are_counted_with_their_step(
    placement: str, data: Path, tmp_path: Path
) -> None:
    """Not at the end of their epoch, which a stopped run does not reach, nor when they are planned ahead."""
    fields: dict[str, Any] = {"placement": placement, "staging_bytes": ByteSize(700), "prefetch": 3}

    def counted(name: str) -> tuple[int, int]:
        found = summary_of(tmp_path / name)["transfers"]
        return found["split"], found["shortened"]

    run_until(data, tmp_path / "unbroken", None, OFF, **fields)
    # In the middle of an epoch, and where the next one is planned already.
    for steps in (11, 17):
        out = tmp_path / f"stopped-{steps}"
        run_until(data, out, steps, every(50), "signal", **fields)
        record = newest_whole(out / CHECKPOINTS)
        assert record is not None and record.state.step == steps
        saved = record.state.transfers["split"], record.state.transfers["shortened"]
        # A run that is to end there plans and takes the same steps.
        recipe = RecipeOptions(max_steps=steps)
        run_until(data, tmp_path / f"first-{steps}", None, OFF, recipe=recipe, **fields)
        assert saved == counted(f"first-{steps}") and min(saved) > 0
        run_until(data, out, None, every(50), **fields)
        assert counted(out.name)[0] == counted("unbroken")[0]


def test_a_full_disk_keeps_the_checkpoint_before_and_training_goes_on(
    data: Path,
    tmp_path: Path,
    unbroken: Callable[..., dict[str, bytes]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    wanted = unbroken()
    calls = [0]

    def fails(path: Path, part: Any) -> Any:
        calls[0] += 1
        if 4 < calls[0] < 9:
            raise OSError(28, "No space left on device")
        return write_part(path, part)

    monkeypatch.setattr(writer, "write_part", fails)
    with caplog.at_level(logging.WARNING):
        run_until(data, tmp_path / "run", 30, every(2))
    assert "could not be written: No space left on device; that of step" in caplog.text
    # What the failed ones had to save is in those behind them.
    run_until(data, tmp_path / "run", None, every(2))
    assert results(tmp_path / "run") == wanted


def test_a_disk_without_room_is_refused_before_the_first_step(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_checkpoints, "_ROW_NAME_BYTES", 1 << 50)
    with pytest.raises(HotsetError, match=r"has no room for .* of checkpoints") as caught:
        run_until(data, tmp_path / "run", None, every(2))
    assert "--checkpoint-every off" in str(caught.value.hint)
    assert not (tmp_path / "run").exists()


def test_weights_that_are_not_finite_are_not_saved(data: Path, tmp_path: Path) -> None:
    with pytest.raises(HotsetError, match=r"not finite|training loss"):
        run_until(data, tmp_path / "run", None, every(1), embedding_lr=1e38, dense_lr=1e-9)
    # Nothing but what was finite can be resumed.
    record = newest_whole(tmp_path / "run" / CHECKPOINTS)
    assert record is None or record.state.step < NUM_STEPS


def test_a_loss_that_is_no_number_stops_at_its_batch_and_keeps_the_last_checkpoint(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = ShardSet.training_batch

    def poisoned(self: ShardSet, number: int) -> Any:
        batch = read(self, number)
        return replace(batch, dense_BK=batch.dense_BK * float("nan")) if number == 11 else batch

    monkeypatch.setattr(ShardSet, "training_batch", poisoned)
    with pytest.raises(HotsetError, match=r"the training loss is nan at step (\d+); the check") as caught:
        run_until(data, tmp_path / "run", None, every(1), log_every=50)
    record = newest_whole(tmp_path / "run" / CHECKPOINTS)
    assert record is not None and f"at step {record.state.step + 1};" in str(caught.value)
    assert f"--init-from {tmp_path / 'run'} " in str(caught.value.hint)
    monkeypatch.undo()
    train(data, TrainConfig(**FIELDS), tmp_path / "next", RunOptions(init_from=tmp_path / "run"))


@pytest.mark.parametrize("is_damaged", [False, True])
def test_an_unfinished_run_is_verified(
    tmp_path: Path, stopped: Callable[[Path, int], None], is_damaged: bool
) -> None:
    stopped(tmp_path / "run", 11)
    if is_damaged:
        (tmp_path / "run" / CHECKPOINTS / "dense-000000010.safetensors").write_bytes(b"")
    *damage, state = verify_run(tmp_path / "run")
    assert state.endswith(f"unfinished, and its command resumes it from step {5 if is_damaged else 10}")
    assert len(damage) == is_damaged and all(
        "dense-000000010.safetensors is damaged" in line for line in damage
    )


def test_a_run_stopped_before_its_first_checkpoint_begins_again(
    data: Path, tmp_path: Path, unbroken: Callable[..., dict[str, bytes]]
) -> None:
    run_until(data, tmp_path / "run", 3, every(5))
    run_until(data, tmp_path / "run", None, every(5))
    assert results(tmp_path / "run") == unbroken()


class Net(torch.nn.Module):
    """A module of a user, which drops other inputs in every step."""

    def __init__(self, inputs: ModelInputs) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(inputs.num_dense + inputs.total_dim, 1)
        self.drop = torch.nn.Dropout(0.3)

    def forward(self, dense: torch.Tensor, embeddings: dict[str, torch.Tensor]) -> torch.Tensor:
        logits: torch.Tensor = self.layer(self.drop(torch.cat([dense, *embeddings.values()], dim=1)))
        return logits.squeeze(1)


def check_resumed(data: Path, tmp_path: Path, source: Any = None, **fields: Any) -> None:
    """Compare a run that is stopped in its second epoch with one that is not."""
    run_until(data, tmp_path / "unbroken", None, OFF, source=source, **fields)
    for stop in (22, None):
        run_until(data, tmp_path / "stopped", stop, every(10), source=source, **fields)
    assert results(tmp_path / "stopped") == results(tmp_path / "unbroken")


HISTORIES: dict[str, Any] = {"model": "tbsm", "model_args": '{"history_length": 4}'}


@pytest.mark.parametrize(
    ("fields", "source"),
    [
        ({"model": "nets:Net"}, Net),
        (HISTORIES | {"placement": "cache"}, None),
        ({"model": "dcnv2", "dropout": 0.3, "batch_norm": True}, None),
        ({"recipe": RecipeOptions(warmup_steps=5, lr_schedule="cosine", clip_gradient=0.1)}, None),
        pytest.param(HISTORIES | {"device": "late:6"}, None, marks=pytest.mark.slow),
        pytest.param({"model": "dlrm", "dropout": 0.3}, None, marks=pytest.mark.slow),
    ],
)
def test_other_models_and_recipes_are_resumed_too(
    data: Path, tmp_path: Path, fields: dict[str, Any], source: Any
) -> None:
    check_resumed(data, tmp_path, source, **fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"placement": "lookahead"},
        pytest.param({"placement": "cache", "device": "late:4"}, marks=pytest.mark.slow),
        pytest.param({"placement": "hybrid", "slow_bytes": ByteSize(1)}, marks=pytest.mark.slow),
    ],
)
def test_rows_of_a_table_that_features_share_are_resumed_too(fields: dict[str, Any], tmp_path: Path) -> None:
    shared = replace(SPEC, num_rows=(300, 300, 400), num_hot=(3, 3, 5), multi_hot=(1,), same_table=(1,))
    write_shards(tmp_path / "shards", replace(shared, table_dims=(4, 2)))
    check_resumed(tmp_path, tmp_path, **fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "dcnv2", "placement": "cache", "loss_weights": "buy=0.2"},
        pytest.param({"placement": "lookahead"}, marks=pytest.mark.slow),
        pytest.param({"placement": "hybrid", "device": "late:4"}, marks=pytest.mark.slow),
    ],
)
def test_runs_with_weights_and_several_labels_are_resumed_too(fields: dict[str, Any], tmp_path: Path) -> None:
    write_shards(tmp_path / "shards", replace(SPEC, labels=("click", "buy"), has_weight=True))
    check_resumed(tmp_path, tmp_path, **fields)


@pytest.mark.slow
def test_processes_that_are_killed_end_with_the_bits_of_an_unbroken_run(
    data: Path, unbroken: Callable[..., dict[str, bytes]], tmp_path: Path
) -> None:
    """Real kills at random moments, from before the first step to the writing of the results."""
    words = {name.replace("_", "-"): str(value) for name, value in FIELDS.items()}
    words |= {"placement": "lookahead", "checkpoint-every": "2", "out": str(tmp_path / "out")}
    command = [sys.executable, "-m", "hotset", "train", str(data), "-q"]
    command += [word for name, value in words.items() for word in (f"--{name}", value)]
    rng = random.Random(3)
    num_killed = 0
    while True:
        process = subprocess.Popen(command, stderr=subprocess.PIPE)
        # Two checkpoints more are awaited, or the end; then the kill comes at any moment.
        seen = checkpoints_of(tmp_path / "out")
        while process.poll() is None and num_killed < 2 and len(checkpoints_of(tmp_path / "out") - seen) < 2:
            time.sleep(0.002)
        time.sleep(rng.random() * 0.02)
        if process.poll() is None and num_killed < 2:
            process.kill()
            num_killed += 1
        _, message = process.communicate()
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, message
    assert num_killed
    assert results(tmp_path / "out") == unbroken(placement="lookahead")


def checkpoints_of(out: Path) -> set[str]:
    """Names of the checkpoints of a run that is not finished."""
    return {path.name for path in (out / CHECKPOINTS).glob("*")} if out.is_dir() else set()


def test_steps_and_time_are_counted_from_the_last_checkpoint() -> None:
    assert [_is_over(5, steps, 1e9) for steps in (0, 4, 5, 6)] == [False, False, True, True]
    assert [_is_over(5.0, 1, seconds) for seconds in (0, 4.9, 5)] == [False, False, True]
    assert not _is_over(5.0, 0, 10)
    assert not _is_over(None, 10**9, 1e9)
