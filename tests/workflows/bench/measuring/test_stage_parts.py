"""Parts of parsing and packing stand beside what bounds each."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from rich.console import Console

from hotset.pipeline.generate.generate_log import GenerateConfig, generate
from hotset.workflows.bench.measuring import stage_parts
from hotset.workflows.bench.measuring.frame_samples import OTHER
from hotset.workflows.bench.measuring.stage_parts import measure_stage_parts, print_stage_parts
from hotset.workflows.recipes import criteo_kaggle

_SAMPLES = 400
_RATES = {"memory": 2e9, "page_cache": 1e9, "disk": 1e6, "page_cache_read": 5e8, "new_memory": 1e9}


def microseconds(job: Callable[[], object], part_of: Mapping[str, str]) -> dict[str, float]:
    """Run a job as if each of its parts took 4 µs."""
    job()
    return dict.fromkeys([*dict.fromkeys(part_of.values()), OTHER], 4e-6)


def test_each_part_has_the_time_that_its_bytes_take_at_least(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage_parts, "seconds_of_parts", microseconds)
    monkeypatch.setattr(stage_parts, "measure_rates", lambda *about: _RATES)
    log = tmp_path / "log.tsv"
    generate(GenerateConfig(profile="criteo-kaggle", samples=_SAMPLES), log)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    found = measure_stage_parts(log, criteo_kaggle(), scratch, 2)
    assert json.loads(json.dumps(found)) == found and not list(scratch.iterdir())
    assert list(found["jobs"]) == ["parse", "parse, kept", "pack"] and found["rates"] == _RATES

    # 4 µs of 400 samples are 10 ns each.
    for job in found["jobs"].values():
        assert {round(part["cpu_nanoseconds"], 6) for part in job["parts"]} == {10.0}
        assert job["cpu_nanoseconds"] == pytest.approx(10 * len(job["parts"]))
        bounds = [part["bound_nanoseconds"] for part in job["parts"]]
        assert job["bound_nanoseconds"] == pytest.approx(sum(bounds)) and min(bounds[:-1]) > 0
        assert job["times_bound"] == pytest.approx(job["cpu_nanoseconds"] / sum(bounds))
        assert bounds[-1] == 0 and job["parts"][-1]["part"] == OTHER
    text = found["jobs"]["parse"]["parts"][0]
    assert text["bytes"] == log.stat().st_size / _SAMPLES and text["rate"] == "page_cache_read"
    assert text["bound_nanoseconds"] == pytest.approx(2 * text["bytes"])

    printed = io.StringIO()
    print_stage_parts(found, Console(file=printed, width=120))
    assert "page cache read" in printed.getvalue() and "rows scattered to files" in printed.getvalue()


def test_the_functions_of_every_part_exist() -> None:
    """A function that was renamed would leave its part without time."""
    root = Path(stage_parts.__file__).resolve().parents[3]
    sources = [
        path.read_text()
        for room in ("packing", "raw", "formats", "folders")
        for path in (root / "pipeline" / room).rglob("*.py")
    ]
    for qualified in {**stage_parts._PARTS_OF_PARSING, **stage_parts._PARTS_OF_PACKING}:
        *owner, name = qualified.split(".")
        assert any(
            f"def {name}(" in source and all(f"class {each}" in source for each in owner)
            for source in sources
        ), qualified
