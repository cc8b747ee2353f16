"""Labels, weights and groups stay with their sample through every stage, whatever happens on the way."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import hotset
from hotset.pipeline.errors import ByteSize, ConfigError, InputError, ManifestError, ShardError
from hotset.pipeline.export import export_shards
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.formats.arrow_files import read_batch
from hotset.pipeline.preprocess import PreprocessConfig, preprocess
from hotset.pipeline.runtime.tasks import Resources
from hotset.pipeline.stages.count import CountConfig
from hotset.pipeline.stages.ingest import IngestConfig, ingest
from hotset.pipeline.stages.pack import PackConfig
from hotset.pipeline.stages.rank import RankConfig
from hotset.pipeline.stages.split import SplitConfig
from hotset.pipeline.verify import verify
from hotset.tests.support.logs.criteo_text import tree_of
from hotset.tests.support.logs.other_logs import (
    Log,
    columns_in,
    draw_log,
    naive_columns,
    schema_text,
    write_csv,
    write_parquet,
)
from hotset.tests.support.processes.kills import Killed, killed
from hotset.tests.support.resealed import reseal
from hotset.train.data.dataset import ShardDataset
from hotset.workflows.cli import main

KINDS = {
    "number": "whole",  # of the sample, by which it is found again
    "click": "maybe label",
    "tags": "list text",
    "site": "hex8",
    "w": "weight",
    "like it": "maybe label",
    "user": "group integer",
    "age": "dense",
    "query": "text",
}
COLUMNS = ("label", "label_like it", "weight", "group")
LABELS = ("click", "like it", "buy")
NUM_SAMPLES = 150


def numbered(log: Log, first: int = 0) -> Log:
    """Return the log with the number of each sample in its first column."""
    return Log(log.kinds, [(first + number, *row[1:]) for number, row in enumerate(log.rows)])


@pytest.fixture(scope="module")
def log() -> Log:
    return numbered(draw_log(NUM_SAMPLES, KINDS, np.random.default_rng(31)))


def without(log: Log, *kinds: str) -> Log:
    """Return the log without the columns of some kinds."""
    kept = [place for place, kind in enumerate(log.kinds.values()) if kind not in kinds]
    names = [list(log.kinds)[place] for place in kept]
    rows = [tuple(row[place] for place in kept) for row in log.rows]
    return Log({name: log.kinds[name] for name in names}, rows)


def recipe(log: Log, format: str = "csv") -> PreprocessConfig:
    return PreprocessConfig(
        ingest=IngestConfig(schema=schema_text(log, format=format), block_bytes=ByteSize(3000)),
        count=CountConfig(eval_fraction=1 / 5, valid_fraction=1 / 5),
        split=SplitConfig(embedding_optimizer="sgd", hot_bytes=ByteSize(64 * 15)),
        pack=PackConfig(batch_size=8),
    )


def wanted_of(log: Log, names: Sequence[str] = COLUMNS) -> dict[int, tuple[Any, ...]]:
    """Return what samples have, by number."""
    columns = naive_columns(log)
    rows = [tuple(columns[name][row] for name in names) for row in range(len(log.rows))]
    return dict(zip(columns["number"], rows, strict=True))


def found_in(shards: Path, names: Sequence[str] = COLUMNS) -> dict[int, tuple[Any, ...]]:
    """Return what samples have in shards, by the number among their dense values; each once."""
    rows: list[dict[str, Any]] = []
    for path in sorted(shards.glob("*.arrow")):
        reader = pa.ipc.open_file(path)
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            batch.validate(full=True)
            rows += batch.to_pylist()
    found = {int(row["dense"][0]): tuple(row[name] for name in names) for row in rows}
    assert len(found) == len(rows)
    return found


ORDERS: dict[str, dict[str, Any]] = {
    "grouped": {},
    "original": {"pack": PackConfig(batch_size=8, order="original", seed=3)},
    "peel": {"rank": RankConfig(rank_by="peel")},
    "fae": {"rank": RankConfig(rank_by="sampled", sampling_rate=0.5), "mode": "fae-code"},
}


def write_json(path: Path, log: Log) -> Path:
    rows = (dict(zip(log.kinds, row, strict=True)) for row in log.rows)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


WRITERS: dict[str, Callable[[Path, Log], Path]] = {
    "csv": write_csv,
    "json": write_json,
    "parquet": write_parquet,
}


@pytest.mark.parametrize(
    ("format", "order"),
    [
        *(("csv", order) for order in ORDERS),
        *(pytest.param(x, "peel", marks=pytest.mark.slow) for x in ("json", "parquet")),
    ],
)
def test_every_sample_keeps_its_columns(
    log: Log, order: str, format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = WRITERS[format](tmp_path / "log", log)
    changes = dict(ORDERS[order])
    config = recipe(log, format)
    if "mode" in changes:
        changes["split"] = replace(config.split, mode=changes.pop("mode"))
    config = replace(config, **changes)
    # Several files of each kind, and of columns.
    monkeypatch.setattr("hotset.pipeline.stages.pack._FILE_BYTES", 1500)
    for workers in (1, 2):
        shards = preprocess([raw], config, tmp_path / f"{workers}", Resources(workers=workers))
        assert len(shards.files) > 6
    assert found_in(tmp_path / "1/shards") == wanted_of(log)
    assert tree_of(tmp_path / "1") == tree_of(tmp_path / "2")
    assert verify(tmp_path / "1", raw=[raw]) == []


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_every_choice_of_columns_stays_with_its_samples(tmp_path: Path, data: st.DataObject) -> None:
    """Labels or one label or none, with or without weights, groups and lists, in any order of columns."""
    labels = data.draw(
        st.sampled_from([{}, {"y": "label"}, *({n: "maybe label" for n in LABELS[:k]} for k in (1, 2, 3))])
    )
    kinds = {"number": "whole", "site": "hex8"} | labels
    if data.draw(st.booleans()):
        kinds["w"] = "weight"
    kind = data.draw(st.sampled_from(["integer", "unsigned", "text", "hex8", ""]))
    kinds |= {"user": f"group {kind}"} if kind else {}
    kinds |= data.draw(st.sampled_from([{}, {"tags": "list unsigned"}]))
    names = data.draw(st.permutations([*kinds]))
    kinds = {name: kinds[name] for name in ["number", *(name for name in names if name != "number")]}
    drawn = draw_log(
        data.draw(st.integers(1, 60)), kinds, np.random.default_rng(data.draw(st.integers(0, 99)))
    )
    log, format = numbered(drawn), data.draw(st.sampled_from(sorted(WRITERS)))
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    raw = WRITERS[format](folder / "log", log)
    order: Any = data.draw(st.sampled_from(["grouped", "original"]))
    config = replace(
        recipe(log, format), pack=PackConfig(batch_size=data.draw(st.integers(1, 9)), order=order)
    )
    block_bytes = ByteSize(data.draw(st.integers(50, 3000)))
    config = replace(config, ingest=replace(config.ingest, block_bytes=block_bytes))
    preprocess([raw], config, folder / "dir", Resources(workers=data.draw(st.sampled_from([1, 2]))))
    columns = [name for name in naive_columns(log) if name.startswith("label") or name in COLUMNS]
    assert found_in(folder / "dir/shards", columns) == wanted_of(log, columns)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_killed_run_goes_on_to_the_same_columns(
    log: Log, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = write_csv(tmp_path / "log", log)
    monkeypatch.setattr("hotset.pipeline.stages.pack._FILE_BYTES", 1500)
    preprocess([raw], recipe(log), tmp_path / "whole", Resources(workers=1))
    # In the middle of one stage after another: fewer than a dozen names change between two kills.
    after = np.random.default_rng(seed)
    kills = 0
    while True:
        try:
            with killed(int(after.integers(3, 12)), monkeypatch):
                preprocess([raw], recipe(log), tmp_path / "dir", Resources(workers=1))
            break
        except Killed:
            kills += 1
    assert kills > 5 and tree_of(tmp_path / "dir") == tree_of(tmp_path / "whole")


def test_a_grown_log_has_the_columns_of_all_days(log: Log, tmp_path: Path) -> None:
    more = numbered(draw_log(60, KINDS, np.random.default_rng(32)), NUM_SAMPLES)
    days = [write_csv(tmp_path / "0.csv", log), write_csv(tmp_path / "1.csv", more)]
    preprocess(days[:1], recipe(log), tmp_path / "dir", Resources(workers=2))
    preprocess(days, recipe(log), tmp_path / "dir", Resources(workers=2), extend=True)
    assert found_in(tmp_path / "dir/shards") == wanted_of(log) | wanted_of(more)
    preprocess(days, recipe(log), tmp_path / "whole", Resources(workers=1))
    assert tree_of(tmp_path / "dir/shards") == tree_of(tmp_path / "whole/shards")


BAD_ROWS = {
    "-1,1,0,7": ", column 'w': found '-1', want a number that is 0 or more and that a float32 can hold",
    "nan,1,0,7": ", column 'w': found 'nan', want a number",
    "inf,1,0,7": ", column 'w': found 'inf', want a number",
    "1e39,1,0,7": ", column 'w': found '1e39', want a number",
    ",1,0,7": ", column 'w': found nothing, want a number",
    "heavy,1,0,7": ", column 'w': found 'heavy', want a number",
    "1,2,0,7": ", column 'click': found '2', want 0 or 1, or nothing",
    "1,1,-1,7": ", column 'buy': found '-1', want 0 or 1, or nothing",
    "1,1,NULL,7": ", column 'buy': found 'NULL', want 0 or 1, or nothing",
    "1,1,0,7.5": ", column 'user': found '7.5', want an integer from -2**63 to 2**63 - 1, or nothing",
    "1,1,0,u7": ", column 'user': found 'u7', want an integer from -2**63 to 2**63 - 1, or nothing",
}
KEYS = 'weight = "w"\nlabels = ["click", "buy"]\ngroup = { column = "user", kind = "integer" }\n'
SMALL = f'format = "csv"\n{KEYS}[sparse]\nitem = "text"\n'


@pytest.mark.parametrize("row", BAD_ROWS)
def test_a_wrong_value_is_one_clear_line(row: str, tmp_path: Path) -> None:
    raw = tmp_path / "log.csv"
    raw.write_text(f"item,w,click,buy,user\na,.5,1,,\nb,{row}\n")
    with pytest.raises(InputError) as caught:
        ingest([raw], IngestConfig(schema=SMALL), tmp_path / "out")
    assert str(caught.value).startswith(f"{raw}, line 3{BAD_ROWS[row]}") and "\n" not in str(caught.value)
    skipping = IngestConfig(schema=SMALL, on_bad_line="skip:0.5")
    reason = next(iter(ingest([raw], skipping, tmp_path / "skipped").totals["bad_lines"]))
    kind = "weight" if "'w'" in BAD_ROWS[row] else "category" if "'user'" in BAD_ROWS[row] else "label"
    assert reason == (f"missing_{kind}" if row.startswith(",") else f"bad_{kind}")


def test_each_label_has_its_own_ones_and_words_for_missing(tmp_path: Path) -> None:
    keys = 'labels = [{ column = "stars", above = 3 }, { column = "bought", positive = ["yes", 2] }, "seen"]'
    schema = f'format = "parquet"\nmissing = ["NULL"]\n{keys}\nweight = "w"\n[sparse]\nitem = "text"\n'
    raw = tmp_path / "log"
    columns = {"stars": ["3", "3.5", "NULL", "5"], "bought": ["yes", "2.0", "no", "NULL"]}
    columns |= {"seen": ["1", "NULL", "0", "true"], "w": ["1", "2", "3", "4"], "item": ["a", "b", "c", "d"]}
    pq.write_table(pa.table(columns), raw)
    found = columns_in(ingest([raw], IngestConfig(schema=schema), tmp_path / "out"))
    assert found["label"] == [0, 1, None, 1]
    assert found["label_bought"] == [1, 1, 0, None] and found["label_seen"] == [1, None, 0, 1]
    # What is no label has a hint that works; a weight is never missing.
    pq.write_table(pa.table(columns | {"seen": ["1", "0", "seldom", "1"]}), raw)
    with pytest.raises(
        InputError, match=f"^{raw}, row 3, column 'seen': found 'seldom', want 0 or 1"
    ) as caught:
        ingest([raw], IngestConfig(schema=schema), tmp_path / "other")
    hint = 'say in the schema which ones are 1: among labels, { column = "seen", positive = ["yes"] }'
    assert hint in str(caught.value.hint)
    pq.write_table(pa.table(columns | {"w": ["1", "NULL", "3", "4"]}), raw)
    with pytest.raises(InputError, match=f"^{raw}, row 2, column 'w': found 'NULL', want a number"):
        ingest([raw], IngestConfig(schema=schema), tmp_path / "other")


NUMBERS = [0.1, -7.25, None, 1e-45, 3.4e38, -0.0, 3.0, None, 16777217.0, 1.0]


@pytest.mark.parametrize("format", ["csv", "json", "parquet"])
@pytest.mark.parametrize("place", [0, 1])
def test_labels_of_any_number_are_the_nearest_float32(format: str, place: int, tmp_path: Path) -> None:
    """As the first label or as another one; shards, exported files and datasets have them."""
    keys = ['{ column = "seconds", kind = "float" }', '"click"']
    keys = keys if place == 0 else keys[::-1]
    dense = '[dense]\nnumber = { kind = "float", transform = "none" }\n'
    schema = f'format = "{format}"\nlabels = [{", ".join(keys)}]\n{dense}[sparse]\nitem = "text"\n'
    columns = {"number": range(10), "item": ["a"] * 10, "click": [0, 1] * 5, "seconds": NUMBERS}
    raw, frame = tmp_path / "log", pl.DataFrame(columns)
    getattr(frame, {"json": "write_ndjson"}.get(format, f"write_{format}"))(raw)
    config = PreprocessConfig(ingest=IngestConfig(schema=schema), pack=PackConfig(batch_size=4))
    preprocess([raw], config, tmp_path / "dir", Resources(workers=1))
    name = "label_seconds" if place else "label"
    wanted = {
        number: None if value is None else float(np.float32(value)) for number, value in enumerate(NUMBERS)
    }
    found = found_in(tmp_path / "dir/shards", [name])
    assert {number: value for number, (value,) in found.items()} == wanted
    assert verify(tmp_path / "dir", raw=[raw]) == []
    export_shards(Manifest.read(tmp_path / "dir/shards"), "parquet", tmp_path / "out", Resources(workers=1))
    exported = pl.concat(pl.read_parquet(path) for path in (tmp_path / "out").glob("*.parquet"))
    assert dict(exported.select("number", name).iter_rows()) == wanted
    batches = list(ShardDataset(tmp_path / "dir", split="train"))
    values = {int(n): v for each in batches for n, v in zip(each["dense"][:, 0], each[name], strict=True)}
    assert len(values) > 3 and all(v != v or v == wanted[n] for n, v in values.items())


@pytest.mark.parametrize("value", ["inf", "1e39", "fast", "0x1p3"])
def test_a_label_that_is_no_number_is_one_clear_line(value: str, tmp_path: Path) -> None:
    schema = SMALL.replace('labels = ["click", "buy"]', 'labels = [{ column = "buy", kind = "float" }]')
    raw = tmp_path / "log.csv"
    raw.write_text(f"item,w,click,buy,user\na,.5,1,2,\nb,1,0,{value},\n")
    wanted = f"line 3, column 'buy': found '{value}', want a number that a float32 can hold, or nothing"
    with pytest.raises(InputError, match=wanted):
        ingest([raw], IngestConfig(schema=schema), tmp_path / "out")
    skipping = IngestConfig(schema=schema, on_bad_line="skip:0.5")
    assert ingest([raw], skipping, tmp_path / "skipped").totals["bad_lines"] == {"bad_label": 1}


@pytest.mark.parametrize("name", ["w", "click", "buy", "user"])
@pytest.mark.parametrize("format", ["csv", "parquet"])
def test_a_column_that_is_not_there_is_one_clear_line(name: str, format: str, tmp_path: Path) -> None:
    columns = {"item": ["a"], "w": [1.0], "click": [1], "buy": [None], "user": [7]}
    frame = pl.DataFrame(columns).drop(name)
    raw = tmp_path / "log"
    (frame.write_csv if format == "csv" else frame.write_parquet)(raw)
    with pytest.raises(InputError, match=f"^{raw} has no column '{name}'\n"):
        ingest([raw], IngestConfig(schema=SMALL.replace("csv", format)), tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "values", "fault"),
    [
        ("w", pa.array([1.0, -0.5]), "row 2, column 'w': found -0.5, want a number"),
        ("w", pa.array([1.0, None]), "row 2, column 'w': found nothing, want a number"),
        ("w", pa.array([[1.0], []]), "column 'w' is list<element: double>, want a number that is 0 or more"),
        ("buy", pa.array([True, None]), None),
        ("buy", pa.array([1, 2]), "row 2, column 'buy': found 2, want 0 or 1, or nothing"),
        ("user", pa.array(["7", None]), None),
        ("user", pa.array([7.0, 1.5]), "row 2, column 'user': found 1.5, want an integer"),
        ("user", pa.array([[7], [8]]), "column 'user' is list<element: int64>, want an integer"),
    ],
)
def test_columns_of_parquet_are_read_or_refused(
    name: str, values: Any, fault: str | None, tmp_path: Path
) -> None:
    columns = {"item": ["a", "b"], "w": [0, 1], "click": [1, None], "buy": [0, 1], "user": [7, None]}
    raw = tmp_path / "log"
    pq.write_table(pa.table(columns | {name: values}), raw)
    setting = IngestConfig(schema=SMALL.replace("csv", "parquet"))
    if fault is None:
        assert ingest([raw], setting, tmp_path / "out").num_samples == 2
        return
    with pytest.raises(InputError, match=f"{raw}.{{1,2}}{re.escape(fault)}"):
        ingest([raw], setting, tmp_path / "out")


def test_two_groups_stay_two_whatever_ids_their_category_has(tmp_path: Path) -> None:
    # Rare users share the row of oov, and texts that differ have hashes that do.
    users = [f"user {number % 40}" for number in range(80)]
    path = tmp_path / "log.csv"
    path.write_text("y,user\n" + "".join(f"{number % 2},{user}\n" for number, user in enumerate(users)))
    schema = tmp_path / "log.toml"
    schema.write_text('format = "csv"\nlabel = "y"\ngroup = "user"\n[sparse]\nuser = "text"\n')
    out = hotset.preprocess(path, schema=schema, out=tmp_path / "dir", min_count=10, eval_fraction=0.5)
    shards = hotset.Shards(out)
    table = shards.tables.row(0, named=True)
    batches = [*shards.batches(), *shards.batches("evaluation")]
    assert table["num_rows"] == 1 and {int(row) for batch in batches for row in batch["user"]} == {0}
    assert len({int(group) for batch in batches for group in batch["group"]}) == 40
    assert all(batch["has_group"].all() for batch in batches)


@pytest.fixture(scope="module")
def data(log: Log, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log without lists, preprocessed: a folder that no test changes."""
    folder = tmp_path_factory.mktemp("data")
    preprocess([write_csv(folder / "log.csv", log)], recipe(log), folder / "dir", Resources(workers=1))
    return folder / "dir"


