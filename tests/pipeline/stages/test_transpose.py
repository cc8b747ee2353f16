"""The transpose stage: what it stores is what each batch looks up. Tests `lookup_files`, `check_lookups`."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from hotset.pipeline.errors import ConfigError, ManifestError, ShardError
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.formats import lookup_files
from hotset.pipeline.formats.arrow_files import open_mapped
from hotset.pipeline.runtime.resources import Resources
from hotset.pipeline.sizes import ByteSize
from hotset.pipeline.stages import transpose as stage
from hotset.pipeline.stages.preprocess import remove_from
from hotset.pipeline.stages.schedule import ScheduleConfig, schedule
from hotset.pipeline.stages.transpose import TransposeConfig, transpose
from hotset.pipeline.verify.verify import verify
from hotset.tests.support.resealed import reseal, write_manifest
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.workflows.cli import main

LONG = ShardSpec(batch_size=700, num_hot_only=800, num_mixed=1500, skew=2.5)
SPECS = {
    "one-hot": ShardSpec(),
    "original": ShardSpec(order="original", batch_size=8),
    "multi-hot": ShardSpec(multi_hot=(1, 2), batch_size=8),
    "widths": ShardSpec(
        num_rows=(5, 40, 300, 90), num_hot=(5, 10, 20, 8), table_dims=(4, 8, 4, 8), multi_hot=(3,)
    ),
    "all hot": ShardSpec(num_rows=(5, 4), num_hot=(5, 4), num_mixed=0),
    "long lists": LONG,
}


def naive_lists(ids: list[list[int]]) -> list[dict[str, list[int]]]:
    """The stored lists of a batch, from the ids of each table's lookups."""
    found = []
    for table in ids:
        order = sorted(range(len(table)), key=lambda lookup: (table[lookup], lookup))
        rows = sorted(set(table))
        starts = [[table[lookup] for lookup in order].index(row) for row in rows]
        long_rows = [i for i, row in enumerate(rows) if table.count(row) > 256]
        found.append({"order": order, "rows": rows, "starts": starts, "long_rows": long_rows})
    return found


def ids_of(batch: Any, spec: ShardSpec) -> list[list[int]]:
    """Ids of the lookups of each table, as Arrow has them."""
    one_hot = iter(np.array(batch.column("ids").to_pylist()).T.tolist())
    lists = {table: batch.column(f"C{table + 1}").to_pylist() for table in spec.multi_hot}
    return [
        [*chain.from_iterable(lists[table])] if table in lists else next(one_hot)
        for table in range(spec.num_features)
    ]


def faults_of(folder: Path) -> list[str]:
    """Those that verify finds in the lookups; drawn shards have faults of their own."""
    return [fault for fault in verify(folder) if fault.startswith(str(folder / "lookups"))]


def bytes_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("most_short", [1 << 16, 10])
def test_every_batch_is_stored_by_row(
    name: str, most_short: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup_files, "_MOST_SHORT", most_short)
    spec = SPECS[name]
    shards = Manifest.read(write_shards(tmp_path / "shards", spec))
    made = transpose(TransposeConfig(), shards, tmp_path / "lookups")
    assert [e.path for e in made.files] == [e.path for e in shards.files if "evaluation" not in e.path]
    num_rows = 0
    for entry in made.files:
        packed = open_mapped(shards.folder / entry.path)
        stored = open_mapped(made.folder / entry.path)
        assert (stored.schema.field("order").type.value_type == pa.uint16()) == (
            most_short > spec.batch_size * (2 if spec.multi_hot else 1) or not entry.num_samples
        )
        assert stored.num_record_batches == packed.num_record_batches
        for number in range(stored.num_record_batches):
            wanted = naive_lists(ids_of(packed.get_batch(number), spec))
            assert stored.get_batch(number).to_pylist() == wanted
            num_rows += sum(len(table["rows"]) for table in wanted)
    assert made.totals["rows"] == num_rows
    assert name != "long lists" or made.totals["long_rows"] > 3
    assert faults_of(tmp_path) == []


