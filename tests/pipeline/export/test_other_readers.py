"""Exported files are read, and trained on, by the programs they are for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hotset.pipeline.export.export_shards import ExportFormat, export_shards
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.generate.generate_log import GenerateConfig, generate
from hotset.pipeline.runtime.resources import Resources
from hotset.pipeline.stages.count import CountConfig
from hotset.pipeline.stages.preprocess import PreprocessConfig, preprocess

pytestmark = pytest.mark.slow

_FUXICTR = """
import os, sys, warnings

warnings.simplefilter("ignore")
from fuxictr.features import FeatureMap
from fuxictr.pytorch.dataloaders import RankDataLoader
from fuxictr.pytorch.layers import FeatureEmbedding, MLP_Block
from fuxictr.pytorch.models import BaseModel
from fuxictr.pytorch.torch_utils import seed_everything

class Model(BaseModel):
    def __init__(self, features):
        super().__init__(features, model_root="models", metrics=["AUC", "logloss"], verbose=0)
        self.embedding = FeatureEmbedding(features, 8)
        self.mlp = MLP_Block(features.sum_emb_out_dim(), hidden_units=[32], output_dim=1,
                             output_activation=self.output_activation)
        self.compile("adam", "binary_crossentropy", 0.01)
        self.reset_parameters()

    def forward(self, inputs):
        return {"y_pred": self.mlp(self.embedding(self.get_inputs(inputs)).flatten(1))}

seed_everything(1)
folder = sys.argv[1]
features = FeatureMap(os.path.basename(folder), folder)
features.load(folder + "/feature_map.json", {"embedding_dim": 8})
paths = {f"{split}_data": f"{folder}/{split}.parquet" for split in ("train", "valid", "test")}
train, valid, test = RankDataLoader(
    features, stage="both", batch_size=512, shuffle=False, data_format="parquet", **paths
)
os.makedirs("models/" + features.dataset_id)
model = Model(features)
model.fit(train, validation_data=valid, epochs=1)
print("AUC", model.evaluate(test)["AUC"])
"""


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


def test_fuxictr_trains_an_epoch(data: Path, tmp_path: Path) -> None:
    pytest.importorskip("fuxictr")
    out = exported(data, "fuxictr", tmp_path / "criteo_small")
    words = [sys.executable, "-c", _FUXICTR, str(out)]
    found = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr[-2000:]
    # The generated labels depend on the features, so a model that reads them rightly ranks far above chance.
    assert float(found.stdout.split("AUC")[-1]) > 0.6


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
