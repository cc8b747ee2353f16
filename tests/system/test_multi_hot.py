"""CSV and Parquet logs of any shape to shards, lists and floats among them, against naive twins."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pytest

from hotset.pipeline.folders.manifest import Manifest, hash_file
from hotset.pipeline.preprocess import PreprocessConfig, preprocess
from hotset.pipeline.runtime.tasks import Resources
from hotset.pipeline.stages.count import CountConfig
from hotset.pipeline.stages.ingest import IngestConfig
from hotset.pipeline.stages.pack import PackConfig
from hotset.pipeline.verify import verify
from hotset.tests.support.logs.list_logs import KINDS, recipe
from hotset.tests.support.logs.other_logs import (
    Log,
    columns_in,
    draw_log,
    naive_columns,
    write_csv,
    write_parquet,
)
from hotset.tests.support.naive.naive_stages import OOV, naive_table, rows_of, shuffled
from hotset.tests.support.resealed import reseal, set_in_manifest

DENSE = ("dense", "float", "raw", "whole")
PLAIN = {"unused": "unused", "clicked": "label", "age": "dense", "user id": "text", "n": "integer"}
PLAIN |= {"hash": "unsigned", "site": "hex8", "price": "dense"}
SHAPES = {
    "lists and more": (120, KINDS),
    "one list": (60, {"y": "label", "only": "list text"}),
    "lists alone": (60, {"a": "list unsigned", "b": "list text", "d": "float"}),
    "one row": (1, KINDS),
    "one row of a list": (1, {"only": "list integer"}),
    "thirty lists": (20, {"y": "label"} | {f"list {n}": "list integer" for n in range(30)}),
    "no lists": (90, PLAIN),
    "a single feature": (90, {"y": "label", "d": "dense", "only": "text"}),
    "no dense column": (30, {"y": "label", "a": "integer", "b": "hex8"}),
    "no label": (30, {"d": "dense", "a": "unsigned"}),
    "one row of no lists": (1, PLAIN),
    "300 features": (
        20,
        {"y": "label", "d": "dense", **{f"f{n}": ("text", "unsigned", "hex8")[n % 3] for n in range(300)}},
    ),
}
WIDE = ("thirty lists", "300 features")


def write(path: Path, log: Log, format: str) -> Path:
    return (write_csv if format == "csv" else write_parquet)(path, log)


def naive_dense(kind: str, value: Any) -> float:
    if kind in ("raw", "whole"):
        return float(np.float32(value or 0))
    return float(np.float32(math.log1p(max(value or 0, 0))))


def naive_bags(log: Log) -> dict[str, list[list[Any]]]:
    """Categories of each sparse feature, sample by sample; those that are no lists as lists of one."""
    columns = naive_columns(log)
    sparse = {n: k for n, k in log.kinds.items() if k not in ("label", "unused", *DENSE)}
    return {
        name: [value if kind.startswith("list ") else [value] for value in columns[name]]
        for name, kind in sparse.items()
    }


def naive_tables(log: Log, num_train: int) -> dict[str, list[Any]]:
    """Categories and counts of each table, in the order of their ids."""
    bags = {name: bags[:num_train] for name, bags in naive_bags(log).items()}
    return {name: naive_table([value for bag in bags[name] for value in bag], 1) for name in bags}


def naive_samples(log: Log, num_train: int, num_hot: list[int]) -> list[tuple[Any, ...]]:
    """Label, dense values, ids of one-hot tables, bags, and tag of each sample of the log."""
    columns, sparse = naive_columns(log), naive_bags(log)
    dense = [name for name, kind in log.kinds.items() if kind in DENSE]
    ids = {}
    for name, table in naive_tables(log, num_train).items():
        known = {what: row for row, (what, _) in enumerate(table)}
        ids[name] = [[known.get(value, known[OOV]) for value in bag] for bag in sparse[name]]
    samples = []
    for i in range(len(log.rows)):
        is_hot = all(row < hot for name, hot in zip(sparse, num_hot, strict=True) for row in ids[name][i])
        one_hot = [row for name in sparse if not log.kinds[name].startswith("list ") for row in ids[name][i]]
        lists = {name: ids[name][i] for name in sparse if log.kinds[name].startswith("list ")}
        values = [naive_dense(log.kinds[name], columns[name][i]) for name in dense]
        samples.append((columns["label"][i] if "label" in columns else None, values, one_hot, lists, is_hot))
    return samples


def samples_in(shards: Manifest, kind: str) -> list[tuple[Any, ...]]:
    """Return the samples of a kind as `naive_samples` does, without the tags."""
    found: list[tuple[Any, ...]] = []
    lists = [table["name"] for table in shards.totals["tables"] if table.get("is_multi_hot")]
    for _, entry in shards.parts():
        if entry.facts["kind"] != kind:
            continue
        reader = pa.ipc.open_file(shards.folder / entry.path)
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            batch.validate(full=True)
            assert all(str(batch.schema.field(name).type) == "list<item: int32>" for name in lists)
            columns = batch.to_pydict()
            labels = columns.get("label", [None] * batch.num_rows)
            bags = [{name: columns[name][row] for name in lists} for row in range(batch.num_rows)]
            found += zip(labels, columns["dense"], columns["ids"], bags, strict=True)
    return found


@pytest.mark.parametrize(
    ("shape", "format"),
    [
        # Both formats come to the same columns, so quick runs see each shape in one of them.
        pytest.param(
            shape, format, marks=[] if number % 2 == is_parquet and shape not in WIDE else pytest.mark.slow
        )
        for number, shape in enumerate(SHAPES)
        for is_parquet, format in enumerate(["csv", "parquet"])
        if number % 2 == is_parquet or shape not in WIDE
    ],
)
def test_shards_are_those_of_the_naive_twin(
    tmp_path: Path, shape: str, format: str, rng: np.random.Generator
) -> None:
    num_rows, kinds = SHAPES[shape]
    log = draw_log(num_rows, kinds, rng, empty_lists=format == "parquet")
    raw = write(tmp_path / "log", log, format)
    shards = preprocess([raw], recipe(log, format, seed=3), tmp_path / "out", Resources(workers=2))
    assert columns_in(Manifest.read(tmp_path / "out/columns")) == naive_columns(log)
    num_train = num_rows - num_rows // 3
    vocabulary = Manifest.read(tmp_path / "out/vocabulary")
    assert rows_of(vocabulary) == list(naive_tables(log, num_train).values())
    samples = naive_samples(log, num_train, [table["num_hot"] for table in shards.totals["tables"]])
    order = shuffled(range(num_train), 3)
    for kind, numbers in {
        "hot_only": [i for i in order if samples[i][4]],
        "mixed": [i for i in order if not samples[i][4]],
        "evaluation": list(range(num_train, num_rows)),
    }.items():
        assert samples_in(shards, kind) == [samples[i][:4] for i in numbers]
    assert shards.totals["samples"]["hot_only"] > 0 or num_rows < 30
    assert verify(tmp_path / "out", raw=[raw]) == []


def test_a_feature_can_be_called_otherwise_than_its_column(tmp_path: Path, rng: np.random.Generator) -> None:
    log = draw_log(40, {"y": "label", "ids": "list text", "dense": "dense", "b": "integer"}, rng)
    config = PreprocessConfig(count=CountConfig(eval_fraction=1 / 3), pack=PackConfig(batch_size=8))
    text = """
