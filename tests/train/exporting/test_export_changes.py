"""Changes lead a server of one run to the rows of another, by category."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from hotset.pipeline.errors import ConfigError
from hotset.pipeline.folders.manifest import Manifest
from hotset.tests.support.scored_runs import ScoredRun, run_on_criteo, run_on_lists
from hotset.train.exporting.export_changes import export_changes
from hotset.train.exporting.row_types import pack_rows, unpack_rows
from hotset.train.exporting.run_tables import RunTables
from hotset.train.options.export_config import ROW_TYPES, ExportConfig, RowType

Store = dict[tuple[str, int | str], list[float]]
"""The rows of a server by table and category, and those of "oov" and "missing"."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[ScoredRun, ScoredRun]:
    """Runs on two logs of one schema: most categories are in both vocabularies, under other ids."""
    folders = [tmp_path_factory.mktemp(name) for name in ("old", "new")]
    old, new = (run_on_lists(folder, seed=seed) for seed, folder in enumerate(folders))
    return old, new


def store_of(run: Path) -> Store:
    """Every row of a run."""
    found = RunTables.open(run)
    store: Store = {}
    for table in found.categories():
        name = table.table.name
        weights = found.weights[name]
        pairs = zip(table.categories_N.tolist(), table.ids_N.tolist(), strict=True)
        store |= {(name, category): weights[row].tolist() for category, row in pairs}
        store[name, "oov"] = weights[table.oov_id].tolist()
        store[name, "missing"] = weights[table.missing_id].tolist()
    return store


def apply(store: Store, changes: Mapping[str, torch.Tensor]) -> Store:
    """Do what the README of the changes says."""
    store = dict(store)
    names = {name.removesuffix(".gone") for name in changes if name.endswith(".gone")}
    for name in names:
        for category in changes[f"{name}.gone"].tolist():
            del store[name, category]
        rows = unpack_rows(changes[f"{name}.rows"], changes.get(f"{name}.scale"))
        pairs = zip(changes[f"{name}.categories"].tolist(), rows.tolist(), strict=True)
        store |= {(name, category): row for category, row in pairs}
        for kind in ("oov", "missing"):
            store[name, kind] = changes[f"{name}.{kind}"].tolist()
    return store


def test_a_server_ends_with_the_rows_of_the_new_run(
    runs: tuple[ScoredRun, ScoredRun], tmp_path: Path
) -> None:
    old, new = runs
    counts = export_changes(new.run, old.run, tmp_path / "changes")
    changes = load_file(tmp_path / "changes/changes.safetensors")
    assert apply(store_of(old.run), changes) == store_of(new.run)
    assert any(each.num_gone for each in counts) and any(each.num_new for each in counts)
    assert all(each.num_changed <= each.num_rows - each.num_new for each in counts)
    dense = {name: tensor for name, tensor in changes.items() if name.startswith("dense.")}
    weights = RunTables.open(new.run).weights
    assert dense.keys() == {name for name in weights if name.startswith("dense.")}
    assert all(torch.equal(tensor, weights[name]) for name, tensor in dense.items())
    inputs = Manifest.read(tmp_path / "changes").inputs
    assert [each["name"] for each in inputs] == ["run", "since"]


@pytest.mark.parametrize("row_type", ROW_TYPES)
def test_rows_that_stayed_are_not_written(
    runs: tuple[ScoredRun, ScoredRun], tmp_path: Path, row_type: RowType
) -> None:
    old, new = runs
    counts = export_changes(new.run, new.run, tmp_path / "none", ExportConfig(row_type=row_type))
    assert all((each.num_new, each.num_changed, each.num_gone) == (0, 0, 0) for each in counts)
    export_changes(new.run, old.run, tmp_path / "changes", ExportConfig(row_type=row_type))
    changes = load_file(tmp_path / "changes/changes.safetensors")
    found = RunTables.open(new.run)
    (table,) = (each for each in found.categories() if each.table.name == "site")
    rows = {
        category: row for category, row in zip(table.categories_N.tolist(), table.ids_N.tolist(), strict=True)
    }
    wanted = found.weights["site"][[rows[each] for each in changes["site.categories"].tolist()]]
    packed, _ = pack_rows(wanted, row_type)
    assert torch.equal(changes["site.rows"], packed)


def test_other_tables_are_refused(runs: tuple[ScoredRun, ScoredRun], tmp_path: Path) -> None:
    other = run_on_criteo(tmp_path)
    with pytest.raises(ConfigError, match="have other tables or schemas"):
        export_changes(runs[0].run, other.run, tmp_path / "changes")
    settings: dict[str, Any] = {"onnx": True}
    with pytest.raises(ConfigError, match="changes have no graph"):
        export_changes(runs[0].run, runs[1].run, tmp_path / "changes", ExportConfig(**settings))
