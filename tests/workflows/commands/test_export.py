"""``hotset export`` as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hotset.tests.support.scored_runs import run_on_criteo
from hotset.workflows.cli import main


def test_changes_are_exported_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scored = run_on_criteo(tmp_path)
    run, out = str(scored.run), str(tmp_path / "changes")
    command = ["export", run, "--since", run, "--row-type", "bf16", "--evaluate", str(scored.data)]
    assert main([*command, "--out", out]) == 0
    shown = capsys.readouterr()
    assert shown.err == f"wrote {out}\n"
    lines = [line.split() for line in shown.out.splitlines()]
    assert lines[0] == ["table", "rows", "new", "changed", "gone"]
    assert lines[1][0] == "C1" and lines[1][2:] == ["0", "0", "0"]
    assert [line[0] for line in lines[-2:]] == ["AUC", "log"] and len(lines[-1]) == 5

    assert main([*command, "--out", f"{out}2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["changes"]["C26"]["num_gone"] == 0 and found["log_loss"] != found["log_loss_fp32"]
    # Shards that do not fit are found before anything is written, and a folder is never written over.
    assert main(["export", run, "--since", run, "--evaluate", run, "--out", f"{out}3"]) == 1
    assert "holds the stage 'train'" in capsys.readouterr().err and not Path(f"{out}3").exists()
    assert main(["export", run, "--since", run, "--out", out]) == 1
    assert f"error: {out} exists\n" in capsys.readouterr().err
    assert main([*command, "--out", f"{out}3", "--onnx"]) == 1
    assert "changes have no graph: --onnx is for a whole export" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_is_exported_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scored = run_on_criteo(tmp_path)
    out = tmp_path / "exported"
    assert main(["export", str(scored.run), "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"out": str(out)}
    assert (out / "model.pt2").stat().st_size > 1000
