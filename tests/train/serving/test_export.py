"""Exported models give the logits of the run, from raw values, without hotset.

Tests `graph` and `serving_inputs`, too.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

import hotset
from hotset.pipeline.errors import ConfigError, HotsetError
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.folders.totals import VocabularyTotals
from hotset.pipeline.schema.schema_file import read_schema
from hotset.tests.support.logs.other_logs import Log, write_csv
from hotset.tests.support.scored_runs import NUM_EVALUATION, ScoredRun, run_on_criteo, run_on_lists
from hotset.train.config import ROW_TYPES, ExportConfig, RowType
from hotset.train.serving import export as export_module
from hotset.train.serving.export import CategoryIndex, build_graph, export_run, features_of, score_packed_rows
from hotset.train.serving.predict import RunPredictor, RunTables
from hotset.train.serving.serving_inputs import ServingInputs

TOLERANCE = 1e-5
HAS_ONNX = all(map(find_spec, ("onnxruntime", "onnxscript")))


@pytest.fixture(scope="module")
def lists(tmp_path_factory: pytest.TempPathFactory) -> ScoredRun:
    return run_on_lists(tmp_path_factory.mktemp("lists"), pooling="mean")


@pytest.fixture(scope="module")
def exported(lists: ScoredRun) -> Path:
    """The run as a folder for servers, for ONNX Runtime too where it is installed."""
    out = lists.run.parent / "exported"
    export_run(lists.run, out, ExportConfig(onnx=HAS_ONNX))
    return out


def blocks_of(exported: Path) -> list[str]:
    """Return the programs of the README."""
    return re.findall(r"```python\n(.*?)```", (exported / "README.md").read_text(), re.DOTALL)


def columns_of(log: Log) -> dict[str, list[Any]]:
    return {name: [row[number] for row in log.rows] for number, name in enumerate(log.kinds)}


def criteo_columns(log: Path) -> dict[str, list[Any]]:
    names = ["label", *(f"I{n}" for n in range(1, 14)), *(f"C{n}" for n in range(1, 27))]
    rows = [line.split("\t") for line in log.read_text().splitlines()]
    return {name: [row[number] for row in rows] for number, name in enumerate(names)}


def assert_close(found: Any, wanted: NDArray[np.float32]) -> None:
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=TOLERANCE, atol=TOLERANCE)


def logits_of_graph(scored: ScoredRun, columns: dict[str, list[Any]], **settings: Any) -> NDArray[np.float32]:
    """The logits of the graph before it is recorded, which is quick."""
    found = RunTables.open(scored.run)
    source = settings.pop("model_source", None)
    graph = build_graph(found, ExportConfig(**settings), source)
    features = scored.run.parent / "features"
    features.mkdir(exist_ok=True)
    (features / "features.json").write_text(json.dumps(export_module.features_of(found.schema)))
    _, logit = graph(*ServingInputs(features).for_torch(columns))
    return np.asarray(logit)


def test_the_graph_gives_the_logits_of_evaluate(lists: ScoredRun) -> None:
    """For texts, numbers and lists, two widths, mean pooling, missing and unknown categories."""
    assert lists.lines is not None
    found = logits_of_graph(lists, columns_of(lists.lines))
    assert_close(found, lists.evaluated())


def test_criteo_and_dcn_are_served_too(tmp_path: Path) -> None:
    """With what differs between training and use: batch normalization and dropout."""
    scored = run_on_criteo(tmp_path, model="dcnv2", batch_norm=True, dropout=0.3)
    assert_close(logits_of_graph(scored, criteo_columns(scored.log)), scored.evaluated())


class Wide(nn.Module):
    """A user's model."""

    def __init__(self, inputs: hotset.ModelInputs) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(inputs.num_dense + inputs.total_dim)
        self.layer = nn.Linear(inputs.num_dense + inputs.total_dim, 1)

    def forward(self, dense: torch.Tensor, embeddings: dict[str, torch.Tensor]) -> torch.Tensor:
        logits: torch.Tensor = self.layer(self.norm(torch.cat([dense, *embeddings.values()], dim=1)))
        return logits.squeeze(1)


class Branching(Wide):
    """A model that asks for a value, so that no graph of it exists."""

    def forward(self, dense: torch.Tensor, embeddings: dict[str, torch.Tensor]) -> torch.Tensor:
        logits = super().forward(dense, embeddings)
        return logits if logits.sum().item() > 0 else 2 * logits


def test_a_users_module_is_served(tmp_path: Path) -> None:
    scored = run_on_lists(tmp_path, format="parquet", model_source=Wide, model=f"{__name__}:Wide")
    assert scored.lines is not None
    found = logits_of_graph(scored, columns_of(scored.lines), model_source=Wide)
    assert_close(found, scored.evaluated(Wide))


