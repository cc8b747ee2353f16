"""``hotset stats``, advise and verify (`verify_command`)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from hotset.workflows.cli import main


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main([*arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_stats_has_the_promised_keys(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json(capsys, "stats", str(data))
    assert {"name", "num_rows", "num_lookups", "top_share"} <= set(found["features"][0])
    assert len(found["features"]) == 26
    assert {"bytes", "hot_lookup_share", "hot_sample_share"} <= set(found["budgets"][0])
    assert {budget["bytes"] for budget in found["budgets"]} >= {
        65536,
        *(2**exponent for exponent in range(20, 31, 2)),
    }
    chosen = next(budget for budget in found["budgets"] if budget["is_chosen"])
    samples = found["samples"]
    assert chosen["hot_sample_share"] == samples["hot"] / (samples["hot"] + samples["mixed"])
    assert {"hot_only", "mixed"} <= set(found["batches"])
    assert main(["stats", str(data)]) == 0
    assert "fully hot samples" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--top", "3"], "--top needs --feature"),
        (["--feature", "C1", "--series", "drift"], "--series covers all tables"),
        (["--html", "x.html", "--series", "drift"], "--html shows every series"),
        (["--feature", "C1", "--id", "1", "--category", "a"], "--id and --category select different rows"),
        (["--ranks", "2", "--feature", "C1"], "--ranks shows rows between ranks"),
        (["--ranks", "2", "--html", "x.html"], "--ranks shows rows between ranks"),
        (["--feature", "C1", "--top", "0"], "--top must be 1 or more, got 0"),
    ],
)
def test_options_that_exclude_each_other_are_usage_errors(
    arguments: list[str], message: str, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["stats", str(data), *arguments])
    assert stopped.value.code == 2 and capsys.readouterr().err.startswith(f"error: {message}")


def test_rows_between_ranks_are_expected_and_counted(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for ranks in ("1", "2,65"):
        assert main(["stats", str(data), "--ranks", ranks]) == 1
        assert "--ranks: want 2 to 64 ranks for batches of 128" in capsys.readouterr().err
    found = run_json(capsys, "stats", str(data), "--ranks", "2,4")
    assert [row["ranks"] for row in found["ranks"]] == [2, 4]
    for row in found["ranks"]:
        schemes = {each["scheme"]: each for each in row["schemes"]}
        for name, each in schemes.items():
            if each["expected"] is not None:
                assert each["expected"] == pytest.approx(each["counted"], rel=0.03), name
        counted = [each["counted"] for each in row["schemes"]]
        assert counted == sorted(counted, reverse=True) and schemes["homes by use"]["expected"] is not None
        # A few hundred rows move in all, so chance alone makes 6 %.
    assert main(["stats", str(data), "--ranks", "2,4"]) == 0
    shown = capsys.readouterr().out
    assert "4 ranks," in shown and "homes by use" in shown


def test_tables_are_printed_for_every_series(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stats", str(data), "--series", "coverage", "unique_rows", "budgets"]) == 0
    shown = capsys.readouterr().out
    assert "Distinct rows per batch" in shown and "bytes per row" in shown
    assert "of the evaluation lookups fall on the out-of-vocabulary row." in shown
    assert " %" not in shown


def test_advice_names_a_placement_and_that_it_is_a_prediction(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["advise", str(data)]) == 0
    shown = capsys.readouterr().out
    assert "Everything fits in " in shown or " of the speed with every row on the fast tier" in shown
    assert "not measurements" in shown


def test_verify_says_that_all_checks_passed_or_names_the_fault(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "copy"
    shutil.copytree(data, out)
    assert main(["verify", str(out)]) == 0
    assert capsys.readouterr().out == f"{out}: OK, all checks passed\n"
    damaged = out / "counts" / "C1.arrow"
    damaged.chmod(0o644)
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    assert main(["verify", str(out)]) == 1
    assert "C1.arrow" in capsys.readouterr().out
