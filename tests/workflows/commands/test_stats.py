"""``hotset stats``: series, rows and files. ``hotset advise``: advice as tables and sentences."""

from __future__ import annotations

import json
import shutil
from copy import deepcopy
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hotset.pipeline.errors import ByteSize
from hotset.pipeline.runtime.tasks import Resources, num_workers
from hotset.pipeline.statistics.coverage import CHOSEN, DISTINCT, FAE, POOLED, replication_of
from hotset.pipeline.statistics.frequencies import SERIES, frequency_statistics
from hotset.stats.replication import Network
from hotset.stats.step_times import Machine
from hotset.train.advice import AdviceConfig, MachineSpeeds, advise
from hotset.train.data.shards import ShardSet
from hotset.train.torchrec.sharding import count_uses
from hotset.workflows.cli import main
from hotset.workflows.commands.stats import show_advice, show_rows, show_statistics
from hotset.workflows.machine import cpu_model
from hotset.workflows.report.sentences import rounded, splits_sentence
from hotset.workflows.report.tables import predicted_bytes, predicted_seconds


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


SPEEDS = MachineSpeeds(
    device_name="A CPU",
    threads=2,
    flops=2e11,
    host_rows_per_second=5e7,
    row_bytes=64,
    link_bytes_per_second=9e9,
    loader_samples_per_second=1e6,
)
SIZES = (ByteSize(1 << 20), ByteSize(8 << 20))


@pytest.fixture(scope="module")
def advice(data: Path) -> Any:
    config = AdviceConfig(fast_bytes=SIZES, batch_size=128, model="small")
    return advise(data, config, Machine(), Resources(workers=1))


def printed_advice(advice: Any, width: int = 200) -> str:
    console = Console(file=StringIO(), width=width)
    show_advice(advice, console)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_every_placement_of_every_size_is_a_row(advice: dict[str, Any]) -> None:
    text = printed_advice(advice)
    assert "Predicted for a typical GPU (not this machine): steps of 128 samples" in text
    assert "These are predictions from counts" in " ".join(text.split())
    for option in advice["options"]:
        for one in [*option["placements"], *option["too_large"]]:
            step = predicted_seconds(one["step_seconds"])
            assert len(step.strip("0,µs .")) <= 2 < len(step)
            assert any(one["placement"] in line and step in line for line in text.splitlines())
    num_lacking = sum(len(option["too_large"]) for option in advice["options"])
    assert text.count("does not fit") == num_lacking


def test_the_columns_of_a_row_are_those_of_its_prediction(advice: dict[str, Any]) -> None:
    """Numbers that differ from each other, in place of those predicted."""
    one = advice["options"][-1]["placements"][0] | {
        "placement": "lookahead",
        "step_seconds": 2e-3,
        "to_fast_bytes": 3 << 20,
        "to_slow_bytes": 5 << 20,
        "prefetch": 7,
        "memory_bytes": 1 << 20,
    }
    slower = one | {"placement": "hybrid", "step_seconds": 4e-3, "prefetch": None}
    lacking = slower | {"placement": "all-fast", "memory_bytes": 9 << 20}
    option = {"fast_bytes": 1 << 20, "placements": [one, slower], "too_large": [lacking]}
    text = printed_advice(advice | {"options": [option]})
    step = predicted_seconds(2e-3).split()
    rows = [line.split() for line in text.splitlines()]
    # A placement may need all of the memory.
    sent = [*predicted_bytes(3 << 20).split(), *predicted_bytes(5 << 20).split()]
    size = ["1", "MiB"]
    assert [*size, "lookahead", *rounded(64_000).split(), *step, *sent, "7", *size] in rows
    step = predicted_seconds(4e-3).split()
    assert [*size, "hybrid", *rounded(32_000).split(), *step, *sent, *size] in rows
    lacks = [step[0], f"{step[1]},", "does", "not", "fit"]
    assert [*size, "all-fast", *rounded(32_000).split(), *lacks, *sent, "9", "MiB"] in rows
    # The use of memory is that of the fastest placement.
    by_use = rows[[" ".join(row) for row in rows].index("Fast memory of the fastest placement, by use") + 2]
    assert by_use[:3] == ["1", "MiB", "lookahead"]


