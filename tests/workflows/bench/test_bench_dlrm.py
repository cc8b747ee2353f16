"""The benchmark against DLRM's preprocessing, with a stand-in for DLRM's checkout."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from hotset.pipeline.errors import ConfigError
from hotset.workflows.bench import bench_dlrm
from hotset.workflows.bench.bench_dlrm import BenchDlrmConfig, load_data_utils, measure, show
from hotset.workflows.bench.measuring import fresh_process as bench

STAND_IN = """
import numpy as np

def getCriteoAdData(datafile, o_filename, max_ind_range, sub_sample_rate, days, **rest):
    with open(datafile) as file:
        rows = [line.rstrip().split("\\t") for line in file]
    print("a line that nobody wants to see")
    y = np.array([row[0] for row in rows], dtype=np.int32)
    assert np.array([2**32 - 1, 5], dtype=np.int32).tolist() == [-1, 5]
    assert days == 7 and rest["randomize"] == "total" and rest["criteo_kaggle"]
    path = datafile.rpartition("/")[0] + "/" + o_filename + ".npz"
    np.savez_compressed(path, y=y)
    return path
"""


def run_in_process(
    candidates: list[bench.Candidate], rounds: int, scratch: Path, **_: object
) -> dict[str, list[bench.Measurement]]:
    return {each.name: [bench.measure(each, scratch) for _ in range(rounds)] for each in candidates}


def test_both_are_measured_and_compared_by_samples_per_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_dlrm, "run_rounds", run_in_process)
    monkeypatch.setattr(bench_dlrm, "_WARM_UP_SAMPLES", 20)
    monkeypatch.setattr(bench_dlrm, "_ROOM_LOGS", 0)
    (tmp_path / "data_utils.py").write_text(STAND_IN)
    result = measure(BenchDlrmConfig(dlrm=tmp_path, samples=300, dlrm_samples=100, rounds=2, workers=1))
    assert result["data"]["samples"] == {"dlrm": 100, "hotset": 300}
    assert result["ratio_total"] > 0 and result["ratio_cpu"] > 0
    assert len(result["contestants"]["dlrm"]["rounds"]) == 2
    assert "nobody" not in capsys.readouterr().out
    printed = io.StringIO()
    show(result, Console(file=printed, width=200))
    assert "times as fast by wall clock (1 threads against one)" in printed.getvalue()


def test_other_arrays_are_numpys(tmp_path: Path) -> None:
    (tmp_path / "data_utils.py").write_text("import numpy as np\n")
    older = load_data_utils(tmp_path).np
    assert older.array(["-3", "0"], dtype=older.int32).tolist() == [-3, 0]
    assert older.array([1.5]).tolist() == [1.5] and older.zeros(2).shape == (2,)


def test_a_folder_without_dlrm_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no data_utils\.py"):
        BenchDlrmConfig(dlrm=tmp_path)
