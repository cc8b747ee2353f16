"""``hotset stats``, advise and verify (`verify`).

Statistics as tables: every number is one of the data, and odd categories are printed as text.
"""

from __future__ import annotations

import json
import shutil
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hotset.pipeline.runtime.tasks import Resources
from hotset.pipeline.statistics.frequencies import SERIES, frequency_statistics
from hotset.workflows.cli import main
from hotset.workflows.commands.stats import show_rows, show_statistics


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
        assert counted == sorted(counted, reverse=True) and schemes["owners by use"]["expected"] is not None
        # A few hundred rows move in all, so chance alone makes 6 %.
    assert main(["stats", str(data), "--ranks", "2,4"]) == 0
    shown = capsys.readouterr().out
    assert "4 ranks," in shown and "owners by use" in shown


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


@pytest.fixture(scope="module")
def found(data: Path) -> Any:
    return frequency_statistics(data, Resources(workers=1))


def printed(show: Any, what: dict[str, Any], width: int = 200) -> str:
    console = Console(file=StringIO(), width=width)
    show(what, console)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


@pytest.fixture(scope="module")
def lines(found: dict[str, Any]) -> list[str]:
    """All that is printed."""
    return printed(show_statistics, found).splitlines()


@pytest.fixture(scope="module")
def brief(found: dict[str, Any]) -> dict[str, Any]:
    """The statistics without tables: their lines and sentences are printed in no time."""
    return only(found)


def only(what: dict[str, Any], *series: str) -> dict[str, Any]:
    """Leave out all series but these."""
    return {name: value for name, value in what.items() if name not in SERIES or name in series}


def words_of(what: dict[str, Any]) -> str:
    """Return all that is printed as one line, because a title wraps at the width of its table."""
    return " ".join(printed(show_statistics, what).split())


@pytest.mark.slow
def test_every_series_has_a_title_and_those_left_out_have_none(found: dict[str, Any]) -> None:
    titles = {
        "features": "Lookups of 1,286 training samples",
        "budgets": "What fast memory buys",
        "coverage": "Share of lookups served by the most looked-up rows",
        "hot_samples": "Fully hot samples by memory",
        "miss_ratios": "Rows loaded again by cache policy",
        "unique_rows": "Distinct rows per batch",
        "drift": "Parts of the log",
        "hot_tables": "Hot rows by table",
        "categories": "Top categories of each table",
    }
    shown = {name: words_of(only(found, name)) for name in titles}
    for name, title in titles.items():
        assert name in SERIES and [other for other in titles if title in shown[other]] == [name]


def test_the_chosen_budget_is_marked_and_only_that(found: dict[str, Any], lines: list[str]) -> None:
    (marked,) = [line for line in lines if "<- chosen" in line]
    (chosen,) = [budget for budget in found["budgets"] if budget["is_chosen"]]
    assert marked.split()[2:] == [
        f"{chosen['num_hot_rows']:,}",
        f"{chosen['num_hot_rows'] / found['num_rows']:.2%}",
        f"{chosen['hot_lookup_share']:.1%}",
        f"{chosen['hot_sample_share']:.1%}",
        "<-",
        "chosen",
    ]


def test_each_feature_is_a_row_of_shares_and_of_rows(found: dict[str, Any], lines: list[str]) -> None:
    words = [line.split() for line in lines]
    for feature in found["features"]:
        shares = [f"{share:.1%}" for share in feature["top_share"].values()]
        rows = [f"{rows:,}" for rows in feature["rows_for_share"].values()]
        assert [feature["name"], f"{feature['num_rows']:,}", *shares, *rows] in words


def test_a_column_of_a_narrow_table_says_what_it_counts(found: dict[str, Any]) -> None:
    lines = printed(show_statistics, found, width=60).splitlines()
    titles = [line for line in lines if line.startswith("table ")]
    assert len(titles) > 1 and not any(line.split()[1:2] == ["95%"] for line in titles)
    assert all(f"for {share}%" in " ".join(titles) for share in (80, 90, 95, 99))