def test_no_number_is_cut_in_a_narrow_terminal(advice: dict[str, Any]) -> None:
    narrow = printed_advice(advice, width=60)
    assert all(len(line) <= 60 for line in narrow.splitlines() if line.startswith("fast memory"))
    assert "…" not in narrow
    for option in advice["options"]:
        for one in option["placements"]:
            assert predicted_seconds(one["step_seconds"]) in narrow


def test_what_does_not_fit_says_so_beside_its_time(advice: dict[str, Any]) -> None:
    rows = [line for line in printed_advice(advice, width=80).splitlines() if "does not fit" in line]
    lacking = [one for option in advice["options"] for one in option["too_large"]]
    assert lacking and len(rows) == len(lacking)
    assert all(predicted_seconds(one["step_seconds"]) in row for row, one in zip(rows, lacking, strict=True))


def test_the_last_lines_say_what_to_do(advice: dict[str, Any]) -> None:
    whole = deepcopy(advice)
    whole["enough"] = {"fast_bytes": 8 << 20, "placement": "all-fast", "step_seconds": 1e-3}
    assert (
        "Everything fits in 8 MiB of fast memory, so no other placement than all-fast is needed."
        in printed_advice(whole)
    )
    part = deepcopy(advice)
    part["enough"] = {"fast_bytes": 1 << 20, "placement": "lookahead", "step_seconds": 2e-3}
    part["compute_seconds"] = 1.5e-3
    assert "lookahead with 1 MiB of fast memory in total" in printed_advice(part)
    known = ": 75% of the speed with every row in fast memory. More memory gains less than 1%."
    assert known in printed_advice(part)
    # Of sizes beyond the largest one that was predicted nothing is known, unless it holds every row.
    most = deepcopy(part)
    most["enough"]["fast_bytes"] = most["options"][-1]["fast_bytes"]
    assert "all-fast" in {one["placement"] for one in most["options"][-1]["placements"]}
    assert known in printed_advice(most)
    most["options"][-1]["placements"] = most["options"][-1]["placements"][:1]
    most["options"][-1]["placements"][0]["placement"] = "lookahead"
    assert " No larger size was compared." in printed_advice(most)
    for advised in (whole, part, most):
        assert printed_advice(advised).rstrip().endswith("the speeds of this machine for --speeds FILE.")