format = "csv"
label = "y"
[dense]
dense = { kind = "integer", name = "d" }
[sparse]
ids = { kind = "text", list = true, name = "the ids" }
b = "integer"
"""
    config = replace(config, ingest=IngestConfig(schema=text))
    shards = preprocess([write_csv(tmp_path / "log", log)], config, tmp_path / "out")
    assert [table["name"] for table in shards.totals["tables"]] == ["the ids", "b"]
    assert shards.totals["dense"] == ["d"] and verify(tmp_path / "out") == []
    found = columns_in(Manifest.read(tmp_path / "out/columns"))
    assert found["the ids"] == naive_columns(log)["ids"]


def move_an_element(columns: dict[str, list[Any]], name: str) -> None:
    """Take the last element of one list and put it into the next."""
    place = next(i for i, bag in enumerate(columns[name][:-1]) if bag)
    columns[name][place + 1].append(columns[name][place].pop())


def set_an_element(columns: dict[str, list[Any]], name: str, value: int) -> None:
    next(bag for bag in columns[name] if bag)[0] = value


FAULTS = {
    "columns": (lambda c: c["tags"][0].append(7), "tags in row"),
    "columns nan": (lambda c: c["price"].__setitem__(0, float("nan")), "price in row"),
    "shards longer": (lambda c: c["tags"][0].append(0), "tags in row 0"),
    "samples longer": (lambda c: c["tags"][0].append(0), "tags in row 0"),
    "samples moved": (lambda c: move_an_element(c, "tags"), "tags in row"),
    "samples range": (lambda c: set_an_element(c, "seen", 10**6), "seen in row"),
    "samples below": (lambda c: set_an_element(c, "seen", -1), "seen in row"),
    "plan": (lambda c: c["is_hot"].append(1 - c["is_hot"].pop()), "is_hot in row"),
    "shards range": (lambda c: set_an_element(c, "codes", 10**6), "codes in row"),
}


@pytest.fixture(scope="module")
def lists(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a log with lists; not to be changed."""
    folder = tmp_path_factory.mktemp("lists")
    log = draw_log(90, KINDS, np.random.default_rng(20201103), empty_lists=True)
    preprocess([write_parquet(folder / "log", log)], recipe(log, "parquet"), folder / "out")
    return folder / "out"


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("case", FAULTS)
def test_lists_that_do_not_fit_are_found_though_every_checksum_does(
    lists: Path, tmp_path: Path, case: str
) -> None:
    shutil.copytree(lists, tmp_path / "out")
    change, message = FAULTS[case]
    path = reseal(tmp_path / "out" / case.partition(" ")[0], change)
    faults = verify(tmp_path / "out", raw=[lists.parent / "log"])
    assert any(str(path) in fault and message in fault for fault in faults), faults


@pytest.mark.parametrize("stage", ["columns", "samples", "shards"])
def test_offsets_that_run_backwards_are_found(stage: str, lists: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(lists, tmp_path / "out")) / stage
    files = Manifest.read(folder).files
    number = int(files[0].is_checksums)
    path = folder / files[number].path
    whole = path.read_bytes()
    offsets = np.array(pa.ipc.open_file(whole).get_batch(0).column("tags").offsets)
    swapped = offsets.copy()
    swapped[[1, -2]] = offsets[[-2, 1]]
    assert whole.count(offsets.tobytes()) == 1
    path.write_bytes(whole.replace(offsets.tobytes(), swapped.tobytes()))
    set_in_manifest(folder, f"files.{number}.xxh3_128", hash_file(path)[1])
    faults = verify(tmp_path / "out", raw=[lists.parent / "log"])
    assert any(str(path) in fault and "tags in row" in fault for fault in faults), faults
