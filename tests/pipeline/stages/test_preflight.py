"""Checks before the first stage: disk and memory.

Stages refuse before a finished folder is removed, or before they begin one.
"""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest

from hotset.pipeline.errors import GIB, MIB, ConfigError, HotsetError, ManifestError
from hotset.pipeline.folders.disk import bytes_in, discard_files
from hotset.pipeline.preprocess import PreprocessConfig, preprocess, run_stage
from hotset.pipeline.runtime.tasks import Resources
from hotset.pipeline.stages.count import CountConfig
from hotset.pipeline.stages.encode import EncodeConfig
from hotset.pipeline.stages.pack import PackConfig
from hotset.pipeline.stages.preflight import (
    COMPRESSION,
    DISK_FACTORS,
    disk_needed,
    refuse_full_disk,
    refuse_stage,
)
from hotset.pipeline.stages.rank import RankConfig
from hotset.pipeline.stages.split import SplitConfig
from hotset.pipeline.stages.stage_order import FOLDERS
from hotset.tests.support.logs.criteo_text import draw_samples, text_of
from hotset.tests.support.preprocess_runs import CONFIG, copy_of
from hotset.workflows.cli import main


@pytest.fixture
def log(tmp_path: Path, rng: np.random.Generator) -> Path:
    path = tmp_path / "log.tsv"
    path.write_bytes(text_of(draw_samples(60, rng)))
    return path


def test_the_estimate_is_the_factors_times_the_text(log: Path, tmp_path: Path) -> None:
    num_bytes = log.stat().st_size
    needed = disk_needed([log, log], tmp_path / "dir")
    assert needed == {name: int(2 * factor * num_bytes) for name, factor in DISK_FACTORS.items()}
    packed = tmp_path / "log.gz"
    packed.write_bytes(gzip.compress(log.read_bytes()))
    columns = int(DISK_FACTORS["columns"] * COMPRESSION * packed.stat().st_size)
    assert disk_needed([packed], tmp_path / "dir")["columns"] == columns
    assert disk_needed([log], tmp_path, is_columnar=True)["plan"] == int(0.01 * COMPRESSION * num_bytes)


def test_what_is_there_is_not_needed_again(log: Path, tmp_path: Path) -> None:
    preprocess([log], PreprocessConfig(), tmp_path / "dir", until="count")
    whole, left = disk_needed([log], tmp_path / "other"), disk_needed([log], tmp_path / "dir")
    assert left == whole | {"columns": 0, "counts": 0}
    (tmp_path / "dir" / "vocabulary").mkdir()
    (tmp_path / "dir" / "vocabulary" / "C1.arrow").write_bytes(b"x" * 100)
    assert disk_needed([log], tmp_path / "dir")["vocabulary"] == max(0, whole["vocabulary"] - 100)


def test_folders_that_grow_need_what_is_new(log: Path, tmp_path: Path) -> None:
    preprocess([log], PreprocessConfig(), tmp_path / "dir", until="count")
    whole = disk_needed([log, log], tmp_path / "other")
    grown = disk_needed([log, log], tmp_path / "dir", extend=True)
    there = bytes_in(tmp_path / "dir" / "columns")
    assert grown["columns"] == max(0, whole["columns"] - there) and grown["shards"] == whole["shards"]
    assert disk_needed([log], tmp_path / "dir", extend=True)["columns"] == 0


def test_a_disk_that_is_too_small_is_refused_before_any_work(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=10_000))
    out = tmp_path / "a" / "dir"
    assert main(["preprocess", str(log), "--out", str(out)]) == 1
    error, hint = capsys.readouterr().err.splitlines()
    assert f"{out} needs about" in error and "9.8 KiB are free" in error
    assert hint.startswith("hint: free") and not out.parent.exists()


def test_the_refusal_says_which_folder_needs_how_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=GIB))
    needed = {"columns": 2 * GIB, "plan": 10 * MIB, "counts": 0}
    with pytest.raises(
        ConfigError, match=r"about 2 GiB of disk \(columns 2 GiB, plan 10 MiB\), 1 GiB are free"
    ):
        refuse_full_disk(needed, tmp_path / "dir")
    refuse_full_disk({"columns": GIB}, tmp_path / "dir")
    with pytest.raises(ConfigError, match="1 GiB are free"):
        refuse_full_disk({"columns": GIB, "plan": 1}, tmp_path / "dir")