def test_the_title_names_the_speeds_and_where_they_are_from(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    SPEEDS.write(tmp_path / "machine.json")
    command = ("advise", str(data), "--fast-bytes", "8MiB", "--model", "small")
    for options, title in (
        ((), "typical speeds (link 20 GB/s, host 10 GB/s, 10 TFLOP/s, 300 µs a step)"),
        (
            ("--speeds", str(tmp_path / "machine.json")),
            "speeds of machine.json (link 9 GB/s, host 3.2 GB/s, 0.2 TFLOP/s, 300 µs a step)",
        ),
    ):
        capsys.readouterr()
        assert main([*command, *options]) == 0
        assert title in " ".join(capsys.readouterr().out.split())
    # Steps wait for a slow loader.
    assert main([*command, "--speeds", str(tmp_path / "machine.json"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["machine"]["loader_samples_per_second"] == 1e6
    assert found["best"]["step_seconds"] >= found["workload"]["batch_size"] / 1e6


def test_the_title_names_the_machine_whose_speeds_they_are(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ("advise", str(data), "--fast-bytes", "8MiB", "--model", "small")
    here = replace(SPEEDS, device_name=cpu_model(), cores=num_workers(0))
    more_cores = replace(here, cores=num_workers(0) + 1)
    for number, (speeds, device) in enumerate(
        (
            (here, f"this machine ({cpu_model()}, {num_workers(0)} core"),
            (more_cores, f"another machine ({cpu_model()}, {num_workers(0) + 1} cores)"),
            (replace(here, device_name="A CPU", cores=1), "another machine (A CPU, 1 core)"),
            (SPEEDS, "another machine (A CPU, an unknown number of cores)"),
        )
    ):
        path = tmp_path / f"machine-{number}.json"
        speeds.write(path)
        capsys.readouterr()
        assert main([*command, "--speeds", str(path)]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert f"Predicted for {device}" in shown and "typical" not in shown
    assert main(command) == 0
    assert "Predicted for a typical GPU (not this machine): " in " ".join(capsys.readouterr().out.split())


def test_the_command_prints_what_the_function_returns(
    data: Path, advice: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "advise",
        str(data),
        "--fast-bytes",
        "1MiB",
        "8MiB",
        "--batch-size",
        "128",
        "--model",
        "small",
    ]
    capsys.readouterr()
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(advice))
    assert main(arguments) == 0
    assert "Fast memory of the fastest placement, by use" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--devices", "2"), "--devices needs --engine torchrec"),
        (("--engine", "torchrec", "--devices", "0"), "--devices must be from 1 to 1024"),
        (
            ("--engine", "torchrec", "--batch-size", "64"),
            "--batch-size changes nothing with --engine torchrec",
        ),
        (("--engine", "torchrec", "--model", "small"), "--model changes nothing with --engine torchrec"),
        (("--engine", "torchrec", "--fast-bytes", "1MiB", "2MiB"), "give one size of --fast-bytes"),
    ],
)
def test_options_of_the_other_engine_are_refused(
    data: Path, options: tuple[str, ...], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["advise", str(data), *options])
    assert error in capsys.readouterr().err


def test_splits_are_compared_without_training(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["advise", str(data), "--engine", "torchrec"]) == 0
    shown = capsys.readouterr().out
    for name in ("chosen split", "all sharded, distinct", "all sharded ", "FAE: all hot rows"):
        assert shown.count(f"\n{name} ") == 3
    assert [f"On {number} devices" in shown for number in (2, 4, 8)] == [True] * 3
    # A file of speeds has those between devices if somebody wrote them into it.
    replace(SPEEDS, exchange_seconds=5e-4).write(tmp_path / "machine.json")
    command = ["advise", str(data), "--engine", "torchrec", "--devices", "4", "--fast-bytes", "64MiB"]
    assert main([*command, "--speeds", str(tmp_path / "machine.json"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["network"]["exchange_seconds"] == 5e-4
    network = Network(exchange_seconds=5e-4)
    shards = ShardSet.open(data)
    uses = count_uses(shards, [4])
    wanted = replication_of(shards.manifest, uses, device_bytes=64 << 20, network=network)
    assert found["devices"] == json.loads(json.dumps(wanted))


def split_row(**changes: float) -> dict[str, Any]:
    """Return a comparison in which FAE's rule takes twice the time and saves half of the steps."""
    seconds = {CHOSEN: 0.9e-4, DISTINCT: 1e-4, POOLED: 3e-4, FAE: 2e-4} | changes
    splits = [
        {"split": name, "step_seconds": each, "hot_only_share": 0.5 if name == FAE else 0.0}
        for name, each in seconds.items()
    ]
    return {"devices": 8, "splits": splits}


def test_a_verdict_says_whether_the_split_pays() -> None:
    pays = splits_sentence(split_row(), Network())
    assert pays.startswith("On 8 devices the chosen split saves 10.0% of the bytes that leave a device.")
    # FAE's rule takes 110 µs more for half of the steps.
    assert (
        "makes 50% of the steps hot-only. That pays if the all-to-alls of a step take more than 220 µs"
        in pays
    )
    fails = splits_sentence(split_row(**{CHOSEN: 0.999e-4}), Network())
    assert fails.startswith("On 8 devices the split does not pay: it saves 0.1% of the bytes that leave")
    lists = splits_sentence(split_row(**{POOLED: 0.45e-4}), Network())
    assert "saves 10.0% of the bytes" in lists and "all sharded, take 50.0% less: they send" in lists
    slow = splits_sentence(split_row(**{FAE: 0.5e-4}), Network(exchange_seconds=1e-4))
    assert slow == "On 8 devices the chosen split saves 10.0% of the time of the exchange."
    assert splits_sentence({"devices": 1, "splits": []}, Network()).startswith(
        "A single device exchanges nothing"
    )
