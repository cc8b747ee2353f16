"""Exported files are read by the programs they are for."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotset.pipeline.export import ExportFormat, export_shards
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.generate.generate import GenerateConfig, generate
from hotset.pipeline.preprocess import PreprocessConfig, preprocess
from hotset.pipeline.runtime.tasks import Resources
from hotset.pipeline.stages.count import CountConfig

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A preprocessed log of 30,000 samples with a validation and a test part."""
    folder = tmp_path_factory.mktemp("readers")
    generate(GenerateConfig(samples=30_000, scale=100), folder / "log.tsv", workers=1)
    config = PreprocessConfig(count=CountConfig(eval_fraction=0.2, valid_fraction=0.1))
    preprocess((folder / "log.tsv",), config, folder / "data", Resources(workers=1))
    return folder / "data"


def exported(data: Path, to: ExportFormat, out: Path) -> Path:
    export_shards(Manifest.read(data / "shards"), to, out)
    return out


@pytest.mark.filterwarnings("default")
def test_duckdb_reads_parquet_and_csv(data: Path, tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    parquet, csv = (exported(data, to, tmp_path / to) for to in ("parquet", "csv"))
    totals = "count(*), sum(label), sum(C1), sum(C26), round(sum(I1), 2)"
    counted = [
        duckdb.sql(f"select {totals} from '{path}'").fetchall()
        for path in (f"{parquet}/*.parquet", f"{csv}/*.csv")
    ]
    assert counted[0] == counted[1] and counted[0][0][0] == 30_000


@pytest.mark.filterwarnings("default")
def test_datasets_of_hugging_face_open_the_splits(data: Path, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    out = exported(data, "parquet", tmp_path / "out")
    files = {split: str(out / f"{split}.parquet") for split in ("train", "valid", "test")}
    found = datasets.load_dataset("parquet", data_files=files, cache_dir=str(tmp_path / "cache"))
    assert {split: len(found[split]) for split in files} == {"train": 21_000, "valid": 3_000, "test": 6_000}
    assert found["train"].features["C1"].dtype == "int32" and found["test"][0]["label"] in (0, 1)