def rows_of(batch: dict[str, Any]) -> dict[int, tuple[Any, ...]]:
    """Return what samples of a batch of arrays or tensors have, by number."""
    label, like, weight, group, has_group = (
        batch[name].tolist() for name in ("label", "label_like it", "weight", "group", "has_group")
    )
    groups = [each % 2**64 if has else None for each, has in zip(group, has_group, strict=True)]
    labels = [[None if value != value else value for value in values] for values in (label, like)]
    numbers = [int(row[0]) for row in batch["dense"].tolist()]
    return dict(zip(numbers, zip(*labels, weight, groups, strict=True), strict=True))


@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_datasets_and_shards_have_them(log: Log, data: Path, num_workers: int) -> None:
    found: dict[int, Any] = {}
    # The part for validation ends within a batch: its samples are cut and joined.
    for split in ("train", "valid", "test"):
        dataset = ShardDataset(data, split=split)
        for batch in DataLoader(dataset, batch_size=None, num_workers=num_workers):
            found |= rows_of(batch)
    assert found == wanted_of(log)
    shards = hotset.Shards(data)
    found = {}
    for arrays in (*shards.batches(), *shards.batches("evaluation")):
        assert arrays["group"].dtype == np.uint64
        found |= rows_of(arrays)
    assert found == wanted_of(log)