@pytest.mark.slow
def test_a_module_without_a_graph_is_refused(tmp_path: Path) -> None:
    scored = run_on_lists(tmp_path, model_source=Wide, model=f"{__name__}:Wide")
    with pytest.raises(HotsetError, match=r"Wide, on a batch of .* failed in test_export\.py"):
        export_run(scored.run, tmp_path / "out", model_source=Branching)
    assert not any("out" in path.name for path in tmp_path.iterdir())


def test_columns_of_other_lengths_are_refused(lists: ScoredRun, tmp_path: Path) -> None:
    """What a short column lacks would pass for the category 0; others may have any length."""
    assert lists.lines is not None
    (tmp_path / "features.json").write_text(json.dumps(features_of(RunTables.open(lists.run).schema)))
    inputs = ServingInputs(tmp_path)
    columns = columns_of(lists.lines) | {"label": []}
    wanted = inputs.for_onnx(columns | {"other": [1, 2]})
    assert len(wanted["dense"]) == NUM_EVALUATION
    for name in ("site", inputs.multi_hot[0]["column"], inputs.dense[0]["column"]):
        with pytest.raises(ValueError, match=f"column '{name}' has 89 values, and another one 90"):
            inputs.for_onnx(columns | {name: columns[name][:-1]})
    # What pandas has in place of a missing list or text.
    name = inputs.multi_hot[0]["column"]
    found, missing = (
        inputs.for_onnx(columns | {name: [value, *columns[name][1:]]}) for value in (float("nan"), None)
    )
    assert all(np.array_equal(found[key], missing[key], equal_nan=True) for key in found)


def test_categories_are_found_by_the_naive_lookup(lists: ScoredRun) -> None:
    tables = [table.categories_N for table in RunTables.open(lists.run).categories()]
    tables.append(np.empty(0, np.int64))
    index = CategoryIndex(tables)
    rng = np.random.default_rng(0)
    for number, table in enumerate(tables):
        known = {category: row for row, category in enumerate(table.tolist())}
        asked = [*known, *rng.integers(-(2**63), 2**63 - 1, 50).tolist(), 0, -1, 2**63 - 1, -(2**63)]
        rows = index(
            torch.tensor(asked).unsqueeze(1),
            torch.zeros(len(asked), 1, dtype=torch.bool),
            torch.tensor([number]),
        )
        assert rows.squeeze(1).tolist() == [known.get(category, len(known)) for category in asked]
        missing = index(torch.tensor([[asked[0]]]), torch.tensor([[True]]), torch.tensor([number]))
        assert missing.tolist() == [[len(known) + 1]]


@pytest.mark.slow
def test_the_program_runs_where_hotset_is_not(exported: Path, lists: ScoredRun, tmp_path: Path) -> None:
    """In a process that cannot import it, on batches of one and of many samples, by the README."""
    assert lists.lines is not None
    (tmp_path / "columns.json").write_text(json.dumps(columns_of(lists.lines)))
    blocks = blocks_of(exported)
    assert len(blocks) == 2 + HAS_ONNX
    code = "\n".join(
        [
            "import sys; sys.modules['hotset'] = None",
            *blocks[:2],
            "import json; assert probability.shape == logit.shape == (2,)",
            f"columns = json.load(open({str(tmp_path / 'columns.json')!r}))",
            "run = lambda columns: model(*inputs.for_torch(columns))[1].tolist()",
            "first = {name: values[:1] for name, values in columns.items()}",
            "with torch.no_grad(): print(json.dumps([run(columns), run(first)]))",
        ]
    )
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, cwd=exported, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    every, first = json.loads(done.stdout)
    assert_close(every, lists.evaluated())
    assert_close(first, lists.evaluated()[:1])


