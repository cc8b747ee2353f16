"""Training from shards to a run folder: also `run`, `run`, `run_log` and `run_log`."""

from __future__ import annotations

import json
import re
import shutil
import signal
import threading
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

from hotset.pipeline.errors import ByteSize, HotsetError, ManifestError, SaidElsewhereError
from hotset.tests.support.shard_factory import write_shards
from hotset.tests.support.thread_ranks import run_thread_ranks
from hotset.train import run
from hotset.train.config import TrainConfig
from hotset.train.config_parts import CheckpointSettings, ExchangeOptions
from hotset.train.data.batch import Batch
from hotset.train.data.shards import ShardSet
from hotset.train.model.gradients import DenseDtype, cpu_features, has_bf16
from hotset.train.ranks.ranks import Ranks
from hotset.train.run import RunOptions, train

FIELDS: dict[str, Any] = {"threads": 1, "log_every": 2}


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_shards(folder / "shards")
    return folder


def lines_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_a_run_folder_holds_all_of_a_run(shards: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    summary = train(shards, TrainConfig(evaluate_every=3, **FIELDS), out).to_dict()
    assert json.loads((out / "summary.json").read_text()) == summary
    wanted = "auc log_loss accuracy num_samples placement samples_per_second bytes_to_fast bytes_to_slow run"
    assert set(wanted.split()) <= summary.keys()
    assert (summary["num_samples"], summary["num_training_samples"], summary["num_steps"]) == (90, 220, 8)
    config = json.loads((out / "config.json").read_text())
    assert (config["threads"], config["model"], config["config"]["log_every"]) == (1, "small", 2)
    losses = [line["step"] for line in lines_of(out) if "loss" in line]
    evaluations = [line["step"] for line in lines_of(out) if "evaluation" in line]
    assert (losses, evaluations) == ([2, 4, 6, 8], [3, 6, 8])
    assert lines_of(out)[-1]["evaluation"]["auc"] == summary["auc"]
    assert sorted(np.load(out / "batch_order.npy").tolist()) == list(range(8))


def test_a_run_in_slow_bf16_is_warned_of(
    shards: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_bf16(cpu_features()):
        pytest.skip("this CPU has no instructions for bf16")
    monkeypatch.setattr(run, "cpu_features", lambda: frozenset({"GenuineIntel", "avx512f", "avx512_bf16"}))
    dtypes: tuple[DenseDtype, ...] = ("fp32", "bf16")
    for dtype in dtypes:
        train(shards, TrainConfig(dense_dtype=dtype, **FIELDS), tmp_path / dtype)
        assert ("bf16 is about half as fast" in caplog.text) == (dtype == "bf16")


@pytest.mark.parametrize(("scale", "is_large"), [(1.0, False), (1e9, True)])
def test_dense_values_that_are_too_large_are_noticed(
    scale: float,
    is_large: bool,
    shards: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read = ShardSet.training_batch

    def scaled(self: ShardSet, number: int) -> Batch:
        batch = read(self, number)
        return replace(batch, dense_BK=batch.dense_BK.abs() * torch.tensor([1.0, scale]))

    monkeypatch.setattr(ShardSet, "training_batch", scaled)
    train(shards, TrainConfig(**FIELDS), tmp_path / "run")
    said = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    values = [line for line in said if line.startswith("values of the dense feature I2 are as large as ")]
    losses = [line for line in said if line.startswith("the training loss is ") and "at step 2," in line]
    assert (len(values), len(losses)) == (is_large, is_large), said


def test_one_process_warns_of_a_codec_that_it_has_no_use_for(
    shards: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = TrainConfig(**FIELDS)
    train(shards, config, tmp_path / "exact", RunOptions(exchange=ExchangeOptions()))
    assert "--exchange" not in caplog.text
    train(shards, config, tmp_path / "coded", RunOptions(exchange=ExchangeOptions(exchange="int8")))
    assert "one process sends nothing: --exchange changes nothing in this run" in caplog.text
    weights = [(tmp_path / name / "weights.safetensors").read_bytes() for name in ("exact", "coded")]
    assert weights[0] == weights[1]


def test_settings_that_ranks_do_not_share_are_told_by_one_of_them(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_thread = threading.local()
    monkeypatch.setattr(run, "joined_ranks", lambda _: nullcontext(of_thread.ranks))

    def work(ranks: Ranks) -> HotsetError:
        of_thread.ranks = ranks
        with pytest.raises(HotsetError) as caught:
            train(shards, TrainConfig(epochs=1 + ranks.rank % 2, **FIELDS), tmp_path / "run")
        return caught.value

    first, *others = run_thread_ranks(4, work)
    assert str(first) == "ranks 1, 3 differ from rank 0 in epochs"
    assert all(isinstance(error, SaidElsewhereError) for error in others)
    assert not (tmp_path / "run").exists()


def test_weights_are_tables_in_id_order_under_their_names(shards: Path, tmp_path: Path) -> None:
    for placement in ("all-fast", "hybrid"):
        train(shards, TrainConfig(placement=placement, **FIELDS), tmp_path / placement)
    first, second = (
        (tmp_path / name / "weights.safetensors").read_bytes() for name in ("all-fast", "hybrid")
    )
    assert first == second
    with safe_open(tmp_path / "hybrid" / "weights.safetensors", "np") as file:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}
        assert file.metadata() is None
    assert [shapes[name] for name in ("C1", "C2", "C3")] == [(5, 4), (40, 4), (300, 4)]
    assert shapes["dense.bottom.0.weight"] == (64, 2)


def test_a_recorded_order_is_replayed(shards: Path, tmp_path: Path) -> None:
    train(shards, TrainConfig(placement="fae", seed=4, **FIELDS), tmp_path / "fae")
    train(shards, TrainConfig(seed=4, **FIELDS), tmp_path / "replay", RunOptions(replay=tmp_path / "fae"))
    for name in ("weights.safetensors", "batch_order.npy"):
        assert (tmp_path / "fae" / name).read_bytes() == (tmp_path / "replay" / name).read_bytes()
    assert json.loads((tmp_path / "replay" / "config.json").read_text())["is_replay"]


def test_a_recorded_order_that_was_changed_is_refused(shards: Path, tmp_path: Path) -> None:
    train(shards, TrainConfig(**FIELDS), tmp_path / "run")
    path = tmp_path / "run" / "batch_order.npy"
    whole = path.read_bytes()
    # Two batches change places: an order as good as any, but not that of the run.
    path.write_bytes(whole[:-8] + whole[-4:] + whole[-8:-4])
    with pytest.raises(ManifestError, match=r"batch_order\.npy is damaged: its checksum is"):
        train(shards, TrainConfig(**FIELDS), tmp_path / "replay", RunOptions(replay=tmp_path / "run"))
    assert not (tmp_path / "replay").exists()


def test_progress_is_in_samples_of_all_epochs(shards: Path, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    train(
        shards,
        TrainConfig(epochs=2, **FIELDS),
        tmp_path / "run",
        RunOptions(progress=lambda *call: seen.append(call[:3])),
    )
    assert [call for call in seen if call[0] == "train"][-1] == ("train", 440, 440)
    assert sum(call[0] == "train" for call in seen) == 16
    # The evaluation at the end is shown, too, in samples of the evaluation part.
    assert seen[-1] == ("evaluate", 90, 90) and seen[-2][0] == "evaluate"


def test_progress_notes_the_last_loss_and_auc(shards: Path, tmp_path: Path) -> None:
    notes: list[str] = []
    config = TrainConfig(**FIELDS | {"log_every": 2, "evaluate_every": 4})
    train(shards, config, tmp_path / "run", RunOptions(progress=lambda *call: notes.append(call[3])))
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    aucs = [line["evaluation"]["auc"] for line in lines if "evaluation" in line]
    # The loss is known from the first step on, the AUC from the fourth on.
    assert notes[0].startswith("loss ") and notes[1] == f"loss {losses[0]:.4f}"
    assert f"loss {losses[1]:.4f}, AUC {aucs[0]:.4f}" in notes
    assert notes[-1].startswith(f"loss {losses[-1]:.4f}")


def test_progress_of_a_short_run_notes_the_mean_loss_so_far(shards: Path, tmp_path: Path) -> None:
    notes: list[str] = []
    config = TrainConfig(**FIELDS | {"log_every": 1_000})
    train(shards, config, tmp_path / "run", RunOptions(progress=lambda *call: notes.append(call[3])))
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    # The only line of the run is that at its end, which the last step showed before.
    (loss,) = [line["loss"] for line in lines if "loss" in line]
    assert f"loss {loss:.4f}" in notes


def test_an_occupied_folder_is_refused_before_training(shards: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")

    def fail(*_: object) -> None:
        raise AssertionError("trained")

    with pytest.raises(HotsetError, match="is not empty"):
        train(shards, TrainConfig(**FIELDS), tmp_path, RunOptions(progress=fail))


def test_the_last_losses_are_logged_too(shards: Path, tmp_path: Path) -> None:
    train(shards, TrainConfig(threads=1, log_every=5), tmp_path / "run")
    assert [line["step"] for line in lines_of(tmp_path / "run") if "loss" in line] == [5, 8]


def test_a_diverging_run_stops_with_a_hint(shards: Path, tmp_path: Path) -> None:
    with pytest.raises(HotsetError, match="training loss") as stopped:
        train(shards, TrainConfig(embedding_lr=1e30, dense_lr=1e30, **FIELDS), tmp_path / "run")
    assert stopped.value.hint is not None and "--embedding-lr" in stopped.value.hint


def test_without_evaluation_samples_there_are_no_scores(tmp_path: Path) -> None:
    write_shards(tmp_path / "shards", num_evaluation=0)
    summary = train(tmp_path, TrainConfig(placement="fae", **FIELDS), tmp_path / "run").to_dict()
    assert (summary["auc"], summary["log_loss"], summary["accuracy"], summary["num_samples"]) == (
        None,
        None,
        None,
        0,
    )
    assert summary["test_losses"] == []
    assert "NaN" not in (tmp_path / "run" / "summary.json").read_text()


def test_a_flipped_bit_in_any_shard_is_refused_by_name(tmp_path: Path) -> None:
    shards = write_shards(tmp_path / "shards")
    for path in sorted(shards.glob("*.arrow")):
        whole = path.read_bytes()
        damaged = bytearray(whole)
        damaged[len(whole) // 2] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(HotsetError, match=path.name):
            train(shards, TrainConfig(), tmp_path / "run")
        assert not (tmp_path / "run").exists()
        path.write_bytes(whole)


@pytest.mark.parametrize("staging_bytes", [1, 64])
def test_batches_in_passes_are_told_with_the_size_that_would_do(
    staging_bytes: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shards = write_shards(tmp_path / "shards", skew=1.1, batch_size=64, embedding_dim=64)
    few = TrainConfig(staging_bytes=ByteSize(staging_bytes), **FIELDS)
    assert train(shards, few, tmp_path / "few").transfers.split > 0
    (enough,) = re.findall(r"--staging-bytes (\d+)KiB would be enough", caplog.text)
    more = TrainConfig(staging_bytes=ByteSize(int(enough) * 1024), **FIELDS)
    assert train(shards, more, tmp_path / "more").transfers.split == 0


def test_a_loss_that_is_no_number_is_blamed_on_damaged_shards_first(tmp_path: Path) -> None:
    """A file that was overwritten under the run, here one of evaluation, which no step has read."""
    folder = write_shards(tmp_path / "shards")

    def overwrite(*_: object) -> None:
        path = folder / "evaluation-00000.arrow"
        path.write_bytes(path.read_bytes()[::-1])

    config = TrainConfig(embedding_lr=1e30, dense_lr=1e30, **FIELDS)
    with pytest.raises(HotsetError, match=r"evaluation-00000\.arrow is damaged: its checksum"):
        train(folder, config, tmp_path / "run", RunOptions(progress=overwrite))


def test_an_interrupt_after_the_seal_leaves_no_checkpoint(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove = shutil.rmtree

    def interrupted(path: Path) -> None:
        signal.raise_signal(signal.SIGINT)
        remove(path)

    out = tmp_path / "run"
    monkeypatch.setattr("hotset.train.run_folder.files.shutil.rmtree", interrupted)
    settings = CheckpointSettings(checkpoint_every=2)
    summary = train(shards, TrainConfig(**FIELDS), out, RunOptions(checkpoints=settings))
    assert summary.num_steps == 8 and (out / "manifest.json").exists()
    assert not (out / "checkpoints").exists()
