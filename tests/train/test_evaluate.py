"""Evaluating a finished run: nothing in its folder is trusted.

Runs on large shards begin at once, and end with a checkpoint where a batch turns out to be damaged.
"""

from __future__ import annotations

import errno
import json
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from hotset.pipeline.errors import ByteSize, ConfigError, HotsetError, ShardError
from hotset.pipeline.formats.batch_checksums import DamagedBatchError
from hotset.pipeline.generate.generate import GenerateConfig, generate
from hotset.pipeline.preprocess import PreprocessConfig, preprocess
from hotset.pipeline.runtime.tasks import Resources
from hotset.pipeline.stages.pack import PackConfig
from hotset.pipeline.stages.split import SplitConfig
from hotset.stats.metrics import losses
from hotset.tests.support.processes.ranked_runs import train_on_ranks
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.tests.support.thread_ranks import run_thread_ranks
from hotset.train import build_embeddings
from hotset.train.build import build_trainer
from hotset.train.config import TrainConfig
from hotset.train.data import shards as shards_module
from hotset.train.data.batch import read_batch_order
from hotset.train.data.shards import ShardSet
from hotset.train.evaluate import EvaluationCheck, evaluate
from hotset.train.loop import Trainer
from hotset.train.metrics import Quality, Scores
from hotset.train.ranks.ranks import OneRank, Ranks
from hotset.train.run import RunOptions, train
from hotset.train.run_folder.files import RunFolder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards and a run of each kind of placement on them."""
    folder = tmp_path_factory.mktemp("data")
    write_shards(folder / "shards")
    for placement in ("all-fast", "fae"):
        train(folder, TrainConfig(placement=placement, threads=1), folder / placement)
    return folder


@pytest.mark.parametrize("placement", ["all-fast", "fae"])
def test_the_scores_are_those_of_the_end_of_training(placement: str, data: Path) -> None:
    found = evaluate(data / placement, data).to_dict()
    summary = json.loads((data / placement / "summary.json").read_text())
    assert found == {name: summary[name] for name in found}
    assert {"auc", "pr_auc", "normalized_entropy", "calibration", "hot", "mixed", "oov"} < found.keys()


@pytest.mark.parametrize("slow_bytes", [None, 700])
def test_the_validation_part_is_scored_beside_the_test_part(slow_bytes: int | None, tmp_path: Path) -> None:
    write_shards(tmp_path / "shards", num_validation=40)
    config = TrainConfig(placement="fae", threads=1, evaluate_every=3)
    summary = train(tmp_path, config, tmp_path / "run").to_dict()
    found = evaluate(tmp_path / "run", tmp_path, slow_bytes=slow_bytes).to_dict()
    assert found == {name: summary[name] for name in found}
    assert (found["num_samples"], found["validation"]["num_samples"]) == (50, 40)
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    # Evaluations on the way are of the validation part alone, and so are the test losses of fae.
    assert [line["step"] for line in lines if "validation" in line] == [3, 6, 8]
    assert [line["step"] for line in lines if "evaluation" in line] == [8]
    trainer = build_trainer(ShardSet.open(tmp_path), TrainConfig())
    validation = trainer.predictor.score(part="validation")
    assert trainer.predictor.mean_loss(10**9) == validation.log_loss != trainer.predictor.score().log_loss


@pytest.mark.parametrize("slow_bytes", [0, 700, 3000])
def test_rows_that_do_not_fit_are_read_from_the_weights(slow_bytes: int, data: Path) -> None:
    # 345 rows of 16 bytes; at 0 each batch is read for by itself.
    assert evaluate(data / "fae", data, slow_bytes=slow_bytes) == evaluate(data / "fae", data)


def test_a_machine_too_small_for_the_rows_reads_them_too(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = evaluate(data / "fae", data)
    monkeypatch.setattr("hotset.train.evaluate.available_bytes", lambda: 6000)
    monkeypatch.setattr("hotset.train.evaluate.AllFast", lambda *_: pytest.fail("all were loaded"))
    assert evaluate(data / "fae", data) == wanted


def test_rows_of_several_widths_and_lists_are_read_too(tmp_path: Path) -> None:
    write_shards(tmp_path / "shards", table_dims=(4, 2, 4), multi_hot=(2,))
    train(tmp_path, TrainConfig(threads=1), tmp_path / "run")
    assert evaluate(tmp_path / "run", tmp_path, slow_bytes=900) == evaluate(tmp_path / "run", tmp_path)


def test_a_value_that_is_no_number_is_found_in_rows_that_are_not_loaded(data: Path, tmp_path: Path) -> None:
    run = copy_run(data, tmp_path / "run")
    weights = load_file(run / "weights.safetensors")
    weights["C3"][299, 1] = float("nan")
    save_file(weights, run / "weights.safetensors")
    with pytest.raises(HotsetError, match="C3 holds values that are not finite"):
        evaluate(sealed_again(run), data, slow_bytes=100)


@pytest.mark.parametrize("wanted", ["bf16", "auto"])
def test_a_run_in_bf16_is_evaluated_in_bf16(
    wanted: Any, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_embeddings, "cpu_features", lambda: frozenset({"amx_bf16"}))
    train(data, TrainConfig(placement="all-fast", threads=1, dense_dtype=wanted), tmp_path / "run")
    config = json.loads((tmp_path / "run/config.json").read_text())
    assert config["dense_dtype"] == config["config"]["dense_dtype"] == "bf16"
    found = evaluate(tmp_path / "run", data)
    assert found.log_loss == json.loads((tmp_path / "run/summary.json").read_text())["log_loss"]
    # The same weights in the other type score otherwise: evaluation read the type of the run.
    config["dense_dtype"] = "fp32"
    (tmp_path / "run/config.json").write_text(json.dumps(config))
    assert evaluate(sealed_again(tmp_path / "run"), data).log_loss != found.log_loss


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_rows": (5, 41, 300)}, "is C2 of 41 rows, 4 wide, the run has C2 of 40 rows"),
        ({"num_rows": (5, 40), "num_hot": (5, 10)}, "is nothing, the run has C3 of 300 rows"),
        ({"embedding_dim": 8}, "table 1 of .* is C1 of 5 rows, 8 wide, the run has C1 of 5 rows, 4 wide"),
        ({"num_dense": 1}, "has num_dense 1, the run 2"),
        ({"has_label": False}, "no labels"),
    ],
)
def test_shards_that_do_not_fit_the_run_are_refused(
    changes: dict[str, Any], message: str, data: Path, tmp_path: Path
) -> None:
    write_shards(tmp_path / "shards", **changes)
    with pytest.raises(ShardError, match=message):
        evaluate(data / "all-fast", tmp_path)


def test_a_run_is_evaluated_on_the_device_that_is_named(data: Path) -> None:
    assert evaluate(data / "fae", data, device="late") == evaluate(data / "fae", data)
    with pytest.raises(ConfigError, match="unknown device 'gpu'"):
        evaluate(data / "fae", data, device="gpu")


def test_other_samples_of_the_same_vocabulary_will_do(data: Path, tmp_path: Path) -> None:
    write_shards(tmp_path / "shards", seed=5, num_evaluation=33, num_hot=(1, 2, 3), batch_size=10)
    assert evaluate(data / "all-fast", tmp_path).num_samples == 33


def test_scores_of_hot_samples_are_by_the_hot_rows_of_the_run(tmp_path: Path) -> None:
    generate(GenerateConfig(samples=1500), tmp_path / "log.tsv", workers=1)
    recipe = PreprocessConfig(
        split=SplitConfig(hot_bytes=ByteSize(1000), embedding_dim=4), pack=PackConfig(order="original")
    )
    preprocess([tmp_path / "log.tsv"], recipe, tmp_path / "data", Resources(workers=1))
    hot = []
    for name, hot_bytes in (("packed", None), ("more", ByteSize(60_000))):
        config = TrainConfig(placement="all-fast", threads=1, hot_bytes=hot_bytes)
        summary = train(tmp_path / "data", config, tmp_path / name)
        found = evaluate(tmp_path / name, tmp_path / "data")
        assert (found.hot, found.mixed) == (summary.hot, summary.mixed)
        hot.append(found.hot.num_samples)
    assert hot[0] < hot[1] < summary.num_samples


def test_shards_without_evaluation_samples_have_no_scores(data: Path, tmp_path: Path) -> None:
    write_shards(tmp_path / "shards", num_evaluation=0)
    found = evaluate(data / "all-fast", tmp_path)
    assert (found.auc, found.log_loss, found.accuracy, found.num_samples) == (None, None, None, 0)


def copy_run(data: Path, target: Path) -> Path:
    target.mkdir()
    for path in (data / "all-fast").iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    return target


def test_weights_of_another_run_are_refused(data: Path, tmp_path: Path) -> None:
    write_shards(tmp_path / "shards", num_rows=(5, 41, 300))
    train(tmp_path, TrainConfig(threads=1), tmp_path / "other")
    run = copy_run(data, tmp_path / "run")
    (run / "weights.safetensors").write_bytes((tmp_path / "other" / "weights.safetensors").read_bytes())
    with pytest.raises(HotsetError, match=r"has [0-9]+ bytes, want"):
        evaluate(run, data)
    with pytest.raises(HotsetError, match="not those its config describes"):
        evaluate(sealed_again(run), data)


def sealed_again(run: Path) -> Path:
    """The run with a manifest that agrees with its files, as whoever changed them may write it."""
    RunFolder(run).finish(json.loads((run / "summary.json").read_text()))
    return run


VALUES: dict[str, tuple[Any, ...]] = {
    "threads": (10**6, 2**40, 0, -1, "x", 1.5, [1], None, True),
    "model": ("", "huge", "auto", 3, None, ["small"]),
    "embedding_dim": (0, -1, 2**40, "4", 4.0, None, [4]),
    "num_dense": (-1, 2**40, "2", 2.0, None, {}),
    "tables": (
        *({}, None, "C1", 3, [3], [{}], [[]]),
        *([{"name": "C1", "num_rows": rows, "embedding_dim": 4}] for rows in (0, -5, 2**40, "5", 5.0, None)),
        [{"name": 3, "num_rows": 5, "embedding_dim": 4}],
        [{"name": "C1", "num_rows": 5, "embedding_dim": 0}],
        [{"name": "C1", "num_rows": 5, "embedding_dim": 4}] * 2,
    ),
}
CONFIG_EDITS = {f"{key} {value!r}": (key, value) for key, values in VALUES.items() for value in values}
CONFIG_EDITS |= {f"no {key}": (key, ...) for key in VALUES}
CONFIG_EDITS |= {f"dense_dtype {value!r}": ("dense_dtype", value) for value in ("auto", "fp16", 16, None)}


@pytest.mark.parametrize("name", CONFIG_EDITS)
def test_a_config_no_run_writes_is_refused(name: str, data: Path, tmp_path: Path) -> None:
    run = copy_run(data, tmp_path / "run")
    key, value = CONFIG_EDITS[name]
    config = json.loads((run / "config.json").read_text())
    config[key] = value
    if value is ...:
        del config[key]
    (run / "config.json").write_text(json.dumps(config))
    with pytest.raises(HotsetError, match=rf"config\.json is damaged: {key}"):
        evaluate(sealed_again(run), data)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[" * 200_000, '"x"', "[]", "NaN", "{}", "1" * 5000, "\ufeff{}"],
    ids=lambda text: text[:3],
)
def test_a_config_that_is_no_config_is_refused(text: str, data: Path, tmp_path: Path) -> None:
    run = copy_run(data, tmp_path / "run")
    (run / "config.json").write_text(text)
    with pytest.raises(HotsetError, match=r"config\.json (is damaged|cannot be read): "):
        evaluate(run, data)


@pytest.mark.parametrize("name", ["config.json", "weights.safetensors", "manifest.json"])
def test_a_pipe_is_refused_and_not_waited_for(name: str, data: Path, tmp_path: Path) -> None:
    run = copy_run(data, tmp_path / "run")
    (run / name).unlink()
    os.mkfifo(run / name)
    with pytest.raises(HotsetError, match="not a plain file"):
        evaluate(run, data)


WEIGHT_EDITS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str]] = {
    "one row for all": (lambda rows: rows[:1], r"C2 has the shape \(1, 4\), want \(40, 4\)"),
    "one number for each row": (lambda rows: rows[:, :1], r"C2 has the shape \(40, 1\)"),
    "one vector": (lambda rows: rows[0], r"C2 has the shape \(4,\)"),
    "one number": (lambda rows: rows[0, 0], r"C2 has the shape \(\)"),
    "one row too few": (lambda rows: rows[1:], r"C2 has the shape \(39, 4\)"),
    "transposed": (lambda rows: rows.T.contiguous(), r"C2 has the shape \(4, 40\)"),
    "int32": (lambda rows: rows.int(), "C2 holds I32, want F32"),
    "float64": (lambda rows: rows.double(), "C2 holds F64, want F32"),
    "bfloat16": (lambda rows: rows.bfloat16(), "C2 holds BF16, want one of F32"),
    "not a number": (lambda rows: rows * float("nan"), "C2 holds values that are not finite"),
    "infinite": (lambda rows: rows / 0, "C2 holds values that are not finite"),
}


@pytest.mark.parametrize("name", WEIGHT_EDITS)
def test_weights_of_another_shape_or_kind_are_refused(name: str, data: Path, tmp_path: Path) -> None:
    run = copy_run(data, tmp_path / "run")
    edit, message = WEIGHT_EDITS[name]
    weights = load_file(run / "weights.safetensors")
    weights["C2"] = edit(weights["C2"]).clone()
    save_file(weights, run / "weights.safetensors")
    with pytest.raises(HotsetError, match=message):
        evaluate(sealed_again(run), data)


@pytest.mark.parametrize("edit", ["missing table", "more", "missing layer", "layer of another shape"])
def test_other_tensors_are_refused(edit: str, data: Path, tmp_path: Path) -> None:
    run = copy_run(data, tmp_path / "run")
    weights = load_file(run / "weights.safetensors")
    layer = next(name for name in weights if name.startswith("dense.") and name.endswith("bias"))
    match edit:
        case "missing table":
            del weights["C3"]
        case "more":
            weights["C4"] = weights["C3"].clone()
        case "missing layer":
            del weights[layer]
        case _:
            weights[layer] = weights[layer][:1].clone()
    save_file(weights, run / "weights.safetensors")
    with pytest.raises(HotsetError, match=r"not those its config describes: .* has the shape"):
        evaluate(sealed_again(run), data)


@pytest.mark.parametrize("name", ["config.json", "weights.safetensors"])
def test_a_flipped_bit_is_refused_by_name(name: str, data: Path, tmp_path: Path) -> None:
    run = copy_run(data, tmp_path / "run")
    flipped = bytearray((run / name).read_bytes())
    # A digit of the config, or a mantissa bit of the last weight: both still make sense.
    place = flipped.index(b'"seed": 0') + 8 if name == "config.json" else len(flipped) - 4
    flipped[place] ^= 1
    (run / name).write_bytes(flipped)
    with pytest.raises(HotsetError, match=f"{name} is damaged: its checksum is"):
        evaluate(run, data)


def test_the_manifest_of_a_stage_is_no_run(data: Path, tmp_path: Path) -> None:
    run = copy_run(data, tmp_path / "run")
    (run / "manifest.json").write_bytes((data / "shards" / "manifest.json").read_bytes())
    with pytest.raises(HotsetError, match="holds 'pack' of version 1, want 'train' of 1"):
        evaluate(run, data)


def test_an_unfinished_run_is_refused(data: Path, tmp_path: Path) -> None:
    with pytest.raises(HotsetError, match="no training run"):
        evaluate(tmp_path, data)


@pytest.fixture
def trainer(tmp_path: Path) -> Trainer:
    return build_trainer(ShardSet.open(write_shards(tmp_path / "shards")), TrainConfig())


def test_every_evaluation_batch_is_predicted_in_log_order(trainer: Trainer) -> None:
    shards = trainer.shards
    found = list(trainer.predictor.logits())
    assert len(found) == shards.num_evaluation_batches and sum(logit_B.size for _, logit_B in found) == 90
    for number, (batch, logit_B) in enumerate(found):
        assert batch.label_B.equal(shards.evaluation_batch(number).label_B)
        assert logit_B.dtype == np.float32 and logit_B.shape == (batch.num_samples,)


def test_the_first_samples_are_cut_inside_a_batch(trainer: Trainer) -> None:
    logit_N = np.concatenate([logit_B for _, logit_B in trainer.predictor.logits()])
    label_N = np.concatenate([batch.label_B.numpy() for batch, _ in trainer.predictor.logits()])
    assert trainer.predictor.score(40).num_samples == 40
    assert trainer.predictor.mean_loss(40) == pytest.approx(losses(logit_N[:40], label_N[:40]).mean())


def test_hot_and_mixed_samples_are_scored_apart(trainer: Trainer) -> None:
    quality = trainer.predictor.score()
    hot, mixed = quality.hot, quality.mixed
    assert 0 < hot.num_samples < 90 and hot.num_samples + mixed.num_samples == quality.num_samples == 90
    assert hot.log_loss is not None and mixed.log_loss is not None
    mean = (hot.log_loss * hot.num_samples + mixed.log_loss * mixed.num_samples) / 90
    assert quality.log_loss == pytest.approx(mean)


@pytest.mark.parametrize("multi_hot", [(), (0,), (0, 2)])
def test_samples_with_an_out_of_vocabulary_lookup_are_scored_apart(
    multi_hot: tuple[int, ...], tmp_path: Path
) -> None:
    shards = ShardSet.open(
        write_shards(
            tmp_path / "shards", multi_hot=multi_hot, num_rows=(5, 9, 40), skew=1.1, num_hot=(5, 9, 20)
        )
    )
    oov = [4, 8, 39]
    wanted = 0
    for number in range(shards.num_evaluation_batches):
        batch = shards.evaluation_batch(number)
        one_hot = [table for table in range(3) if table not in multi_hot]
        for sample in range(batch.num_samples):
            lookups = [batch.ids_BF[sample, column] == oov[table] for column, table in enumerate(one_hot)]
            for bags, table in zip(batch.bags, multi_hot, strict=True):
                first, stop = bags.offsets_B1[sample : sample + 2]
                lookups += [found == oov[table] for found in bags.ids_N[first:stop]]
            wanted += any(lookups)
    found = build_trainer(shards, TrainConfig()).predictor.score().oov.num_samples
    assert 0 < wanted < 90 and found == wanted


def test_without_samples_no_score_is_defined(tmp_path: Path) -> None:
    empty = write_shards(tmp_path / "empty", num_evaluation=0)
    trainer = build_trainer(ShardSet.open(empty), TrainConfig())
    assert trainer.predictor.score() == Quality(hot=Scores(), mixed=Scores(), oov=Scores())
    assert trainer.predictor.mean_loss(100) is None


def test_predicting_is_counted_as_evaluation_and_changes_nothing(tmp_path: Path) -> None:
    shards = ShardSet.open(write_shards(tmp_path / "shards"))
    trainer = build_trainer(shards, TrainConfig(placement="hybrid"))
    before = trainer.embeddings.groups[0].slow.weights_SD.clone()
    trainer.predictor.score()
    assert trainer.meter.bytes_to_fast["evaluation"] == 90 * 3 * 4 * 4
    assert trainer.meter.training_bytes() == (0, 0)
    assert trainer.embeddings.groups[0].slow.weights_SD.equal(before)


CONFIG = TrainConfig(threads=1, log_every=2, placement="all-fast", epochs=2, seed=3, micro_batches=2)


@pytest.fixture(autouse=True)
def _large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let shards of any size be large ones."""
    monkeypatch.setattr(shards_module, "_HASHED_FIRST_BYTES", 0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_shards(tmp_path / "shards")


@contextmanager
def flipped(folder: Path, name: str, place: int) -> Iterator[None]:
    """Flip a bit inside the block."""
    path = folder / name
    whole = path.read_bytes()
    path.write_bytes(whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :])
    try:
        yield
    finally:
        path.write_bytes(whole)


