"""Preprocessing and statistics from Python: settings by name, and what comes back.

Tests `tables` and `machine`, too.

The description of a machine.
"""

from __future__ import annotations

import json
import platform
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import hotset
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.generate.generate import GenerateConfig, generate
from hotset.tests.support.logs.other_logs import Log, schema_text, write_csv
from hotset.workflows.machine import describe_machine


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    generate(GenerateConfig(samples=300, seed=1, scale=1000), folder / "log.tsv", workers=1)
    settings: dict[str, Any] = {"hot_bytes": "16KiB", "batch_size": 32, "eval_fraction": 0.2, "min_count": 2}
    return hotset.preprocess(folder / "log.tsv", str(folder / "data"), workers=1, memory="1GiB", **settings)


def test_settings_are_those_of_the_stages(data: Path) -> None:
    found = {
        stage: Manifest.read(data / stage).config for stage in ("counts", "vocabulary", "plan", "shards")
    }
    assert found["counts"]["eval_fraction"] == 0.2 and found["vocabulary"]["min_count"] == 2
    assert found["plan"]["hot_bytes"] == 16384 and found["shards"]["batch_size"] == 32


def test_auto_is_a_size_too(data: Path, tmp_path: Path) -> None:
    either: list[dict[str, Any]] = [{}, {"hot_bytes": "auto"}]
    found = [
        hotset.preprocess(data.parent / "log.tsv", tmp_path / str(number), workers=1, **settings)
        for number, settings in enumerate(either)
    ]
    sizes = {Manifest.read(each / "plan").config["hot_bytes"] for each in found}
    assert len(sizes) == 1 and sizes.pop() > 0


def test_an_extension_keeps_the_settings_of_the_folder(data: Path, tmp_path: Path) -> None:
    out = shutil.copytree(data, tmp_path / "data")
    more = shutil.copy(data.parent / "log.tsv", tmp_path / "more.tsv")
    hotset.preprocess([data.parent / "log.tsv", more], out, extend=True, workers=1)
    assert Manifest.read(out / "plan").config["hot_bytes"] == 16384
    assert Manifest.read(out / "vocabulary").config["min_count"] == 2


def test_another_log_gets_the_ids_of_the_first(data: Path, tmp_path: Path) -> None:
    again = hotset.preprocess([data.parent / "log.tsv"], tmp_path / "again", like=data, workers=1)
    assert Manifest.read(again / "vocabulary").stage == "adopt"


def test_a_schema_file_brings_its_own_settings(tmp_path: Path) -> None:
    log = Log({"y": "label", "site": "text"}, [(n % 2, f"s{n % 3}") for n in range(30)])
    write_csv(tmp_path / "log.csv", log)
    text = schema_text(log).replace('"site" = "text"', '"site" = { kind = "text", embedding_dim = 4 }')
    (tmp_path / "log.toml").write_text(text)
    out = hotset.preprocess(
        tmp_path / "log.csv", tmp_path / "out", schema=str(tmp_path / "log.toml"), workers=1
    )
    (table,) = Manifest.read(out / "plan").totals["tables"]
    assert (table["name"], table["embedding_dim"]) == ("site", 4)


def test_a_setting_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(hotset.HotsetError, match="there is no setting 'batchsize'") as refused:
        hotset.preprocess("log.tsv", tmp_path / "out", batchsize=3)  # type: ignore[call-arg]
    assert refused.value.hint == "did you mean 'batch_size'?"


def test_a_frame_gives_the_bytes_of_its_file(tmp_path: Path) -> None:
    frame = pl.DataFrame({"y": [0, 1] * 30, "site": ["a", "b", "c"] * 20})
    frame.write_parquet(tmp_path / "log.parquet")
    (tmp_path / "log.toml").write_text('format = "parquet"\nlabel = "y"\n[sparse]\nsite = "text"\n')
    made = [
        hotset.preprocess(log, tmp_path / name, schema=tmp_path / "log.toml", workers=1)
        for name, log in (("file", tmp_path / "log.parquet"), ("polars", frame), ("arrow", frame.to_arrow()))
    ]
    files = [{each.path: each for each in Manifest.read(out / "shards").files} for out in made]
    assert files[0] == files[1] == files[2] and len(files[0]) > 0
    # The same call finds everything done, and nothing stays next to the folder.
    hotset.preprocess(frame, tmp_path / "polars", schema=tmp_path / "log.toml", workers=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("arrow", "file", "log.parquet", "log.toml", "polars")
    ]
    with pytest.raises(hotset.HotsetError, match="a frame needs a schema of Parquet"):
        hotset.preprocess(frame, tmp_path / "other", schema="criteo-kaggle")
    wrong = frame.with_columns(y=pl.lit(2))
    with pytest.raises(hotset.HotsetError, match=r"^frame 1, row 1, column 'y': found 2, want 0 or 1"):
        hotset.preprocess([frame, wrong], tmp_path / "bad", schema=tmp_path / "log.toml", workers=1)


def test_statistics_are_frames(data: Path) -> None:
    quick = hotset.statistics(data)
    assert repr(quick).startswith("Statistics(features: 26 rows, ")
    assert quick._repr_html_().count("<h4>") == len(quick)
    assert quick["features"].height == 26 and "top_share_10" in quick["features"].columns
    assert all(isinstance(frame, pl.DataFrame) for frame in quick.values())
    chosen = hotset.statistics(str(data), series=["coverage"], workers=1)
    assert set(chosen) == {"coverage"}
    assert chosen["coverage"]["lookup_share"].is_between(0, 1 + 1e-9).all()
    json.dumps(quick["features"].to_dicts())  # plain cells


def test_the_machine_is_described_without_its_name() -> None:
    described = json.dumps(describe_machine())
    libraries = json.loads(described)["libraries"]
    assert libraries["polars"]
    assert ("torchrec" in libraries) == (find_spec("torchrec") is not None)
    assert platform.node() not in described


def test_instructions_that_libraries_are_held_to_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS", "NUMBA_CPU_NAME", "ONEDNN_MAX_CPU_ISA"):
        monkeypatch.delenv(name, raising=False)
    assert describe_machine()["held_to"] == {}
    monkeypatch.setenv("NUMBA_CPU_NAME", "haswell")
    assert describe_machine()["held_to"] == {"NUMBA_CPU_NAME": "haswell"}
