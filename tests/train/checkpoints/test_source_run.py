"""A run that starts from another: its weights and states under new ids, and what does not fit is refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from safetensors.torch import load_file

from hotset.pipeline.errors import KIB, ByteSize, ConfigError, HotsetError, ShardError
from hotset.pipeline.generate.generate import GenerateConfig, generate
from hotset.tests.support.processes.ranked_runs import train_on_ranks
from hotset.tests.support.processes.stopped_runs import WITH_LOG, assert_same_files, train_until
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.train.checkpoints.source_run import _open_maps, open_source
from hotset.train.config import TrainConfig
from hotset.train.data.shards import Shards, vocabulary_of
from hotset.train.model.choose_model import choose_model
from hotset.train.run import RunOptions, train
from hotset.train.run_config import read_config
from hotset.train.run_folder.files import RunFolder
from hotset.train.verify_run import verify_run
from hotset.workflows.cli import main

SPEC = ShardSpec(num_rows=(5, 40, 300), num_hot=(5, 10, 20), table_dims=(4, 2, 4))
FIELDS: dict[str, Any] = {"threads": 1, "embedding_optimizer": "adagrad", "staging_bytes": ByteSize(4 * KIB)}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_shards(folder / "shards", SPEC)
    return folder


@pytest.fixture(scope="module")
def first(data: Path) -> Path:
    train(data, TrainConfig(**FIELDS), data / "first")
    return data / "first"


def test_a_finished_run_has_the_states_of_its_optimizers(first: Path) -> None:
    states = load_file(first / "states.safetensors")
    assert states["C3"].shape == (300, 4) and states["C2"].shape == (40, 2) and states["C3"].max() > 0
    assert states["optimizer.bottom.0.weight exp_avg"].shape == (64, 2)
    assert verify_run(first) == []


@pytest.mark.parametrize(
    "fields",
    [
        {"placement": "all-fast"},
        {"placement": "hybrid"},
        {"placement": "lookahead"},
        {"placement": "cache"},
        {"placement": "lookahead", "slow_bytes": ByteSize(80 * KIB)},
    ],
)
def test_two_runs_of_an_epoch_end_with_the_bits_of_one_of_two(
    data: Path, first: Path, tmp_path: Path, fields: dict[str, Any]
) -> None:
    # The second epoch of a run, repeated by one that starts from the first epoch and replays its order.
    train(data, TrainConfig(**FIELDS | {"epochs": 2}), tmp_path / "both")
    order = np.load(tmp_path / "both" / "batch_order.npy")
    half = order.size // 2
    shutil.copytree(first, tmp_path / "replayed")
    np.save(tmp_path / "replayed" / "batch_order.npy", order[half:])
    RunFolder(tmp_path / "replayed").seal()
    train(
        data,
        TrainConfig(**FIELDS | fields),
        tmp_path / "second",
        RunOptions(init_from=first, replay=tmp_path / "replayed"),
    )
    assert_same_files(tmp_path / "second", tmp_path / "both")


def test_a_run_that_starts_from_another_is_resumed_with_the_same_bits(
    data: Path, first: Path, tmp_path: Path
) -> None:
    config = TrainConfig(**FIELDS)
    train(data, config, tmp_path / "unbroken", RunOptions(init_from=first))
    train_until(101, data, config, tmp_path / "run", every=2, init_from=first)
    with pytest.raises(HotsetError, match="other settings: init_from"):
        train(data, config, tmp_path / "run")
    train(data, config, tmp_path / "run", RunOptions(init_from=first))
    assert_same_files(tmp_path / "run", tmp_path / "unbroken", WITH_LOG)


def test_ranks_start_from_a_run_as_one_process_does(
    data: Path, first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = TrainConfig(**FIELDS | {"micro_batches": 4})
    train(data, config, tmp_path / "alone", RunOptions(init_from=first))
    train_on_ranks(4, monkeypatch, data, config, tmp_path / "ranks", init_from=first)
    assert_same_files(tmp_path / "ranks", tmp_path / "alone")


def source_of(run: Path, shards: Shards, **fields: Any) -> Any:
    config = TrainConfig(**FIELDS | fields)
    model = choose_model(config, shards.embedding_dim)
    return open_source(run, shards, config.optimizers("sgd"), model)


def test_an_unfinished_run_gives_its_last_checkpoint(data: Path, tmp_path: Path) -> None:
    train_until(91, data, TrainConfig(**FIELDS), tmp_path / "run", every=1)
    shards = Shards.open(data)
    rows = list(source_of(tmp_path / "run", shards).rows())
    # Those that were changed, and behind them every row with its initial values.
    count = sum(part.ids_N.size for part in rows)
    assert count > 345
    assert [part.ids_N.size for part in rows[-3:]] == [5, 40, 300]
    train(data, TrainConfig(**FIELDS), tmp_path / "next", RunOptions(init_from=tmp_path / "run"))


def test_states_of_another_optimizer_begin_anew(data: Path, first: Path) -> None:
    shards = Shards.open(data)
    source = source_of(first, shards, embedding_optimizer="adam", dense_optimizer="sgd")
    assert all(not part.state_NW.any() for part in source.rows())
    assert {part.state_NW.shape[1] for part in source.rows()} == {9, 5}
    assert not any(name.startswith("optimizer.") for name in source.dense)
    kept = source_of(first, shards)
    assert any(part.state_NW.any() for part in kept.rows())
    assert any(name.startswith("optimizer.") for name in kept.dense)


def test_what_does_not_fit_is_refused_before_anything_is_allocated(
    data: Path, first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hotset.train.run.build_trainer", lambda *_: pytest.fail("it was built"))
    others: list[tuple[dict[str, Any], str]] = [
        ({"num_rows": (5, 41, 300)}, r"has 41 rows of C2, .* has 40"),
        ({"table_dims": (4, 4, 4)}, r"table 2 of .* is C2, 4 wide, the run has C2, 2 wide"),
        ({"num_dense": 3}, "has num_dense 3"),
    ]
    for changes, message in others:
        with pytest.raises(ShardError, match=message):
            source_of(first, Shards.open(write_shards(tmp_path / message[:9], replace(SPEC, **changes))))
    with pytest.raises(ConfigError, match=r"the model of .* has bottom_widths"):
        source_of(first, Shards.open(data), bottom_mlp=(8, 4))
    (tmp_path / "file").touch()
    for folder, found in (
        ("nothing", "does not exist"),
        ("file", "is not a folder"),
        (".", "holds no train"),
    ):
        with pytest.raises(HotsetError, match=found):
            source_of(tmp_path / folder, Shards.open(data))
    damaged = shutil.copytree(first, tmp_path / "damaged")
    whole = (damaged / "states.safetensors").read_bytes()
    (damaged / "states.safetensors").write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(HotsetError, match=r"states\.safetensors is damaged"):
        source_of(damaged, Shards.open(data))


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two days, preprocessed and trained; then a third one with the map of its ids."""
    folder = tmp_path_factory.mktemp("days")
    for day in range(3):
        generate(GenerateConfig(samples=900, seed=day, scale=200), folder / f"day_{day}", workers=1)
    logs = [str(folder / f"day_{day}") for day in range(3)]
    common = ["--eval-files", "1", "--hot-bytes", "32KiB", "--batch-size", "128", "--workers", "1", "-q"]
    assert main(["preprocess", *logs[:2], "--out", str(folder / "dir"), *common]) == 0
    assert main(["train", str(folder / "dir"), "--out", str(folder / "run"), "--threads", "1", "-q"]) == 0
    shutil.copytree(folder / "dir", folder / "old")
    extend = ["preprocess", *logs, "--out", str(folder / "dir"), "--extend", *common]
    assert main(extend) == 0
    return folder