@pytest.mark.parametrize("to", ["parquet", "csv"])
def test_exported_shards_have_them(log: Log, data: Path, to: Any, tmp_path: Path) -> None:
    export_shards(Manifest.read(data / "shards"), to, tmp_path / "out", Resources(workers=1))
    read = pl.read_parquet if to == "parquet" else pl.read_csv
    found: dict[int, Any] = {}
    for path in sorted((tmp_path / "out").glob(f"*.{to}")):
        frame = read(path)
        found |= {int(row["number"]): tuple(row[name] for name in COLUMNS) for row in frame.to_dicts()}
    wanted = wanted_of(log)
    assert found.keys() == wanted.keys()
    for number, row in found.items():
        assert row[:2] == wanted[number][:2] and row[3] == wanted[number][3]
        assert np.float32(row[2]) == np.float32(wanted[number][2])


def test_a_missing_label_counts_as_a_weight_of_zero(log: Log, tmp_path: Path) -> None:
    """Of the first label alone, beside weights that other samples have."""
    kinds = {"number": "whole", "click": "maybe label", "site": "hex8", "w": "weight"}
    drawn = numbered(draw_log(NUM_SAMPLES, kinds, np.random.default_rng(8)))
    lacking = sum(row[1] is None for row in drawn.rows)
    drawn = Log(kinds, [(*row[:3], row[0] % 3 / 2) for row in drawn.rows])
    filled = [(n, 1 if y is None else y, site, 0.0 if y is None else w) for n, y, site, w in drawn.rows]
    other = Log(kinds | {"click": "label"}, filled)
    runs = []
    for name, each in (("gaps", drawn), ("zeros", other)):
        preprocess([write_csv(tmp_path / f"{name}.csv", each)], recipe(each), tmp_path / name)
        runs.append(hotset.fit(tmp_path / name, tmp_path / f"{name} run"))
    weights = [(run.folder / "weights.safetensors").read_bytes() for run in runs]
    assert lacking > 10 and weights[0] == weights[1]


