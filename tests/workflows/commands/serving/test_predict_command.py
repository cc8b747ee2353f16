"""``hotset predict`` as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from hotset.tests.support.scored_runs import NUM_EVALUATION, run_on_criteo
from hotset.workflows.cli import main


def test_a_log_is_predicted_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scored = run_on_criteo(tmp_path)
    out = tmp_path / "scores.parquet"
    command = ["predict", str(scored.run), str(scored.log), "--out", str(out)]
    assert main([*command, "--batch-size", "32", "--threads", "1"]) == 0
    assert capsys.readouterr() == ("", f"wrote {NUM_EVALUATION} predictions to {out}\n")
    frame = pl.read_parquet(out)
    assert frame.columns == ["probability"] and frame["probability"].is_between(0, 1).all()

    assert main(command) == 1
    assert "exists" in capsys.readouterr().err
    assert main([*command, "--overwrite", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"out": str(out), "num_samples": NUM_EVALUATION}
    assert pl.read_parquet(out)["probability"].len() == NUM_EVALUATION

    # Wrong usage and a log of labels that is said to have none.
    with pytest.raises(SystemExit):
        main([*command, "--batch-size", "0"])
    assert "--batch-size must be 1 or more, got 0" in capsys.readouterr().err
    assert main([*command, "--overwrite", "--no-label"]) == 1
    assert "test.tsv, line 1: found 40 fields, want 39 between tabs" in capsys.readouterr().err