def place_of_step(folder: Path, order: Any, step: int) -> tuple[str, int]:
    """File and position of a dense value of the batch of a step."""
    shards = ShardSet.open(folder)
    position = shards._training[int(order[step])]
    file = shards._files[position.file]
    assert file._stored is not None
    stored = file._stored.batch(position.file, position.index)
    return file.path.name, stored.start + stored.layout.buffers["dense", "values"].start + 3


def weights_of(run: Path) -> bytes:
    return (run / "weights.safetensors").read_bytes()


@pytest.mark.parametrize("step", [0, 7, 15])
def test_a_damaged_batch_ends_the_run_with_a_checkpoint(step: int, folder: Path, tmp_path: Path) -> None:
    train(folder, CONFIG, tmp_path / "unbroken")
    order = read_batch_order(tmp_path / "unbroken" / "batch_order.npy")
    # The batch of the second epoch was read in the first, before it was damaged.
    name, place = place_of_step(folder, order, step)
    first = min(number for number, batch in enumerate(order.tolist()) if batch == order[step])
    with flipped(folder, name, place), pytest.raises(DamagedBatchError) as refused:
        train(folder, CONFIG, tmp_path / "run")
    assert str(refused.value).startswith(f"{folder / name} is damaged: batch ")
    assert "dense of samples 0 to 31" in str(refused.value)
    # The thread that reads ahead meets the batch a few steps before its turn.
    kept = re.search(r"; the checkpoint of step (\d+) is kept$", str(refused.value))
    # The first batches are looked at before a run begins.
    assert (tmp_path / "run" / "config.json").exists() == (step > 0)
    if kept:
        assert 0 < int(kept[1]) <= first
        assert refused.value.hint is not None
        assert refused.value.hint.endswith("; then the same command resumes the run")
    assert kept or first < 6
    train(folder, CONFIG, tmp_path / "run")
    assert weights_of(tmp_path / "run") == weights_of(tmp_path / "unbroken")


