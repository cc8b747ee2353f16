"""Rows that start with vectors of a file: by category, under any placement, resumed, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

import hotset
from hotset.pipeline.errors import KIB, ByteSize, ConfigError, HotsetError, InputError
from hotset.pipeline.formats import user_data
from hotset.tests.support.processes.ranked_runs import train_on_ranks
from hotset.tests.support.processes.stopped_runs import assert_same_files, train_until
from hotset.train.config import TrainConfig
from hotset.train.fit import FittedRun
from hotset.train.run import RunOptions, train
from hotset.train.run_folder.reader import read_states
from hotset.workflows.cli import main

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
FIELDS: dict[str, Any] = {"threads": 1, "staging_bytes": ByteSize(4 * KIB), "embedding_optimizer": "adam"}


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
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
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


def run(data: Path, out: Path, file: Path, **fields: Any) -> FittedRun:
    options = RunOptions(init_tables={"item": file})
    return FittedRun(out, train(data, TrainConfig(**FIELDS | fields), out, options))


def test_a_frozen_table_has_the_vectors_of_its_file(
    data: Path, item_file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = run(data, tmp_path / "run", item_file, freeze=("item",))
    shards = hotset.Shards(data)
    ids = shards.ids("item", ITEMS)
    (table,) = [each for each in shards.tables.to_dicts() if each["table"] == "item"]
    (special,) = {int(row) for row in ids[-2:]}
    known = ids != special
    np.testing.assert_array_equal(found.vectors("item", np.array(ITEMS)[known]).numpy(), VECTORS[known])
    # Rows without a vector are those of a run that is given none.
    plain = FittedRun(
        tmp_path / "plain", train(data, TrainConfig(**FIELDS, freeze=("item",)), tmp_path / "plain")
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
    data: Path, item_file: Path, tmp_path: Path
) -> None:
    wanted = run(data, tmp_path / "file", item_file)
    np.savez(tmp_path / "item.npz", categories=np.array(ITEMS), vectors=VECTORS)
    assert torch.equal(run(data, tmp_path / "npz", tmp_path / "item.npz").table("item"), wanted.table("item"))
    columns = {f"d{number}": VECTORS[:, number] for number in range(4)}
    frames: list[Any] = [
        pl.DataFrame({"item": ITEMS, **columns}),
        pl.DataFrame({"category": ITEMS, **columns}).to_arrow(),
        {"category": [str(each) for each in ITEMS], "vector": torch.from_numpy(VECTORS)},
    ]
    for number, frame in enumerate(frames):
        found = hotset.fit(
            data, tmp_path / f"frame{number}", init_tables={"item": frame}, progress=False, **FIELDS
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
    data: Path, item_file: Path, tmp_path: Path, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    same = {"freeze": ("user",), "micro_batches": 2}
    run(data, tmp_path / "wanted", item_file, **same)
    if fields.pop("ranks", None):
        config = TrainConfig(**FIELDS | same)
        train_on_ranks(2, monkeypatch, data, config, tmp_path / "found", init_tables={"item": item_file})
    else:
        run(data, tmp_path / "found", item_file, **same, **fields)
    assert_same_files(tmp_path / "found", tmp_path / "wanted")


@pytest.mark.parametrize("placement", ["lookahead", "all-fast"])
def test_a_stopped_run_resumes_with_the_same_file_alone(
    data: Path, item_file: Path, tmp_path: Path, placement: str
) -> None:
    fields: dict[str, Any] = {"placement": placement, "freeze": ("user",), "epochs": 2}
    run(data, tmp_path / "wanted", item_file, **fields)
    config = TrainConfig(**FIELDS | fields)
    train_until(NUM, data, config, tmp_path / "run", every=3, init_tables={"item": item_file})
    other = tmp_path / "other.parquet"
    pl.read_parquet(item_file).reverse().write_parquet(other)
    for given in ({"item": other}, {}):
        with pytest.raises(HotsetError, match="unfinished run with other settings: init_tables"):
            train(data, config, tmp_path / "run", RunOptions(init_tables=given))
    # The bytes of the file count, not where it is.
    copied = Path(shutil.copy(item_file, tmp_path / "copied.parquet"))
    train(data, config, tmp_path / "run", RunOptions(init_tables={"item": copied}))
    assert_same_files(tmp_path / "run", tmp_path / "wanted")


def test_given_vectors_come_before_those_of_a_run(data: Path, item_file: Path, tmp_path: Path) -> None:
    first = FittedRun(tmp_path / "first", train(data, TrainConfig(**FIELDS), tmp_path / "first"))
    options = RunOptions(init_from=first.folder, init_tables={"item": item_file})
    config = TrainConfig(**FIELDS | {"freeze": ("item", "user")})
    second = FittedRun(tmp_path / "second", train(data, config, tmp_path / "second", options))
    assert torch.equal(second.table("user"), first.table("user"))
    ids = np.unique(hotset.Shards(data).ids("item", ITEMS[:-2]))
    others = np.setdiff1d(np.arange(first.table("item").shape[0]), ids)
    assert torch.equal(second.table("item")[others], first.table("item")[others])
    assert not torch.equal(second.table("item"), first.table("item"))
    # A run that starts from one without states begins with none.
    train(data, TrainConfig(**FIELDS), tmp_path / "third", RunOptions(init_from=second.folder))


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
    data: Path, tmp_path: Path, frame: dict[str, Any], wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "item.parquet"
    pl.DataFrame(frame, strict=False).write_parquet(path)
    for rows in (100, 1):
        monkeypatch.setattr(user_data, "_MOST_ROWS", rows)
        with pytest.raises(InputError, match=wanted):
            run(data, tmp_path / "run", path)
    assert not (tmp_path / "run").exists()


def test_tables_that_cannot_be_given_are_refused(data: Path, item_file: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no table 'itm'\nhint: did you mean 'item'\?"):
        train(data, TrainConfig(), tmp_path / "run", RunOptions(init_tables={"itm": item_file}))
    shutil.copytree(data / "shards", tmp_path / "shards")
    with pytest.raises(ConfigError, match="--init-table needs the vocabulary, and there is none next to"):
        run(tmp_path / "shards", tmp_path / "run", item_file)


def test_the_command_takes_tables(
    data: Path, item_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    command = f"train {data} --out {out} --threads 1 --freeze item --freeze user".split()
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