def test_rows_keep_their_categories_and_new_ones_begin_anew(days: Path) -> None:
    shards = Shards.open(days / "dir")
    config = TrainConfig(threads=1)
    source = open_source(
        days / "run",
        shards,
        config.optimizers(shards.embedding_optimizer),
        choose_model(config, shards.embedding_dim),
    )
    weights = load_file(days / "run" / "weights.safetensors")
    for part in source.rows():
        table = shards.tables[int(part.tables_N[0])]
        new_id = (
            pa.ipc.open_file(days / "dir" / "id_map" / f"{table.name}.arrow")
            .get_batch(0)["new_id"]
            .to_numpy()
        )
        kept = new_id >= 0
        assert np.array_equal(part.ids_N, new_id[kept]) and kept.any()
        assert np.array_equal(part.weights_ND, weights[table.name].numpy()[kept])
        # Places of the old categories in the new vocabulary.
        vocabularies = [
            pa.ipc.open_file(days / name / "vocabulary" / f"{table.name}.arrow").get_batch(0)["category"]
            for name in ("old", "dir")
        ]
        old, new = (column.to_pylist() for column in vocabularies)
        pairs = [(old[i], new[j]) for i, j in enumerate(new_id.tolist()) if j >= 0]
        assert all(before == after for before, after in pairs)


def test_another_vocabulary_needs_its_map(days: Path, tmp_path: Path) -> None:
    shards, old = Shards.open(days / "dir"), Shards.open(days / "old")
    assert vocabulary_of(shards) != vocabulary_of(old) is not None
    copy = shutil.copytree(days / "dir", tmp_path / "dir")
    shards = Shards.open(copy)
    # The map leads from the old vocabulary to the new one, not to any other.
    shutil.rmtree(copy / "id_map")
    with pytest.raises(ShardError, match="are of another vocabulary"):
        source_of(days / "run", shards, embedding_optimizer=None)
    with pytest.raises(ShardError, match="rows of"):
        sizes_only = replace(read_config(days / "run"), vocabulary=None)
        _open_maps(days / "run", sizes_only, shards)
    shutil.copytree(copy / "shards", copy / "id_map")
    with pytest.raises(ShardError, match="holds the stage 'pack'"):
        source_of(days / "run", shards, embedding_optimizer=None)
    shutil.rmtree(copy / "id_map")
    shutil.copytree(days / "dir" / "id_map", copy / "id_map")
    path = next((copy / "id_map").glob("*.arrow"))
    whole = path.read_bytes()
    path.write_bytes(
        whole[: len(whole) // 2] + bytes([whole[len(whole) // 2] ^ 1]) + whole[len(whole) // 2 + 1 :]
    )
    with pytest.raises(HotsetError, match="is damaged"):
        source_of(days / "run", shards, embedding_optimizer=None)


def test_the_loop_of_days_is_two_commands(
    days: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "next"
    arguments = ["--init-from", str(days / "run"), "--threads", "1"]
    assert main(["train", str(days / "dir"), "--out", str(out), *arguments]) == 0
    described = json.loads((out / "config.json").read_bytes())
    id_map = json.loads((days / "dir" / "id_map" / "manifest.json").read_bytes())
    assert described["init_from"]["id_map"] == id_map["checksum"]
    assert main(["train", str(days / "dir"), "--out", str(tmp_path / "new"), "--threads", "1", "-q"]) == 0
    assert (out / "weights.safetensors").read_bytes() != (
        tmp_path / "new" / "weights.safetensors"
    ).read_bytes()
