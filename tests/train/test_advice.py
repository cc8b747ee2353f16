"""Advice from a preprocessed folder: what fits is said to fit, and the command says it readably."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hotset.pipeline.errors import ConfigError, ManifestError
from hotset.pipeline.generate.generate import GenerateConfig, generate
from hotset.pipeline.inspect.unique_rows_series import unique_rows_by_batch_size
from hotset.pipeline.sizes import MIB
from hotset.pipeline.stages.preprocess import PreprocessConfig, preprocess
from hotset.stats.prediction.workload import Machine
from hotset.train.advice import AdviceConfig, advise
from hotset.workflows.cli import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("advice")
    generate(GenerateConfig(samples=20_000), out / "log.tsv", workers=1)
    preprocess([out / "log.tsv"], PreprocessConfig(), out / "data", workers=1, until="split")
    return out / "data"


def test_what_fits_fits_and_the_fastest_comes_first(folder: Path) -> None:
    advice = advise(folder, AdviceConfig(batch_size=256), Machine(), workers=1)
    sizes = [option["fast_bytes"] for option in advice["options"]]
    assert sizes == sorted(sizes) and len(sizes) > 2
    for option in advice["options"]:
        seconds = [one["step_seconds"] for one in option["placements"]]
        assert seconds == sorted(seconds)
        assert all(one["memory_bytes"] <= option["fast_bytes"] for one in option["placements"])
        assert all(one["memory_bytes"] > option["fast_bytes"] for one in option["too_large"])
        named = [one["placement"] for one in (*option["placements"], *option["too_large"])]
        assert sorted(named) == ["all-fast", "cache", "fae", "hybrid", "hybrid-dedup", "lookahead"]
    assert advice["best"]["step_seconds"] <= advice["enough"]["step_seconds"]
    assert advice["enough"]["fast_bytes"] <= advice["best"]["fast_bytes"]
    assert "all-fast" in {one["placement"] for one in advice["options"][-1]["placements"]}


def test_memory_that_holds_nothing_is_refused_with_what_would_do(folder: Path) -> None:
    with pytest.raises(ConfigError, match="no placement fits in 1 MiB") as refused:
        advise(folder, AdviceConfig(fast_bytes=(MIB,)), Machine(), workers=1)
    assert refused.value.hint is not None and "the least that would do is" in refused.value.hint
    with pytest.raises(ConfigError, match="model terabyte has embedding_dim 64"):
        advise(folder, AdviceConfig(model="terabyte"), Machine(), workers=1)
    with pytest.raises(ManifestError):
        advise(folder / "none", AdviceConfig(), Machine(), workers=1)
    with pytest.raises(ConfigError, match="batch_size"):
        AdviceConfig(batch_size=0)


def test_the_command_prints_tables_and_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", str(folder), "--fast-bytes", "16MiB", "1GiB", "--batch-size", "128"]) == 0
    printed = capsys.readouterr().out
    assert "Predicted steps of 128 samples" in printed and "stops paying" in printed
    assert main(["advise", str(folder), "--json"]) == 0
    advice: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert {"workload", "machine", "compute_seconds", "options", "best", "enough"} == advice.keys()
    with pytest.raises(SystemExit, match="2"):
        main(["advise", str(folder), "--link-gbps", "0"])
    assert "link_gbps must be above 0" in capsys.readouterr().err


def test_advice_needs_no_torch() -> None:
    code = "import sys; import hotset.workflows.commands.advise_command; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_unique_rows_are_predicted_within_three_per_cent(folder: Path) -> None:
    found = unique_rows_by_batch_size(folder, [16, 64, 512, 100_000])
    assert [one["batch_size"] for one in found] == [16, 64, 512]
    for one in found:
        assert one["measured"] == pytest.approx(one["expected"], rel=0.03)
        assert one["num_lookups"] == 26 * one["batch_size"]


@pytest.mark.real_data
def test_unique_rows_of_a_real_log_are_predicted_within_ten_per_cent(real_data: Path, tmp_path: Path) -> None:
    log = real_data / "criteo_kaggle_uniform_110k.tsv.gz"
    preprocess([log], PreprocessConfig(), tmp_path / "data", until="encode")
    for one in unique_rows_by_batch_size(tmp_path / "data", [64, 512, 2048, 8192]):
        assert one["measured"] == pytest.approx(one["expected"], rel=0.1)
