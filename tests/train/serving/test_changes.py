"""Changes lead an exported folder to a whole export of the later run.

Changes lead a server of one run to the rows of another, by category.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import hotset
from hotset.pipeline.errors import ConfigError, HotsetError
from hotset.pipeline.folders.manifest import Manifest, hash_file
from hotset.tests.support.resealed import write_manifest
from hotset.tests.support.scored_runs import ScoredRun, run_on_lists
from hotset.train.config import ROW_TYPES, ExportConfig, RowType
from hotset.train.serving import changes as module
from hotset.train.serving.changes import TableChanges, apply_changes, export_changes
from hotset.train.serving.export import ServedTable, build_graph, export_run
from hotset.train.serving.predict import RunTables, pack_rows, unpack_rows


@dataclass(frozen=True, slots=True)
class Folders:
    """Two runs of one schema, whose categories are partly the same, and the changes between them."""

    old: ScoredRun
    new: ScoredRun
    changes: Path


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    parents = [tmp_path_factory.mktemp(name) for name in ("old", "new")]
    old, new = (
        run_on_lists(parent, seed=seed, tables={"codes": "site"}) for seed, parent in enumerate(parents)
    )
    export_changes(new.run, old.run, parents[1] / "changes")
    return Folders(old, new, parents[1] / "changes")


@pytest.fixture
def unrecorded(folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An exported folder of the old run whose program is the graph before it is recorded, which is quick."""

    class Program:
        state_dict = build_graph(RunTables.open(folders.old.run), ExportConfig()).state_dict()

    def save(program: Any, path: Path) -> None:
        Path(path).write_bytes(b"a program")

    monkeypatch.setattr(torch.export, "export", lambda *arguments, **named: None)
    monkeypatch.setattr(torch.export, "save", save)
    monkeypatch.setattr(torch.export, "load", lambda path: Program)
    export_run(folders.old.run, tmp_path / "exported")
    return tmp_path / "exported"


def naive_table(
    served: dict[int, list[float]], changed: dict[int, list[float]], gone: set[int]
) -> dict[int, list[float]]:
    return {category: row for category, row in (served | changed).items() if category not in gone}


@given(data=st.data(), row_type=st.sampled_from(ROW_TYPES))
@settings(max_examples=40, deadline=None)
def test_a_table_is_that_of_the_naive_twin(data: st.DataObject, row_type: RowType) -> None:
    """Any sets of categories: none at all, all gone, all new, the least and the largest 64-bit integer."""
    numbers = st.sets(st.sampled_from([-(2**63), -5, -1, 0, 1, 7, 8, 9, 2**63 - 1]))
    before, stored = sorted(data.draw(numbers)), sorted(data.draw(numbers))
    gone = sorted(data.draw(st.sets(st.sampled_from(before))) - set(stored)) if before else []
    generator = torch.Generator().manual_seed(len(before) + 10 * len(stored))
    rows = {
        name: torch.randn(size, 3, generator=generator)
        for name, size in (("before", len(before) + 2), ("stored", len(stored)), ("special", 2))
    }
    packed, scale = pack_rows(rows["stored"], row_type) if stored else (pack_rows(torch.ones(1, 3), row_type))
    if not stored:
        packed, scale = packed[:0], None if scale is None else scale[:0]
    tensors = {
        "T.categories": torch.tensor(stored, dtype=torch.int64),
        "T.rows": packed,
        "T.gone": torch.tensor(gone, dtype=torch.int64),
        "T.oov": rows["special"][0],
        "T.missing": rows["special"][1],
    } | ({} if scale is None else {"T.scale": scale})
    served = ServedTable(np.array(before, np.int64), *pack_rows(rows["before"], row_type))
    found, counts = module._changed(served, tensors, "T", row_type, Path("changes"))

    def by_category(categories: list[int], packed: torch.Tensor, scale: Any) -> dict[int, list[float]]:
        both = packed.double() if scale is None else torch.cat([packed.double(), scale.double()], dim=1)
        return dict(zip([*categories, "oov", "missing"], both.tolist(), strict=False))  # type: ignore[list-item]

    wanted = naive_table(
        by_category(before, served.packed_ND, served.scale_N2), by_category(stored, packed, scale), set(gone)
    )
    special_packed, special_scale = pack_rows(rows["special"], row_type)
    wanted |= by_category([], special_packed, special_scale)
    assert by_category(found.categories_N.tolist(), found.packed_ND, found.scale_N2) == wanted
    assert found.categories_N.tolist() == sorted(found.categories_N.tolist())
    known = set(before) & set(stored)
    sizes = (len(wanted) - 2, len(stored) - len(known), len(known), len(gone))
    assert counts == TableChanges("T", *sizes)