@pytest.mark.parametrize("workers", [1, 2])
def test_cut_short_it_resumes_to_the_same_bytes(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = Manifest.read(write_shards(tmp_path / "shards", ShardSpec(batch_size=8)))
    whole = transpose(TransposeConfig(), shards, tmp_path / "whole", Resources(workers=1))
    calls = 0

    def stopping(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 12:  # within the second file
            raise KeyboardInterrupt
        return lookup_files.lookup_batch(*arguments)

    monkeypatch.setattr(stage, "lookup_batch", stopping)
    with pytest.raises(KeyboardInterrupt):
        transpose(TransposeConfig(), shards, tmp_path / "cut", Resources(workers=1))
    monkeypatch.setattr(stage, "lookup_batch", lookup_files.lookup_batch)
    assert not (tmp_path / "cut" / "manifest.json").exists()
    transpose(TransposeConfig(), shards, tmp_path / "cut", Resources(workers=workers))
    assert bytes_in(tmp_path / "cut") == bytes_in(tmp_path / "whole")
    assert len(whole.files) == 2


def test_other_shards_need_another_folder(tmp_path: Path) -> None:
    first = Manifest.read(write_shards(tmp_path / "shards", ShardSpec()))
    other = Manifest.read(write_shards(tmp_path / "other" / "shards", ShardSpec(seed=1)))
    transpose(TransposeConfig(), first, tmp_path / "lookups")
    with pytest.raises(ManifestError, match="lookups"):
        transpose(TransposeConfig(), other, tmp_path / "lookups")


def test_damaged_shards_are_refused_by_name(tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "shards", ShardSpec())
    path = folder / "mixed-00000.arrow"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(ManifestError, match=r"mixed-00000\.arrow is damaged"):
        transpose(TransposeConfig(), Manifest.read(folder), tmp_path / "lookups")


@pytest.mark.parametrize(("multi_hot", "sample"), [((), 3), ((0,), 3), ((0,), 0)])
def test_an_id_outside_its_table_is_refused_whatever_the_checksums(
    multi_hot: tuple[int, ...], sample: int, tmp_path: Path
) -> None:
    folder = write_shards(tmp_path / "shards", ShardSpec(multi_hot=multi_hot))

    def stray(columns: dict[str, Any]) -> None:
        columns["ids"][sample][-1] = 300

    reseal(folder, stray, "mixed-00000.arrow")
    with pytest.raises(ShardError, match=r"mixed-00000\.arrow: id 300 in table C3 of 300 rows"):
        transpose(TransposeConfig(), Manifest.read(folder), tmp_path / "lookups")


@pytest.mark.parametrize(("num_lookups", "num_long"), [(256, 0), (257, 1)])
def test_a_row_is_long_from_257_lookups_on(num_lookups: int, num_long: int, tmp_path: Path) -> None:
    spec = ShardSpec(
        num_rows=(1, 300),
        num_hot=(1, 300),
        num_mixed=0,
        num_hot_only=num_lookups,
        batch_size=num_lookups,
    )
    shards = Manifest.read(write_shards(tmp_path / "shards", spec))
    made = transpose(TransposeConfig(), shards, tmp_path / "lookups")
    assert made.totals["lookups"] == 2 * num_lookups
    assert made.totals["long_rows"] == num_long


def test_shards_whose_numbers_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "shards", ShardSpec())
    parts = json.loads((folder / "manifest.json").read_text())
    parts["version"] = 2
    write_manifest(folder, parts)
    with pytest.raises(ManifestError, match="version 2, want 'pack', 1"):
        transpose(TransposeConfig(), Manifest.read(folder), tmp_path / "lookups")


@pytest.mark.parametrize("name", ["one-hot", "multi-hot"])
def test_the_bytes_it_needs_are_those_of_all_lookups_of_a_batch(name: str, tmp_path: Path) -> None:
    """Those of one-hot features are as many as samples, those of lists at most all of a file."""
    spec = SPECS[name]
    shards = Manifest.read(write_shards(tmp_path / "shards", spec))
    files = [entry for entry in shards.files if entry.facts["kind"] != "evaluation"]
    num_one_hot = len(spec.num_rows) - len(spec.multi_hot)
    lists = max(sum((entry.facts.get("lookups") or {}).values()) for entry in files)
    lookups = spec.batch_size * num_one_hot + lists
    largest = max(entry.num_bytes for entry in files)
    assert stage.needed_for(shards, 3) == 3 * (largest + lookups * stage._BYTES_A_LOOKUP)


def test_a_small_memory_cap_is_refused(tmp_path: Path) -> None:
    shards = Manifest.read(write_shards(tmp_path / "shards", ShardSpec()))
    with pytest.raises(ConfigError, match="transpose cannot stay within"):
        transpose(TransposeConfig(), shards, tmp_path / "lookups", Resources(memory_bytes=10_000_000))
    assert not (tmp_path / "lookups" / "manifest.json").exists()


def test_it_is_made_again_without_the_schedule_and_with_the_shards(tmp_path: Path) -> None:
    shards = Manifest.read(write_shards(tmp_path / "shards", ShardSpec()))
    transpose(TransposeConfig(), shards, tmp_path / "lookups")
    schedule(ScheduleConfig(staging_bytes=ByteSize(3000)), shards, tmp_path / "schedule")
    assert remove_from("transpose", tmp_path) == [tmp_path / "lookups"]
    transpose(TransposeConfig(), shards, tmp_path / "lookups")
    assert remove_from("schedule", tmp_path) == [tmp_path / "schedule"]
    assert {path.name for path in remove_from("pack", tmp_path)} == {"lookups", "shards"}


def test_the_command_says_what_it_stored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_shards(tmp_path / "shards", ShardSpec())
    assert main(["transpose", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert f"{tmp_path / 'lookups'}: 2 files" in printed
    assert "8 batches: 3.0 lookups of" in printed and "bytes per sample" in printed
    assert main(["transpose", str(tmp_path), "--redo", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["lookups"] == 660


def test_shards_cut_short_while_they_are_read_end_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_shards(tmp_path / "shards", LONG)
    whole = transpose(TransposeConfig(), Manifest.read(folder), tmp_path / "whole", Resources(workers=1))
    schema = lookup_files.lookup_schema

    def cutting(most: int) -> Any:
        # All batches are open, and their ids are not read yet.
        for path in folder.glob("*.arrow"):
            with open(path, "r+b") as file:
                file.truncate(0)
        return schema(most)

    monkeypatch.setattr(stage, "lookup_schema", cutting)
    # The first file was read before it was cut, the second is refused by its size.
    with pytest.raises(ManifestError, match=r"mixed-00000\.arrow has 0 bytes"):
        transpose(TransposeConfig(), Manifest.read(folder), tmp_path / "lookups", Resources(workers=1))
    first = tmp_path / "lookups" / "hot_only-00000.arrow"
    assert first.read_bytes() == (whole.folder / first.name).read_bytes()