def test_damaged_evaluation_shards_end_the_run_in_its_first_steps(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(folder, CONFIG, tmp_path / "unbroken")
    hashed = threading.Event()
    work = EvaluationCheck._work

    def working(check: EvaluationCheck) -> None:
        work(check)
        hashed.set()

    def wait_after_two(stage: str, done: int, total: int, note: str = "", step: int = 0, /) -> None:
        if step == 2:
            assert hashed.wait(10)

    monkeypatch.setattr(EvaluationCheck, "_work", working)
    with flipped(folder, "evaluation-00000.arrow", 2000), pytest.raises(ShardError) as refused:
        train(folder, CONFIG, tmp_path / "run", RunOptions(progress=wait_after_two))
    assert "evaluation-00000.arrow is damaged: its checksum is" in str(refused.value)
    assert "; the checkpoint of step 2 is kept" in str(refused.value) or "of step 1 " in str(refused.value)
    train(folder, CONFIG, tmp_path / "run")
    assert weights_of(tmp_path / "run") == weights_of(tmp_path / "unbroken")


def test_verify_hashes_all_before_the_first_step(folder: Path, tmp_path: Path) -> None:
    for name in ("mixed-00000.arrow", "evaluation-00000.arrow"):
        with (
            flipped(folder, name, 2000),
            pytest.raises(HotsetError, match=rf"{name} is damaged: its checksum"),
        ):
            train(folder, CONFIG, tmp_path / "run", RunOptions(verify=True))
        assert not (tmp_path / "run").exists()


def test_small_shards_and_old_ones_are_hashed_first(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not ShardSet.open(folder).verify()
    assert ShardSet.open(folder).verify(is_first=True)
    assert ShardSet.open(write_shards(tmp_path / "old", has_checksums=False)).verify()
    monkeypatch.setattr(shards_module, "_HASHED_FIRST_BYTES", 2**20)
    assert ShardSet.open(folder).verify()


@pytest.mark.parametrize("kind", ["training", "evaluation"])
def test_all_ranks_save_what_one_of_them_cannot_read(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_shards(tmp_path / "shards", ShardSpec(num_mixed=800))
    train(folder, CONFIG, tmp_path / "unbroken")
    order = read_batch_order(tmp_path / "unbroken" / "batch_order.npy")
    # The last batch of an epoch: others may be read ahead before a first step is there to be saved.
    name, place = place_of_step(folder, order, len(order) // 2 - 1)
    if kind == "evaluation":
        name, place = "evaluation-00000.arrow", 2000
    with flipped(folder, name, place), pytest.raises(ShardError, match=rf"{name} is damaged: .*is kept"):
        train_on_ranks(2, monkeypatch, folder, CONFIG, tmp_path / "run")
    train_on_ranks(2, monkeypatch, folder, CONFIG, tmp_path / "run")
    assert weights_of(tmp_path / "run") == weights_of(tmp_path / "unbroken")


def test_the_check_leaves_files_when_the_run_ends(folder: Path) -> None:
    check = EvaluationCheck(ShardSet.open(folder), OneRank())
    check.wait()
    check.wait()
    check.close()
    with flipped(folder, "evaluation-00000.arrow", 2000):
        check = EvaluationCheck(ShardSet.open(folder), OneRank())
        with pytest.raises(ShardError, match="evaluation-00000"):
            check.wait()
        check.close()


def test_ranks_wait_for_one_that_hashes_longer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed = threading.Event()
    work = EvaluationCheck._work

    def working(check: EvaluationCheck) -> None:
        if check._ranks.rank:
            hashed.wait(0.6)
        work(check)

    monkeypatch.setattr(EvaluationCheck, "_work", working)

    def check(ranks: Ranks) -> None:
        EvaluationCheck(ShardSet.open(folder), ranks).wait()

    run_thread_ranks(2, check, timeout_seconds=0.3)


def test_a_file_that_is_gone_or_cannot_be_opened_ends_the_run_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = ShardSet.open(folder)
    (folder / "evaluation-00000.arrow").rename(folder / "away")
    check = EvaluationCheck(shards, OneRank())
    with pytest.raises(ShardError, match=r"evaluation-00000\.arrow cannot be read: .*No such file"):
        check.wait()

    def none_left(path: Path) -> tuple[int, str]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))

    # What the system lacks is no HotsetError of shards, but stops all ranks in the same way.
    monkeypatch.setattr(shards_module, "hash_file", none_left)
    check = EvaluationCheck(shards, OneRank())
    with pytest.raises(ShardError, match="open files"):
        check.wait()