def test_the_graph_is_that_of_a_whole_export(
    folders: Folders, unrecorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Any] = []
    monkeypatch.setattr(module, "write_export", lambda folder, graph, *others: written.append(graph))
    told: dict[str, list[tuple[str, int, int]]] = {"apply": [], "export": []}
    counts = apply_changes(
        unrecorded, folders.changes, tmp_path / "out", progress=lambda *call: told["apply"].append(call)
    )
    assert counts == export_changes(
        folders.new.run,
        folders.old.run,
        tmp_path / "changes",
        progress=lambda *call: told["export"].append(call),
    )
    num_rows = sum(table.num_rows for table in RunTables.open(folders.new.run).tables)
    assert told["apply"] == [*told["export"], ("write", 0, 0)]
    assert told["export"][0] == ("rows", 0, num_rows) and told["export"][-1] == ("rows", num_rows, num_rows)
    assert sum(each.num_gone for each in counts) and sum(each.num_new for each in counts)
    found = written[0].state_dict()
    wanted = build_graph(RunTables.open(folders.new.run), ExportConfig()).state_dict()
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    assert not torch.equal(
        found["index.categories_C"],
        build_graph(RunTables.open(folders.old.run), ExportConfig()).state_dict()["index.categories_C"],
    )


@pytest.mark.slow
def test_the_folder_is_that_of_a_whole_export(folders: Folders, tmp_path: Path) -> None:
    """To record a program takes seconds, so one whole export stands for both."""
    config = ExportConfig(row_type="int8")
    export_run(folders.old.run, tmp_path / "old", config)
    for name, run, since in (("new", folders.new, folders.old), ("back", folders.old, folders.new)):
        export_changes(run.run, since.run, tmp_path / f"to {name}", config)
    assert hotset.apply(tmp_path / "old", tmp_path / "to new", tmp_path / "new") == tmp_path / "new"
    assert_program_of(folders.new, tmp_path / "new", config)
    apply_changes(tmp_path / "new", tmp_path / "to back", tmp_path / "back")
    assert_program_of(folders.old, tmp_path / "back", config)
    files = sorted(path.name for path in (tmp_path / "old").iterdir())
    assert sorted(path.name for path in (tmp_path / "back").iterdir()) == files
    for name in files:
        if name not in ("model.pt2", "manifest.json"):
            assert (tmp_path / "back" / name).read_bytes() == (tmp_path / "old" / name).read_bytes(), name


def assert_program_of(scored: ScoredRun, exported: Path, config: ExportConfig) -> None:
    """Compare the rows and layers of a recorded program with those of the graph of a run."""
    found = torch.export.load(exported / "model.pt2").state_dict
    wanted = build_graph(RunTables.open(scored.run), config).state_dict()
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_changes_of_another_run_or_type_are_refused(
    folders: Folders, unrecorded: Path, tmp_path: Path
) -> None:
    export_changes(folders.old.run, folders.new.run, tmp_path / "back")
    with pytest.raises(HotsetError, match=r"back begins with the run .*, and .*exported holds the run"):
        apply_changes(unrecorded, tmp_path / "back", tmp_path / "out")
    export_changes(folders.new.run, folders.old.run, tmp_path / "int8", ExportConfig(row_type="int8"))
    with pytest.raises(HotsetError, match=r"the rows of .*int8 are int8, those of .* fp32"):
        apply_changes(unrecorded, tmp_path / "int8", tmp_path / "out")
    with pytest.raises(HotsetError, match=r"has no changes\.safetensors"):
        apply_changes(unrecorded, unrecorded, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["changes.safetensors", "model.json", "manifest.json"])