@pytest.mark.slow
@pytest.mark.skipif(not HAS_ONNX, reason="the extra onnx is not installed")
def test_onnx_runtime_gives_the_logits_too(
    lists: ScoredRun, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lists.lines is not None
    columns = columns_of(lists.lines)
    export_run(lists.run, tmp_path / "int8", ExportConfig(onnx=True, row_type="int8"))
    of_int8 = logits_of_graph(lists, columns, row_type="int8")
    for folder, wanted in ((exported, lists.evaluated()), (tmp_path / "int8", of_int8)):
        blocks = blocks_of(folder)
        monkeypatch.chdir(folder)
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.delitem(sys.modules, "serving_inputs", raising=False)
        names: dict[str, Any] = {}
        for block in (blocks[0], blocks[2]):
            exec(block, names)  # the README's own words
        assert names["logit"].shape == names["probability"].shape == (2,)
        (logit,) = names["session"].run(["logit"], names["inputs"].for_onnx(columns))
        assert_close(logit, wanted)


@pytest.mark.parametrize("row_type", ROW_TYPES)
def test_other_row_types_cost_little_and_their_cost_is_told(lists: ScoredRun, row_type: RowType) -> None:
    told: list[tuple[str, int, int]] = []
    packed, trained = score_packed_rows(
        lists.run, lists.data, row_type, progress=lambda *call: told.append(call)
    )
    assert told == sorted(told) and told[-1] == ("evaluate", 2 * NUM_EVALUATION, 2 * NUM_EVALUATION)
    assert trained.num_samples == packed.num_samples == NUM_EVALUATION
    assert trained.log_loss is not None and packed.log_loss is not None
    assert (packed.log_loss == trained.log_loss) == (row_type == "fp32")
    # What is scored is what is served.
    assert lists.lines is not None
    logit = logits_of_graph(lists, columns_of(lists.lines), row_type=row_type).astype(np.float64)
    label = np.array(columns_of(lists.lines)["y"])
    loss = np.logaddexp(0, logit) - label * logit
    assert loss.mean() == pytest.approx(packed.log_loss, abs=1e-5)


@pytest.mark.slow
def test_the_folder_is_sealed_and_not_written_twice(exported: Path, lists: ScoredRun) -> None:
    manifest = Manifest.read(exported)
    assert manifest.inputs == [{"name": "run", "fingerprint": Manifest.read(lists.run).fingerprint}]
    names = {"model.pt2", "model.json", "features.json", "serving_inputs.py", "README.md"}
    names |= {"model.onnx", "model.onnx.data"} if HAS_ONNX else set()
    assert {entry.path for entry in manifest.files} == names
    for entry in manifest.files:
        manifest.hashed_path(entry)
    with pytest.raises(HotsetError, match="exported"):
        export_run(lists.run, exported)


def test_progress_is_told_in_rows_and_then_that_files_are_written(
    lists: ScoredRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, int, int]] = []
    monkeypatch.setattr(export_module, "write_export", lambda *arguments: told.append(("written", 0, 0)))
    export_run(lists.run, tmp_path / "out", progress=lambda *call: told.append(call))
    rows = [table.num_rows for table in RunTables.open(lists.run).tables]
    wanted = [("rows", done, sum(rows)) for done in itertools.accumulate(rows, initial=0)]
    assert told == [*wanted, ("write", 0, 0), ("written", 0, 0)]


def test_a_disk_without_room_for_the_model_is_one_line(
    lists: ScoredRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch itself ends the process by SIGABRT there."""

    def is_full(descriptor: int, start: int, count: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", is_full)
    with pytest.raises(HotsetError, match=r"has no room for .* of the model: No space left on device"):
        export_run(lists.run, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_forms_of_values_are_described() -> None:
    text = 'format = "csv"\nmissing = ["NULL"]\nzone = "Asia/Tokyo"\n[sparse]\nuser = "text"\n'
    described = features_of(read_schema(text + 'ts = { kind = "hour", format = "%H" }\n'))
    assert described["missing"] == ["NULL"] and "zone" not in described["sparse"][0]
    assert (described["sparse"][1]["format"], described["sparse"][1]["zone"]) == ("%H", "Asia/Tokyo")


def test_times_are_described_with_their_unit() -> None:
    times = '[{ kind = "hour", unit = "ms", name = "h" }, { kind = "weekday", name = "d" }]'
    (hour, day) = features_of(read_schema(f'format = "csv"\n[sparse]\nts = {times}\n'))["sparse"]
    assert hour == {"name": "h", "column": "ts", "kind": "hour", "is_list": False, "unit": "ms"}
    assert day == {"name": "d", "column": "ts", "kind": "weekday", "is_list": False}


def test_an_unknown_text_and_a_missing_one_have_rows_of_their_own(lists: ScoredRun, tmp_path: Path) -> None:
    """Those that a log of them gets."""
    assert lists.lines is not None
    number = list(lists.lines.kinds).index("user")
    rows = [
        (*row[:number], value, *row[number + 1 :])
        for row, value in zip(lists.lines.rows, ("no such", None, "a"), strict=False)
    ]
    log = Log(lists.lines.kinds, rows)
    predictor = RunPredictor(lists.run)
    logs = predictor.open_log(write_csv(tmp_path / "log.csv", log))
    assert_close(logits_of_graph(lists, columns_of(log)), np.concatenate(list(predictor.logits(logs))))
    tables = {
        table.name: table for table in VocabularyTotals.of(Manifest.read(lists.run / "vocabulary")).tables
    }
    assert tables["user"].oov_id != tables["user"].missing_id


def test_an_unknown_type_is_refused() -> None:
    settings: dict[str, Any] = {"row_type": "int4"}
    with pytest.raises(ConfigError, match="row_type must be one of fp32, fp16, bf16, int8, got 'int4'"):
        ExportConfig(**settings)