def test_a_log_without_labels_has_no_table_of_them(found: dict[str, Any]) -> None:
    log: dict[str, Any] = {"labels": [], "parts": [], "missing": [], "dense": [], "dense_bins": []}
    runs: dict[str, Any] = {"settings": {}, "placements": []}
    shown = only(found, "log", "default_runs")
    assert "Labels" in words_of(shown) and "Bytes that the placements move" in words_of(shown)
    bare = words_of(shown | {"log": log, "default_runs": runs})
    assert "Labels" not in bare and "Missing values" not in bare
    assert "Bytes that the placements move" not in bare


def test_samples_and_batches_are_counted_in_a_sentence(brief: dict[str, Any]) -> None:
    samples = brief["samples"]
    text = printed(show_statistics, brief)
    assert f"Samples: {samples['hot']:,} hot, {samples['mixed']:,} mixed, " in text
    batches = brief["batches"]
    assert (
        f"for evaluation. Batches of {batches['batch_size']:,}: {batches['hot_only']:,} hot-only, "
        f"{batches['mixed']:,} mixed, {batches['evaluation']:,} for evaluation"
    ) in text
    without = printed(show_statistics, brief | {"batches": None})
    assert "Samples: " in without and "Batches of" not in without
    share = brief["oov"]["evaluation_share"]
    assert f"{share:.2%} of the evaluation lookups fall on the out-of-vocabulary row." in text

    def with_share(share: float | None) -> str:
        return printed(show_statistics, brief | {"oov": brief["oov"] | {"evaluation_share": share}})

    assert "out-of-vocabulary row" not in with_share(None)
    assert "0.00% of the evaluation lookups fall on" in with_share(0.0)


def test_warnings_and_what_was_left_out_are_printed_as_they_are(brief: dict[str, Any]) -> None:
    text = printed(
        show_statistics, brief | {"left_out": ["drift: [one] file"], "warnings": ["a [bold] leak in C1"]}
    )
    assert "Left out: drift: [one] file." in text and "Warning: a [bold] leak in C1." in text


CALIBRATION = {
    "num_drawn_samples": 1234,
    "hot_bytes": 3 << 20,
    "num_unsampled_hot_rows": 17,
    "exact": {"hot_samples": 600},
}


def test_what_sampling_chose_is_held_against_exact_counts(brief: dict[str, Any]) -> None:
    facts = brief | {
        "calibration": CALIBRATION,
        "mode": "fae-code",
        "num_hot_rows": 5000,
        "num_train_samples": 1000,
        "samples": brief["samples"] | {"hot": 450},
    }
    assert (
        "fae-code counted 1,234 samples and chose 5,000 rows, 3 MiB; 17 of these rows never occurred in its "
        "sample. 45.0% of the samples are fully hot; with exact counts 60.0% would be, in the same memory."
    ) in printed(show_statistics, facts)


@pytest.mark.parametrize(("is_covered", "word"), [(True, "covers"), (False, "does not cover")])
def test_an_estimate_says_whether_it_was_right(brief: dict[str, Any], is_covered: bool, word: str) -> None:
    estimate = {
        "estimated_bytes": [1 << 20, 2 << 20, 4 << 20],
        "is_covered": is_covered,
        "num_covered_tables": 3,
        "num_large_tables": 5,
    }
    text = printed(show_statistics, brief | {"calibration": CALIBRATION | estimate, "mode": "fae-paper"})
    assert f"(its estimate of 1 MiB to 4 MiB {word} that; so do the estimates of 3 of 5 tables)" in text


def test_rows_of_a_table_show_odd_categories_as_one_line_of_text() -> None:
    row = {"id": 0, "count": 9, "share": 0.25, "cumulative_share": 0.75, "is_hot": True}
    rows = [
        row | {"category": "[red]a\nb\x1b"},
        row | {"id": 1, "category": "oov", "is_hot": False, "is_known": False, "asked": "[x]"},
    ]
    table = {"feature": "C1", "kind": "text", "num_rows": 2, "num_lookups": 12_000, "rows": rows}
    text = printed(show_rows, table)
    assert "C1 (text): 2 rows, 12,000 lookups" in text
    (first,) = [line for line in text.splitlines() if "[red]" in line]
    assert first.split() == ["0", "[red]a", "b", "9", "25.0000%", "75.0000%", "hot"]
    assert "[x] has no id: its lookups use the out-of-vocabulary row, shown here." in text
    assert text.count("hot") == 1
