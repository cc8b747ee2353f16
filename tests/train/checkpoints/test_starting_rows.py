"""A run that starts from another: its weights and states under new ids, and what does not fit is refused.

Rows that start with vectors of a file: by category, under any placement, resumed, and what is refused.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file

import hotset
from hotset.pipeline.errors import KIB, ByteSize, ConfigError, HotsetError, InputError, ShardError
from hotset.pipeline.formats import user_data
from hotset.pipeline.generate.generate import GenerateConfig, generate
from hotset.tests.support.processes.ranked_runs import train_on_ranks
from hotset.tests.support.processes.stopped_runs import WITH_LOG, assert_same_files, train_until
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.train.checkpoints.starting_rows import _open_maps, open_source
from hotset.train.config import TrainConfig, read_config
from hotset.train.data.shards import ShardSet, vocabulary_of
from hotset.train.fit import FittedRun
from hotset.train.model.shapes import choose_model
from hotset.train.run import RunOptions, train
from hotset.train.run_folder.files import RunFolder
from hotset.train.run_folder.weights import read_states
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


def source_of(run: Path, shards: ShardSet, **fields: Any) -> Any:
    config = TrainConfig(**FIELDS | fields)
    model = choose_model(config, shards.embedding_dim)
    return open_source(run, shards, config.optimizers("sgd"), model)


def test_an_unfinished_run_gives_its_last_checkpoint(data: Path, tmp_path: Path) -> None:
    train_until(91, data, TrainConfig(**FIELDS), tmp_path / "run", every=1)
    shards = ShardSet.open(data)
    rows = list(source_of(tmp_path / "run", shards).rows())
    # Those that were changed, and behind them every row with its initial values.
    count = sum(part.ids_N.size for part in rows)
    assert count > 345
    assert [part.ids_N.size for part in rows[-3:]] == [5, 40, 300]
    train(data, TrainConfig(**FIELDS), tmp_path / "next", RunOptions(init_from=tmp_path / "run"))


def test_states_of_another_optimizer_begin_anew(data: Path, first: Path) -> None:
    shards = ShardSet.open(data)
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
            source_of(first, ShardSet.open(write_shards(tmp_path / message[:9], replace(SPEC, **changes))))
    with pytest.raises(ConfigError, match=r"the model of .* has bottom_widths"):
        source_of(first, ShardSet.open(data), bottom_mlp=(8, 4))
    (tmp_path / "file").touch()
    for folder, found in (
        ("nothing", "does not exist"),
        ("file", "is not a folder"),
        (".", "holds no train"),
    ):
        with pytest.raises(HotsetError, match=found):
            source_of(tmp_path / folder, ShardSet.open(data))
    damaged = shutil.copytree(first, tmp_path / "damaged")
    whole = (damaged / "states.safetensors").read_bytes()
    (damaged / "states.safetensors").write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(HotsetError, match=r"states\.safetensors is damaged"):
        source_of(damaged, ShardSet.open(data))


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
    shards = ShardSet.open(days / "dir")
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
    shards, old = ShardSet.open(days / "dir"), ShardSet.open(days / "old")
    assert vocabulary_of(shards) != vocabulary_of(old) is not None
    copy = shutil.copytree(days / "dir", tmp_path / "dir")
    shards = ShardSet.open(copy)
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


NUM = 400
SCHEMA = """
label = "label"
format = "parquet"
[dense]
price = "float"
[sparse]
user = "text"
item = "integer"
"""
GIVEN: dict[str, Any] = {"threads": 1, "staging_bytes": ByteSize(4 * KIB), "embedding_optimizer": "adam"}


def log() -> pl.DataFrame:
    rng = np.random.default_rng(0)
    items = rng.zipf(1.3, NUM) % 90
    return pl.DataFrame(
        {
            "label": rng.integers(0, 2, NUM),
            "price": rng.random(NUM),
            "user": [f"u{number}" for number in rng.zipf(1.3, NUM) % 60],
            "item": [None if number == 7 else int(number) for number in items],
        }
    )


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("given")
    (folder / "log.toml").write_text(SCHEMA)
    settings: dict[str, Any] = {"schema": folder / "log.toml", "embedding_dim": 4, "hot_bytes": 2_000}
    return Path(
        hotset.preprocess(log(), folder / "data", batch_size=32, order="original", progress=False, **settings)
    )


ITEMS = [*range(3, 60), 1_000_000, 2_000_000]
VECTORS = np.random.default_rng(5).normal(size=(len(ITEMS), 4)).astype(np.float32)


@pytest.fixture(scope="module")
def item_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vectors") / "item.parquet"
    pl.DataFrame({"category": ITEMS, "vector": VECTORS.tolist()}).write_parquet(path)
    return path


def run_given(logged: Path, out: Path, file: Path, **fields: Any) -> FittedRun:
    options = RunOptions(init_tables={"item": file})
    return FittedRun(out, train(logged, TrainConfig(**GIVEN | fields), out, options))


def test_a_frozen_table_has_the_vectors_of_its_file(
    logged: Path, item_file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = run_given(logged, tmp_path / "run", item_file, freeze=("item",))
    shards = hotset.Shards(logged)
    ids = shards.ids("item", ITEMS)
    (table,) = [each for each in shards.tables.to_dicts() if each["table"] == "item"]
    (special,) = {int(row) for row in ids[-2:]}
    known = ids != special
    np.testing.assert_array_equal(found.vectors("item", np.array(ITEMS)[known]).numpy(), VECTORS[known])
    # Rows without a vector are those of a run that is given none.
    plain = FittedRun(
        tmp_path / "plain", train(logged, TrainConfig(**GIVEN, freeze=("item",)), tmp_path / "plain")
    )
    others = np.setdiff1d(np.arange(table["num_rows"]), ids[known])
    assert others.size and torch.equal(found.table("item")[others], plain.table("item")[others])
    assert not torch.equal(found.table("user"), plain.table("user"))
    (said,) = [each.getMessage() for each in caplog.records if "given vector" in each.getMessage()]
    rows = f"{np.unique(ids[known]).size} of {table['num_rows']} rows of item"
    unknown = f"{int((~known).sum())} given categories have no row"
    assert said == f"{rows} start with a given vector; {unknown}"
    states = read_states(found.folder)
    assert "user" in states and "item" not in states


def test_every_form_of_the_same_vectors_ends_with_equal_bits(
    logged: Path, item_file: Path, tmp_path: Path
) -> None:
    wanted = run_given(logged, tmp_path / "file", item_file)
    np.savez(tmp_path / "item.npz", categories=np.array(ITEMS), vectors=VECTORS)
    assert torch.equal(
        run_given(logged, tmp_path / "npz", tmp_path / "item.npz").table("item"), wanted.table("item")
    )
    columns = {f"d{number}": VECTORS[:, number] for number in range(4)}
    frames: list[Any] = [
        pl.DataFrame({"item": ITEMS, **columns}),
        pl.DataFrame({"category": ITEMS, **columns}).to_arrow(),
        {"category": [str(each) for each in ITEMS], "vector": torch.from_numpy(VECTORS)},
    ]
    for number, frame in enumerate(frames):
        found = hotset.fit(
            logged, tmp_path / f"frame{number}", init_tables={"item": frame}, progress=False, **GIVEN
        )
        assert torch.equal(found.table("item"), wanted.table("item"))
        assert torch.equal(found.table("user"), wanted.table("user"))


@pytest.mark.parametrize(
    "fields",
    [
        {"placement": "all-fast"},
        {"placement": "hybrid"},
        {"placement": "hybrid-uva"},
        {"placement": "cache"},
        {"placement": "lookahead", "device": "late"},
        {"ranks": 2},
    ],
)
def test_placements_and_ranks_end_with_equal_bits(
    logged: Path, item_file: Path, tmp_path: Path, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    same = {"freeze": ("user",), "micro_batches": 2}
    run_given(logged, tmp_path / "wanted", item_file, **same)
    if fields.pop("ranks", None):
        config = TrainConfig(**GIVEN | same)
        train_on_ranks(2, monkeypatch, logged, config, tmp_path / "found", init_tables={"item": item_file})
    else:
        run_given(logged, tmp_path / "found", item_file, **same, **fields)
    assert_same_files(tmp_path / "found", tmp_path / "wanted")


@pytest.mark.parametrize("placement", ["lookahead", "all-fast"])
def test_a_stopped_run_resumes_with_the_same_file_alone(
    logged: Path, item_file: Path, tmp_path: Path, placement: str
) -> None:
    fields: dict[str, Any] = {"placement": placement, "freeze": ("user",), "epochs": 2}
    run_given(logged, tmp_path / "wanted", item_file, **fields)
    config = TrainConfig(**GIVEN | fields)
    train_until(NUM, logged, config, tmp_path / "run", every=3, init_tables={"item": item_file})
    other = tmp_path / "other.parquet"
    pl.read_parquet(item_file).reverse().write_parquet(other)
    for given in ({"item": other}, {}):
        with pytest.raises(HotsetError, match="unfinished run with other settings: init_tables"):
            train(logged, config, tmp_path / "run", RunOptions(init_tables=given))
    # The bytes of the file count, not where it is.
    copied = Path(shutil.copy(item_file, tmp_path / "copied.parquet"))
    train(logged, config, tmp_path / "run", RunOptions(init_tables={"item": copied}))
    assert_same_files(tmp_path / "run", tmp_path / "wanted")


def test_given_vectors_come_before_those_of_a_run(logged: Path, item_file: Path, tmp_path: Path) -> None:
    first = FittedRun(tmp_path / "first", train(logged, TrainConfig(**GIVEN), tmp_path / "first"))
    options = RunOptions(init_from=first.folder, init_tables={"item": item_file})
    config = TrainConfig(**GIVEN | {"freeze": ("item", "user")})
    second = FittedRun(tmp_path / "second", train(logged, config, tmp_path / "second", options))
    assert torch.equal(second.table("user"), first.table("user"))
    ids = np.unique(hotset.Shards(logged).ids("item", ITEMS[:-2]))
    others = np.setdiff1d(np.arange(first.table("item").shape[0]), ids)
    assert torch.equal(second.table("item")[others], first.table("item")[others])
    assert not torch.equal(second.table("item"), first.table("item"))
    # A run that starts from one without states begins with none.
    train(logged, TrainConfig(**GIVEN), tmp_path / "third", RunOptions(init_from=second.folder))


@pytest.mark.parametrize(
    ("frame", "wanted"),
    [
        ({"category": [1, 2, 1], "vector": [[0.0] * 4] * 3}, "row 3: an earlier row has its category\n"),
        ({"category": ["5", "5.0"], "vector": [[0.0] * 4] * 2}, "row 2: an earlier row has its category\n"),
        ({"category": [None, None], "vector": [[0.0] * 4] * 2}, "row 2: an earlier row has its category\n"),
        ({"category": ["a"], "vector": [[0.0] * 4]}, "row 1, column 'category': found 'a', want an integer"),
        (
            {"category": [[1]], "vector": [[0.0] * 4]},
            "is large_list<.*>, want one category in each row\nhint: categories of item are integer$",
        ),
        ({"category": [1], "vector": [[0.0] * 3]}, "its vectors have 3 numbers, the table 4\n"),
        ({"category": [1], "vector": [[float("inf")] * 4]}, "row 1: a vector is not finite"),
    ],
)
def test_what_is_wrong_with_a_file_is_refused_before_a_run_begins(
    logged: Path, tmp_path: Path, frame: dict[str, Any], wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "item.parquet"
    pl.DataFrame(frame, strict=False).write_parquet(path)
    for rows in (100, 1):
        monkeypatch.setattr(user_data, "_MOST_ROWS", rows)
        with pytest.raises(InputError, match=wanted):
            run_given(logged, tmp_path / "run", path)
    assert not (tmp_path / "run").exists()


def test_tables_that_cannot_be_given_are_refused(logged: Path, item_file: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no table 'itm'\nhint: did you mean 'item'\?"):
        train(logged, TrainConfig(), tmp_path / "run", RunOptions(init_tables={"itm": item_file}))
    shutil.copytree(logged / "shards", tmp_path / "shards")
    with pytest.raises(ConfigError, match="--init-table needs the vocabulary, and there is none next to"):
        run_given(tmp_path / "shards", tmp_path / "run", item_file)


def test_the_command_takes_tables(
    logged: Path, item_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    command = f"train {logged} --out {out} --threads 1 --freeze item --freeze user".split()
    assert main([*command, "--init-table", f"item={item_file}", "-q"]) == 0
    found = json.loads((out / "config.json").read_text())
    assert found["config"]["freeze"] == ["item", "user"] and list(found["init_tables"]) == ["item"]
    capsys.readouterr()
    for given, wanted in (
        (["item"], "--init-table must be NAME=FILE, got 'item'"),
        ([f"item={item_file}", f"item={item_file}"], "--init-table names 'item' twice"),
    ):
        with pytest.raises(SystemExit):
            main([*command, *(word for each in given for word in ("--init-table", each))])
        assert capsys.readouterr().err.startswith(f"error: {wanted}\n")
