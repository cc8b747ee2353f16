"""What serves a run reads the raw fields of its log, and the values of a frame, as `hotset.predict` does.

In every runtime, and after changes were applied.
"""

from __future__ import annotations

import csv
import datetime
import json
from decimal import Decimal
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from numpy.typing import NDArray

import hotset
from hotset.train.config import ExportConfig
from hotset.train.serving.export import build_graph, features_of
from hotset.train.serving.predict import RunTables
from hotset.train.serving.serving_inputs import FEATURES, ServingInputs
from hotset.workflows.cli import main

SCHEMA = """
format = "csv"
separator = ";"
label = "y"
missing = ["NULL", "-"]
zone = "Asia/Kathmandu"
time = { column = "stamp", unit = "s" }
[dense]
price = "float"
raw = { kind = "float", transform = "none" }
count = "integer"
[sparse]
item = "integer"
seen = { kind = "integer", list = true, separator = "|", weight_separator = ":", table = "item" }
tags = { kind = "text", list = "brackets", separator = "," }
shop = "text"
code = "hex8"
when = { kind = "hour", name = "hour", unit = "s" }
at = { kind = "weekday", name = "day" }
"""
COLUMNS = ["y", "price", "raw", "count", "item", "seen", "tags", "shop", "code", "when", "at", "stamp"]


def field(rng: np.random.Generator, name: str) -> str:
    """Draw a field of the log; one in eight is missing."""
    number = int(rng.integers(0, 6))
    if name != "y" and rng.random() < 0.125:
        return str(rng.choice(["", "NULL", "-"]))
    fields = {
        "y": str(number % 2),
        "price": str(rng.choice(["1.5", "3e1", "-2", "true", ".25"])),
        "raw": str(rng.choice(["0.5", "-1", "1e-3"])),
        "count": str(rng.choice(["7", "-3", "12.0", "0"])),
        "item": f"{number}{rng.choice(['', '.0'])}",
        "seen": "|".join(f"{rng.integers(0, 6)}:{rng.choice(['0.5', '1e3'])}" for _ in range(number % 4)),
        "tags": str(rng.choice(['["a", "b,c"]', "[]", "{a,null}", "('d')", "a", '["\\u00e9"]'])),
        "shop": str(rng.choice(["x", "ü", " y "])),
        "code": f"{number:08x}",
        "when": f"{1_700_000_000 + 3600 * number}{rng.choice(['', '.5'])}",
        "at": f"2024-02-2{number} 23:30{rng.choice(['', ':59', ' +0530'])}",
    }
    return fields[name]


def write_log(path: Path, seed: int, num_samples: int = 120) -> Path:
    rng = np.random.default_rng(seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file, delimiter=";")
        writer.writerow(COLUMNS)
        for row in range(num_samples):
            writer.writerow([*(field(rng, name) for name in COLUMNS[:-1]), 1_700_000_000 + row])
    return path


