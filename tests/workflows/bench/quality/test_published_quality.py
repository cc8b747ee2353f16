"""Files of the form of published splits are read by their names, and scored beside the leaderboard."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from hotset.pipeline.errors import ConfigError
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.schema.schema import SCHEMAS
from hotset.workflows.bench.quality.bench_quality import BenchQualityConfig, bench_quality, show_quality
from hotset.workflows.bench.quality.published_quality import (
    FILES,
    PROTOCOLS,
    ProtocolName,
    published_training,
    show_published,
)
from hotset.workflows.cli import main

COUNTS = (90, 30, 40)


def write_split(folder: Path, name: ProtocolName) -> None:
    """Write three files with the header and the values of a published split."""
    rng = np.random.default_rng(0)
    schema = SCHEMAS[name]
    # Columns that no feature is made of stand in Avazu's files, too.
    columns = [*(["id"] if name == "avazu-x4" else []), *schema.columns(has_label=True)]
    kinds = schema.kind_of
    for file, count in zip(FILES, COUNTS, strict=True):
        lines = [",".join(columns)]
        for number in range(count):
            fields = []
            for column in columns:
                if column == "id":
                    fields.append(f"{10**18 + number}")
                elif column == schema.label:
                    fields.append(str(number % 2))
                elif column in schema.dense:
                    fields.append(f"{rng.random():.6f}" if column in schema.floats else str(number - 3))
                elif kinds[column] == "hex8":
                    fields.append(
                        f"{int(rng.integers(0, 9)):08x}" if name == "avazu-x4" or number % 5 else ""
                    )
                else:
                    fields.append(f"{int(rng.integers(0, 9))}" + ".0" * (name == "criteo-x1"))
            lines.append(",".join(fields))
        (folder / file).write_text("\n".join(lines) + "\n")


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("name", [*PROTOCOLS])
def test_each_published_split_is_a_schema_with_its_parts(tmp_path: Path, name: ProtocolName) -> None:
    write_split(tmp_path, name)
    raw = [str(tmp_path / file) for file in FILES]
    assert main(["preprocess", *raw, "--schema", name, "--out", str(tmp_path / "d"), "--workers", "1"]) == 0
    shards = Manifest.read(tmp_path / "d/shards")
    samples = shards.totals["samples"]
    assert samples["hot_only"] + samples["mixed"] == COUNTS[0] and samples["evaluation"] == sum(COUNTS[1:])
    assert shards.totals["num_valid_samples"] == COUNTS[1]
    assert shards.totals["embedding_dim"] == (16 if name.endswith("x4") else 10)
    assert len(shards.totals["tables"]) == (26 if name.startswith("criteo") else 22)


def test_a_protocol_is_trained_with_its_seeds_beside_the_leaderboard(tmp_path: Path) -> None:
    write_split(tmp_path, "criteo-x1")
    md5 = [f"{hashlib.md5((tmp_path / file).read_bytes()).hexdigest()}  {file}" for file in FILES]
    (tmp_path / "MD5").write_text("\n".join(md5))
    config = BenchQualityConfig(
        data=tmp_path, protocol="criteo-x1", seeds=(1, 2), md5sums=tmp_path / "MD5", placements=("all-fast",)
    )
    result = bench_quality(config)
    assert result["samples"] == dict(zip(("training", "validation", "test"), COUNTS, strict=True))
    scores = result["auc"]["dlrm, all-fast"]
    assert len(scores) == 2 and result["deviation_auc"]["dlrm, all-fast"] == pytest.approx(
        abs(scores[0] - scores[1]) / 2**0.5
    )
    console = Console(record=True, width=100)
    show_quality(result, console)
    shown = console.export_text()
    assert "DLRM, BARS" in shown and "0.8138" in shown and "These are not the published files" in shown
    (tmp_path / "MD5").write_text("\n".join(md5).replace(md5[2][:32], "0" * 32))
    with pytest.raises(ConfigError, match=r"test\.csv has the md5"):
        bench_quality(config)


def test_checksums_without_a_protocol_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give --protocol too"):
        BenchQualityConfig(data=tmp_path, md5sums=tmp_path)


def test_published_splits_are_parts_of_one_log() -> None:
    """Criteo's has 45,840,617 samples and Avazu's 40,428,967, however they are split."""
    sums = {name: sum(protocol.samples) for name, protocol in PROTOCOLS.items()}
    criteo, avazu = 45_840_617, 40_428_967
    assert sums == {"criteo-x1": criteo, "criteo-x4": criteo, "avazu-x1": avazu, "avazu-x4": avazu}
    for protocol in PROTOCOLS.values():
        assert protocol.samples[0] > sum(protocol.samples[1:])
        scores = [*protocol.leaderboard.values()]
        assert all(0.74 < score < 0.82 for score in scores) and min(scores) == protocol.leaderboard["LR"]


def test_the_published_recipe_is_that_of_each_model() -> None:
    dlrm, dcn = published_training(), published_training("dcnv2")
    assert dlrm.bottom_mlp == (400, 400) and dcn.bottom_mlp is None
    for config in (dlrm, dcn):
        assert config.top_mlp == (400, 400, 400) and config.batch_norm and config.dropout == 0.2
        optimizers = config.optimizers("sgd")
        assert (optimizers.embedding_optimizer, optimizers.embedding_lr) == ("adam", 0.001)
        assert (optimizers.dense_optimizer, optimizers.dense_lr) == ("adam", 0.001)
        recipe = config.recipe
        assert (recipe.lr_schedule, recipe.plateau_factor, recipe.patience) == ("plateau", 0.1, 2)
        assert recipe.embedding_decay == 1e-5 and recipe.keeps_best


@pytest.mark.parametrize("is_published", [True, False])
def test_means_deviations_and_the_best_stand_beside_the_leaderboard(is_published: bool) -> None:
    result = {
        "protocol": "avazu-x4",
        "is_published_split": is_published,
        "samples": {"training": 90, "validation": 30, "test": 4_000},
        "leaderboard": PROTOCOLS["avazu-x4"].leaderboard,
        "auc": {"dcnv2, all-fast": [0.791, 0.7931], "dlrm, cache": [0.5]},
        "mean_auc": {"dcnv2, all-fast": 0.79205, "dlrm, cache": 0.5},
        "deviation_auc": {"dcnv2, all-fast": 0.00148, "dlrm, cache": 0.0},
    }
    console = Console(record=True, width=120)
    show_published(result, console)
    lines = [line.split() for line in console.export_text().splitlines()]
    assert lines[0] == ["AUC", "on", "avazu-x4", "mean", "deviation", "best"]
    assert lines[1][2:] == ["0.79205", "0.00148", "0.79310"]
    assert lines[2][2:] == ["0.50000", "0.00000", "0.50000"]
    board = [line[-1] for line in lines[3:7]]
    assert board == [f"{score:.4f}" for score in PROTOCOLS["avazu-x4"].leaderboard.values()]
    assert [line[:3] for line in lines[7:]] == ([] if is_published else [["These", "are", "not"]])
