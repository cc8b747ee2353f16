"""One changed byte anywhere is found and its file named; so is whatever does not add up."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from hotset.pipeline.errors import ManifestError
from hotset.pipeline.folders.checksum import hash_file
from hotset.pipeline.folders.manifest import MANIFEST, checksum_of
from hotset.pipeline.generate.generate_log import GenerateConfig, generate
from hotset.pipeline.runtime.resources import Resources
from hotset.pipeline.sizes import ByteSize
from hotset.pipeline.stages.pack import PackConfig
from hotset.pipeline.stages.preprocess import PreprocessConfig, preprocess
from hotset.pipeline.stages.split import SplitConfig
from hotset.pipeline.verify.verify import STAGE_FOLDERS, verify
from hotset.tests.support.resealed import reseal_later_folders


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verify")
    generate(GenerateConfig(samples=1500, scale=200), folder / "log.tsv", workers=1)
    config = PreprocessConfig(
        split=SplitConfig(embedding_optimizer="sgd", hot_bytes=ByteSize(20_000)),
        pack=PackConfig(batch_size=100),
    )
    preprocess([folder / "log.tsv"], config, folder / "dir", Resources(workers=1))
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "dir", tmp_path / "dir"))


def rewrite_manifest(path: Path, **changes: object) -> None:
    """Change a manifest and give it the checksum that fits."""
    parts = json.loads(path.read_text())
    parts.pop("checksum")
    parts |= changes
    path.write_text(json.dumps(parts | {"checksum": checksum_of(parts)}))


def test_an_untouched_folder_has_no_fault(made: Path) -> None:
    assert verify(made / "dir", Resources(workers=2), raw=[made / "log.tsv"]) == []


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_one_flipped_bit_in_any_file_is_found_and_the_file_named(
    every: int, folder: Path, rng: np.random.Generator
) -> None:
    for path in sorted(path for path in folder.rglob("*") if path.is_file())[::every]:
        whole = path.read_bytes()
        damaged = bytearray(whole)
        damaged[rng.integers(len(whole))] ^= 1 << rng.integers(8)
        path.write_bytes(damaged)
        faults = verify(folder, Resources(workers=1))
        assert faults and str(path) in faults[0], path
        path.write_bytes(whole)


def test_missing_files_and_strangers_are_named(folder: Path) -> None:
    (folder / "plan" / "stranger.txt").write_text("hello")
    next((folder / "shards").glob("mixed*")).unlink()
    faults = verify(folder)
    assert any("stranger.txt is no part" in fault for fault in faults)
    assert any("mixed-00000.arrow cannot be read" in fault for fault in faults)


def test_a_folder_made_from_another_one_is_found(folder: Path) -> None:
    rewrite_manifest(folder / "counts" / "manifest.json", version=7)
    assert any("vocabulary was made from another counts" in fault for fault in verify(folder))


@pytest.mark.parametrize("stage", ["samples", "plan", "vocabulary", "shards"])
def test_data_that_disagree_are_found_though_every_checksum_fits(folder: Path, stage: str) -> None:
    manifest = folder / stage / "manifest.json"
    parts = json.loads(manifest.read_text())
    entry = next(entry for entry in parts["files"] if entry["samples"] > 1)
    path = folder / stage / entry["path"]
    batches = pa.ipc.open_file(path.read_bytes()).read_all().to_batches()
    name = {"samples": "ids", "plan": "is_hot", "vocabulary": "count", "shards": "ids"}[stage]
    values = batches[0].column(name)
    kind = values.type
    old = values.to_pylist()[::-1]
    wrong = pa.array(old if stage == "vocabulary" else [_wrong(value) for value in old])
    batches[0] = batches[0].set_column(batches[0].schema.get_field_index(name), name, wrong.cast(kind))
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    entry["bytes"], entry["xxh3_128"] = hash_file(path)
    rewrite_manifest(manifest, files=parts["files"])
    assert any(str(path) in fault and "checksum" not in fault for fault in verify(folder))


def _wrong(value: list[int] | int) -> list[int] | int:
    return [10**9] * len(value) if isinstance(value, list) else 1 - value


@pytest.mark.parametrize(
    ("before", "name"), [("counts", "vocabulary"), ("vocabulary", "plan"), ("plan", "shards")]
)
def test_another_validation_part_is_found(folder: Path, before: str, name: str) -> None:
    path = folder / name / "manifest.json"
    rewrite_manifest(path, totals=json.loads(path.read_text())["totals"] | {"num_valid_samples": 5})
    reseal_later_folders(folder)
    assert f"{folder / name} has 5 validation samples, {before} has 0" in verify(folder, Resources(workers=1))


@pytest.mark.parametrize("tables", [["x"], ["x", "C2"], []])
def test_a_table_that_its_manifest_does_not_name_is_a_fault(folder: Path, tables: list[str]) -> None:
    path = folder / "vocabulary" / "manifest.json"
    totals = json.loads(path.read_text())["totals"]
    own = totals["tables"]
    totals["tables"] = [table | {"name": name} for table, name in zip(own, tables, strict=False)] + own[2:]
    totals["num_rows"] = sum(table["num_rows"] for table in totals["tables"])
    rewrite_manifest(path, totals=totals)
    wanted = f"{path}: its total 'tables' is not what the rank stage finds when run again"
    assert wanted in verify(folder, Resources(workers=1))


def test_another_log_is_found(made: Path, tmp_path: Path) -> None:
    text = bytearray((made / "log.tsv").read_bytes())
    text[0] ^= 1
    (tmp_path / "log.tsv").write_bytes(text)
    faults = verify(made / "dir", raw=[tmp_path / "log.tsv"])
    assert len(faults) == 1 and "is not the log" in faults[0]


def test_a_folder_without_stages_is_refused(tmp_path: Path) -> None:
    assert set(STAGE_FOLDERS) == {
        "columns",
        "counts",
        "vocabulary",
        "samples",
        "plan",
        "shards",
        "id_map",
    }
    with pytest.raises(ManifestError, match="contains nothing that a stage wrote"):
        verify(tmp_path)


def test_progress_is_told_in_bytes_of_the_files(made: Path) -> None:
    told: list[tuple[str, int, int]] = []
    resources = Resources(workers=2, progress=lambda *call: told.append(call))
    assert verify(made / "dir", resources, rebuild=False) == []
    files = [path for path in (made / "dir").rglob("*") if path.is_file() and path.name != MANIFEST]
    total = sum(path.stat().st_size for path in files)
    assert {(stage, of) for stage, _, of in told} == {("verify", total)}
    done = [done for _, done, _ in told]
    assert done == sorted(done) and len(done) == len(files) and done[-1] == total