def test_other_programs_get_no_sample_without_its_label(log: Log, tmp_path: Path) -> None:
    plain = without(log, "list text")
    raw = write_csv(tmp_path / "log.csv", plain)
    shards = preprocess([raw], recipe(plain), tmp_path / "dir", Resources(workers=1))
    with pytest.raises(ConfigError, match=r"^fuxictr is for training, and \d+ of 150 samples lack 'click'\n"):
        export_shards(shards, "fuxictr", tmp_path / "out")


NO_FEATURES = ("maybe label", "weight", "group integer")


@pytest.fixture(scope="module")
def labeled() -> Log:
    """A log without lists in which no sample lacks the first label."""
    kinds = {name: kind for name, kind in KINDS.items() if kind != "list text"}
    drawn = draw_log(120, kinds, np.random.default_rng(5))
    # Weights that a training bears.
    weight = list(kinds).index("w")
    rows = [[number, number % 2, *row[2:]] for number, row in enumerate(drawn.rows)]
    return Log(kinds, [(*row[:weight], row[0] % 3 / 2, *row[weight + 1 :]) for row in rows])


@pytest.fixture(scope="module")
def trained(labeled: Log, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with that log, its stages in ``dir`` and a run: none of them is changed."""
    folder = tmp_path_factory.mktemp("trained")
    raw = write_csv(folder / "log.csv", labeled)
    preprocess([raw], recipe(labeled), folder / "dir", Resources(workers=1))
    hotset.fit(folder / "dir", folder / "run")
    return folder


def test_groups_decide_nothing_of_training(labeled: Log, trained: Path, tmp_path: Path) -> None:
    plain = without(labeled, "group integer")
    raw = write_csv(tmp_path / "log.csv", plain)
    preprocess([raw], recipe(plain), tmp_path / "dir", Resources(workers=1))
    hotset.fit(tmp_path / "dir", tmp_path / "run")
    files = [folder / "run/weights.safetensors" for folder in (trained, tmp_path)]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_log_is_predicted_without_them(labeled: Log, trained: Path, tmp_path: Path) -> None:
    wanted = hotset.predict(trained / "run", trained / "log.csv")
    assert wanted.columns == ["probability_click", "probability_like it"] and len(wanted) == 120
    bare = without(labeled, *NO_FEATURES)
    other = write_csv(tmp_path / "bare.csv", bare)
    assert hotset.predict(trained / "run", other).equals(wanted)
    columns = dict(zip(bare.kinds, map(list, zip(*bare.rows, strict=True)), strict=True))
    frame = pl.DataFrame(columns, schema_overrides={"query": pl.String, "site": pl.String})
    assert hotset.predict(trained / "run", frame).equals(wanted)


@pytest.mark.slow
def test_lines_without_names_are_predicted_without_labels(labeled: Log, tmp_path: Path) -> None:
    keys = f"header = false\nfields = {list(labeled.kinds)}"
    config = replace(recipe(labeled), ingest=IngestConfig(schema=schema_text(labeled, more=keys)))
    raw = write_csv(tmp_path / "log.csv", labeled, header=False)
    preprocess([raw], config, tmp_path / "dir", Resources(workers=1))
    run = hotset.fit(tmp_path / "dir", tmp_path / "run")
    # The other fields are there, whether they are read or not.
    bare = write_csv(tmp_path / "bare.csv", without(labeled, "maybe label"), header=False)
    found = [hotset.predict(run, path, has_label=path == raw) for path in (raw, bare)]
    assert found[0].equals(found[1]) and len(found[0]) == 120


def test_a_log_without_labels_has_weights_and_groups(log: Log, tmp_path: Path) -> None:
    config = replace(recipe(log), ingest=replace(recipe(log).ingest, label=False))
    raw = write_csv(tmp_path / "log.csv", without(log, "maybe label"))
    shards = preprocess([raw], config, tmp_path / "dir", Resources(workers=1))
    assert (shards.totals["has_label"], shards.totals.get("labels")) == (False, None)
    names = pa.ipc.open_file(next((tmp_path / "dir/shards").glob("mixed*"))).schema.names
    assert names == ["weight", "group", "dense", "ids", "tags"]


@pytest.mark.parametrize(
    ("name", "value", "fault"),
    [
        ("weight", 0.25, None),
        ("weight", -1.0, "a weight of batch 0 is not a number of 0 or more"),
        ("weight", float("inf"), "a weight of batch 0 is not a number of 0 or more"),
        ("label", None, None),
        ("label", 0.5, "a label of batch 0 is neither 0 nor 1"),
        ("label_like it", 2.0, "a label of batch 0 is neither 0 nor 1"),
        ("group", None, None),
        ("group", 8, None),
    ],
)
def test_what_was_changed_in_shards_is_found(
    data: Path, name: str, value: Any, fault: str | None, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(data, tmp_path / "dir"))
    place = 0

    def change(columns: dict[str, Any]) -> None:
        nonlocal place
        place = next(row for row, found in enumerate(columns[name]) if found is not None)
        columns[name][place] = value

    path = reseal(folder / "shards", change, "mixed-00000.arrow")
    wanted = f"{path}: {name} in row {place} of record batch 0 is another value"
    assert any(line.startswith(wanted) for line in verify(folder))
    if fault is not None:
        with pytest.raises(ShardError, match=fault):
            list(ShardDataset(folder))
    elif name == "label":  # whatever is in memory where there is none, another program's 0 perhaps
        assert np.isnan(next(iter(hotset.Shards(folder).batches("mixed")))["label"][place])


def test_only_a_label_of_several_may_be_missing_in_columns(tmp_path: Path) -> None:
    log = draw_log(9, {"y": "label", "user": "group text", "a": "hex8"}, np.random.default_rng(1))
    ingest([write_csv(tmp_path / "log.csv", log)], recipe(log).ingest, tmp_path / "columns")
    # Texts are kept for features alone.
    assert [path.name for path in (tmp_path / "columns").glob("*.arrow")] == ["file0000-block0000000.arrow"]
    path = reseal(tmp_path / "columns", lambda columns: columns["label"].__setitem__(0, None))
    columns = Manifest.read(tmp_path / "columns")
    with pytest.raises(ManifestError, match=f"{path} is damaged: column 'label' lacks 1 values"):
        read_batch(columns, columns.files[0])


def test_rates_are_shown_for_every_label(log: Log, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stats", str(data), "--series", "log"]) == 0
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    columns = naive_columns(log)
    num_train = NUM_SAMPLES - 2 * (NUM_SAMPLES // 5)
    for name, column in (("click", "label"), ("like it", "label_like it")):
        labels = columns[column][num_train:]
        own = [label for label in labels if label is not None]
        rate = f"{sum(own) / len(own):.2%}"
        wanted = [
            *name.split(),
            "evaluation",
            str(len(labels)),
            str(len(labels) - len(own)),
            str(sum(own)),
            rate,
        ]
        assert wanted in shown


@pytest.mark.slow
def test_the_report_names_every_label(data: Path, tmp_path: Path) -> None:
    assert main(["stats", str(data), "--html", str(tmp_path / "report.html")]) == 0
    assert "like it" in (tmp_path / "report.html").read_text()
