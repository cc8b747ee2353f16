"""What the host does for a step of a device: a fixed number of calls, whatever the batch holds."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console

from hotset.workflows.bench.training.bench_host_steps import HostStepsConfig, measure, show


def test_a_step_is_one_copy_and_one_recorded_step() -> None:
    config = HostStepsConfig(samples=9_000, scale=1000.0, batch_sizes=(256,), hot_share=0.05)
    result = measure(config)
    assert result["machine"]["cpu"]
    found = {(row["placement"], row["kind"]): row for row in result["rows"]}
    assert set(found) == {(name, kind) for name in config.placements for kind in ("hot-only", "mixed")}
    for row in found.values():
        calls = row["calls"]
        # The loss is kept beside the recorded step; nothing waits for the device but the ring of inputs.
        assert calls["copy"] == calls["launch"] == 1 and "synchronize" not in calls and "capture" not in calls
        assert row["loop_us"] >= row["loop_us_least"] > 0 and row["reading_ns_per_sample"] > 0
        assert 0 < row["ordering_ns_per_sample"] < row["reading_ns_per_sample"]
        assert row["loop_wall_us"] > 0 and row["taking_us"] > 0 and row["waiting_us"] > 0
        moves_rows = (row["placement"], row["kind"]) == ("lookahead", "mixed")
        # The moves of rows are recorded, too; no event is recorded twice at one place.
        assert calls["replay"] == 1 + moves_rows and calls["record"] == 2 + moves_rows
        assert calls["wait"] <= 2 + 2 * moves_rows
        # The lists of rows to move come on top of a batch.
        most = 230 if moves_rows else 200
        assert 100 < row["sent_bytes_per_sample"] < most
    (transposed,) = result["transposed"]
    assert transposed["batch_size"] == 256 and transposed["samples_per_cpu_second"] > 0
    # A batch has a little room to spare, and the lists of rows to move on top.
    sent = found["all-fast", "mixed"]["sent_bytes_per_sample"]
    assert 0.8 * sent < transposed["packed_bytes_per_sample"] < sent
    assert transposed["stored_bytes_per_sample"] > 2 * 26
    show(result, Console(quiet=True))


def test_the_docs_have_the_figures_of_the_result() -> None:
    root = Path(__file__).resolve().parents[4]
    text = (root / "docs" / "gpu.md").read_text()
    rows = json.loads((root / "workflows" / "results" / "host-steps.json").read_text())["rows"]
    names = ["loop_us", "loop_us_least", "taking_us", "sent_bytes_per_sample"]
    names += ["reading_ns_per_sample", "ordering_ns_per_sample"]
    for row in rows:
        if row["batch_size"] == 65_536:
            cells = [f"{row['placement']}, {row['kind']}", *(f"{row[name]:.0f}" for name in names)]
            assert f"| {' | '.join(cells)} |" in text
    # What follows from them in the text.
    found = {(row["batch_size"], row["placement"]): row for row in rows}
    large, small = found[65_536, "lookahead"], found[2_048, "lookahead"]
    cores = [30e-3 * found[65_536, name]["reading_ns_per_sample"] for name in ("all-fast", "lookahead")]
    assert f"{cores[0]:.1f}\nsuch cores, and {cores[1]:.1f} with `lookahead`" in text
    assert f"lets {1e3 / large['ordering_ns_per_sample']:.0f} million samples a second pass" in text
    assert f"{1e3 / small['ordering_ns_per_sample']:.1f} million samples a second. A sample" in text