def fields_of(log: Path) -> dict[str, list[str]]:
    """Return the text of each column, as anybody's reader has it."""
    with log.open(newline="") as file:
        rows = list(csv.reader(file, delimiter=";"))[1:]
    return {name: [row[number] for row in rows] for number, name in enumerate(COLUMNS)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log, and a run on it."""
    found = tmp_path_factory.mktemp("served")
    log = write_log(found / "log.csv", 0)
    (found / "log.toml").write_text(SCHEMA)
    options: dict[str, Any] = {"schema": str(found / "log.toml"), "batch_size": 16, "embedding_dim": 4}
    hotset.preprocess(log, found / "data", workers=1, progress=False, **options)
    hotset.fit(found / "data", found / "run", threads=1, embedding_lr=0.3, progress=False)
    return found


def inputs_of(run: Path, folder: Path) -> ServingInputs:
    (folder / FEATURES).write_text(json.dumps(features_of(RunTables.open(run).schema)))
    return ServingInputs(folder)


def assert_close(found: Any, wanted: NDArray[np.float32]) -> None:
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-5, atol=1e-6)


def test_raw_fields_of_a_log_have_the_probabilities_of_predict(folder: Path, tmp_path: Path) -> None:
    log = write_log(tmp_path / "new.csv", 1)
    wanted = hotset.predict(folder / "run", log, progress=False)["probability"].to_numpy()
    graph = build_graph(RunTables.open(folder / "run"), ExportConfig())
    columns: dict[str, Any] = fields_of(log)
    inputs = inputs_of(folder / "run", tmp_path)
    with torch.no_grad():
        assert_close(graph(*inputs.for_torch(columns))[0], wanted)
        as_bytes = {name: [each.encode() for each in values] for name, values in columns.items()}
        assert_close(graph(*inputs.for_torch(as_bytes))[0], wanted)


def typed_columns() -> dict[str, Any]:
    """Columns of a frame in other types than text; the time that divides the log is not among them."""
    moment = datetime.datetime(2024, 2, 29, 23, 30, tzinfo=datetime.UTC)
    return {
        "price": pa.array([Decimal("1.50"), None, Decimal("-2.25")]),
        "raw": pa.array([0.5, None, -1.0], pa.float32()),
        "count": pa.array([7, None, -3], pa.int8()),
        "item": pa.array([1.0, None, 5.0]),
        "seen": pa.array([[1, 2], None, [5, None]], pa.list_(pa.uint16())),
        "tags": pa.array([["a", "b,c"], None, []], pa.large_list(pa.string())),
        "shop": pa.array([b"x", None, "ü".encode()], pa.binary()),
        "code": pa.array(["00000003", None, "0000000F"], pa.large_string()),
        "when": pa.array([1_700_000_000, None, 1_700_090_000], pa.uint32()),
        "at": pa.array([moment, None, moment], pa.timestamp("ns", "UTC")),
    }


def test_values_of_frames_have_the_probabilities_of_predict(folder: Path, tmp_path: Path) -> None:
    table = pa.table(typed_columns())
    wanted = hotset.predict(folder / "run", table, progress=False)["probability"].to_numpy()
    graph = build_graph(RunTables.open(folder / "run"), ExportConfig())
    inputs = inputs_of(folder / "run", tmp_path)
    columns = [{name: table[name].to_pylist() for name in table.column_names}]
    if find_spec("pandas"):
        columns.append({name: list(values) for name, values in table.to_pandas().items()})
    for each in columns:
        with torch.no_grad():
            assert_close(graph(*inputs.for_torch(each))[0], wanted)


@pytest.mark.slow
def test_every_runtime_and_applied_changes_have_the_probabilities_of_predict(
    folder: Path, tmp_path: Path
) -> None:
    has_onnx = bool(find_spec("onnxruntime") and find_spec("onnxscript"))
    log = write_log(tmp_path / "new.csv", 2)
    columns: dict[str, Any] = fields_of(log)

    def served(exported: Path) -> NDArray[np.float32]:
        model = torch.export.load(exported / "model.pt2").module()
        with torch.no_grad():
            found: NDArray[np.float32] = model(*ServingInputs(exported).for_torch(columns))[0].numpy()
        return found

    exported = hotset.export(folder / "run", tmp_path / "exported", onnx=has_onnx, progress=False)
    wanted = hotset.predict(folder / "run", log, progress=False)["probability"].to_numpy()
    assert_close(served(exported), wanted)
    if has_onnx:
        session = import_module("onnxruntime").InferenceSession(str(exported / "model.onnx"))
        assert_close(session.run(["probability"], ServingInputs(exported).for_onnx(columns))[0], wanted)
    # A later run, whose changes are applied to the folder of the first.
    later = tmp_path / "later"
    hotset.fit(folder / "data", later, seed=5, threads=1, embedding_lr=0.3, progress=False)
    changes, applied = str(tmp_path / "changes"), tmp_path / "applied"
    assert main(["export", "-q", str(later), "--since", str(folder / "run"), "--out", changes]) == 0
    assert main(["apply", "-q", changes, "--to", str(exported), "--out", str(applied)]) == 0
    wanted = hotset.predict(later, log, progress=False)["probability"].to_numpy()
    assert_close(served(applied), wanted)