def test_a_cap_that_a_later_stage_cannot_keep_is_refused_before_any_work(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["preprocess", str(log), "--out", str(tmp_path / "dir"), "--workers", "1", "--memory"]
    assert main([*words, "185MiB"]) == 1
    error, hint = capsys.readouterr().err.splitlines()
    assert "cannot stay within 185 MiB of memory" in error and not (tmp_path / "dir").exists()
    enough = hint.split()[2]
    assert enough.endswith("MiB") and 185 < int(enough[:-3]) < 300
    assert main([*words, "300MiB"]) == 0


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_one_hint_does_for_every_stage_of_a_log_of_short_lines(
    suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A block has many more samples than one of Criteo's, so `encode` and `pack` need more for them."""
    log = tmp_path / f"log.{suffix}"
    features = {f"f{number}": np.arange(240_000) % (number % 9 + 1) for number in range(39)}
    table = pa.table({"y": np.arange(240_000) % 2} | features)
    if suffix == "parquet":
        pq.write_table(table, log)
    else:
        csv.write_csv(table, log)
    schema = tmp_path / "schema.toml"
    names = "".join(f'{name} = "integer"\n' for name in features)
    schema.write_text(f'format = "{suffix}"\nlabel = "y"\n[sparse]\n{names}')
    words = ["preprocess", str(log), "--schema", str(schema), "--out", str(tmp_path / "dir"), "--memory"]
    assert main([*words, "1MiB", "--workers", "8"]) == 1
    enough = capsys.readouterr().err.split("--memory ")[1].split(" ")[0]
    assert main([*words, enough, "--workers", "8"]) == 0


DEFAULTS: dict[str, Any] = {
    "count": CountConfig(),
    "rank": RankConfig(),
    "encode": EncodeConfig(),
    "split": SplitConfig(),
    "pack": PackConfig(),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders of `preprocess`, for reading only."""
    out = tmp_path_factory.mktemp("refusals")
    (out / "log.tsv").write_bytes(text_of(draw_samples(100, np.random.default_rng(3))))
    preprocess([out / "log.tsv"], CONFIG, out / "dir", Resources(workers=1))
    return out / "dir"


@pytest.mark.parametrize("stage", DEFAULTS)
def test_a_small_memory_cap_is_refused_before_the_folder_is_begun(
    stage: str, made: Path, tmp_path: Path
) -> None:
    for path in made.iterdir():
        if path.name != FOLDERS[stage]:
            (tmp_path / path.name).symlink_to(path)
    little = Resources(workers=1, memory_bytes=MIB)
    for run in (refuse_stage, run_stage):
        with pytest.raises(HotsetError, match="cannot stay within 1 MiB of memory"):
            run(stage, DEFAULTS[stage], tmp_path, little)
    assert not (tmp_path / FOLDERS[stage]).exists()
    refuse_stage(stage, DEFAULTS[stage], tmp_path, Resources(workers=1))
    assert not (tmp_path / FOLDERS[stage]).exists()


@pytest.mark.parametrize(
    ("stage", "config", "megabytes", "message"),
    [
        ("count", CountConfig(eval_files=1), 0, "no sample to train on"),
        ("rank", RankConfig(rank_by="peel"), 180, "rank --rank-by peel cannot stay within 180 MiB"),
        ("rank", RankConfig(rank_by="sampled"), 180, "rank --rank-by sampled cannot stay within 180 MiB"),
        ("split", SplitConfig(mode="fae-code"), 0, "needs ids by sampled counts"),
    ],
)
def test_settings_that_the_inputs_rule_out_are_refused(
    stage: str, config: Any, megabytes: int, message: str, made: Path
) -> None:
    resources = Resources(workers=1, memory_bytes=megabytes * MIB or None)
    with pytest.raises(HotsetError, match=message):
        refuse_stage(stage, config, made, resources)


def test_discarded_inputs_are_refused(made: Path, tmp_path: Path) -> None:
    out = copy_of(made, tmp_path / "dir")
    discard_files(out / "samples")
    with pytest.raises(ManifestError, match="samples was discarded"):
        refuse_stage("pack", PackConfig(), out)