def test_damage_is_refused(folders: Folders, unrecorded: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(folders.changes, tmp_path / "changes")
    path = tmp_path / "changes" / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(HotsetError, match=r"damaged|checksum"):
        apply_changes(unrecorded, tmp_path / "changes", tmp_path / "out")
    # The base is hashed as well.
    (unrecorded / "model.pt2").write_bytes(b"a progran")
    with pytest.raises(HotsetError, match=r"damaged|checksum"):
        apply_changes(unrecorded, folders.changes, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("fault", ["shape", "lacking", "stray tombstone", "order", "dense"])
def test_changes_that_do_not_fit_are_refused(
    folders: Folders, unrecorded: Path, tmp_path: Path, fault: str
) -> None:
    """Sealed anew, as a hostile hand might: what does not fit reaches no table."""
    shutil.copytree(folders.changes, tmp_path / "changes")
    path = tmp_path / "changes/changes.safetensors"
    tensors = load_file(path)
    if fault == "shape":
        tensors["site.rows"] = tensors["site.rows"][:, 1:].contiguous()
    elif fault == "lacking":
        del tensors["site.oov"]
    elif fault == "stray tombstone":
        tensors["site.gone"] = torch.cat([tensors["site.gone"], torch.tensor([2**62])])
    elif fault == "order":
        tensors["site.categories"] = tensors["site.categories"].flip(0)
    else:
        del tensors[next(name for name in tensors if name.startswith("dense."))]
    save_file(tensors, path)
    parts = json.loads((tmp_path / "changes/manifest.json").read_text())
    entry = next(each for each in parts["files"] if each["path"] == path.name)
    entry["bytes"], entry["xxh3_128"] = hash_file(path)
    write_manifest(tmp_path / "changes", parts)
    with pytest.raises(HotsetError, match="is damaged"):
        apply_changes(unrecorded, tmp_path / "changes", tmp_path / "out")


def test_a_folder_that_is_not_there_is_answered_with_the_commands_that_write_one(tmp_path: Path) -> None:
    with pytest.raises(HotsetError, match="does not exist") as caught:
        apply_changes(tmp_path / "changes", tmp_path / "no-such", tmp_path / "out")
    assert "export RUN --out FOLDER" in str(caught.value.hint)


Store = dict[tuple[str, int | str], list[float]]
"""The rows of a server by table and category, and those of "oov" and "missing"."""


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


def test_a_server_ends_with_the_rows_of_the_new_run(folders: Folders, tmp_path: Path) -> None:
    counts = export_changes(folders.new.run, folders.old.run, tmp_path / "changes")
    changes = load_file(tmp_path / "changes/changes.safetensors")
    assert apply(store_of(folders.old.run), changes) == store_of(folders.new.run)
    assert any(each.num_gone for each in counts) and any(each.num_new for each in counts)
    assert all(each.num_changed <= each.num_rows - each.num_new for each in counts)
    dense = {name: tensor for name, tensor in changes.items() if name.startswith("dense.")}
    weights = RunTables.open(folders.new.run).weights
    assert dense.keys() == {name for name in weights if name.startswith("dense.")}
    assert all(torch.equal(tensor, weights[name]) for name, tensor in dense.items())
    inputs = Manifest.read(tmp_path / "changes").inputs
    assert [each["name"] for each in inputs] == ["run", "since"]


@pytest.mark.parametrize("row_type", ROW_TYPES)
def test_rows_that_stayed_are_not_written(folders: Folders, tmp_path: Path, row_type: RowType) -> None:
    old, new = folders.old, folders.new
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


def test_other_tables_are_refused(folders: Folders, tmp_path: Path) -> None:
    other = run_on_lists(tmp_path)
    with pytest.raises(ConfigError, match="have other tables, schemas or labels"):
        export_changes(folders.old.run, other.run, tmp_path / "changes")
    with pytest.raises(ConfigError, match="changes have no graph"):
        export_changes(folders.old.run, folders.new.run, tmp_path / "changes", ExportConfig(onnx=True))
