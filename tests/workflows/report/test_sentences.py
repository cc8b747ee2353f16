"""Commands to paste are run as they are printed, and write the folder that they promise (`provenance`).

The report's sentences follow from the figures.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotset.pipeline.errors import GIB, MIB, parse_byte_size
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.statistics.folder import provenance
from hotset.tests.support.logs.criteo_text import draw_samples, text_of
from hotset.tests.support.logs.list_logs import KINDS
from hotset.tests.support.logs.other_logs import draw_log, schema_text, write_parquet
from hotset.workflows.cli import main
from hotset.workflows.report.sentences import (
    budget_sentences,
    drift_sentences,
    percent,
    placement_sentence,
    policy_sentences,
    preprocess_command,
    rebuild_commands,
    rounded,
    size_option,
)

CASES: dict[str, list[str]] = {
    "defaults": [],
    "two days": ["--eval-files", "1", "--batch-size", "32", "--order", "original", "--block-bytes", "4KiB"],
    "peeled": ["--rank-by", "peel", "--feature-dims", "C3=8", "--seed", "7"],
    "as FAE": ["--mode", "fae-code", "--hot-bytes", "16KiB", "--embedding-optimizer", "sgd"],
    "rare": ["--min-count", "3", "--feature-min-counts", "C1=2,C5=4", "--on-bad-line", "skip"],
    "no label": ["--no-label", "--eval-fraction", "0.25", "--embedding-dim", "4"],
}


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two days and a Parquet log, the current one."""
    samples = draw_samples(240, np.random.default_rng(2))
    (tmp_path / "day 0").write_bytes(text_of(samples[:150]))
    (tmp_path / "day 1").write_bytes(text_of(samples[150:]))
    (tmp_path / "unlabeled").write_bytes(text_of(samples, label=False))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(line: str) -> None:
    program, *arguments = shlex.split(line)
    assert program == "hotset" and main(arguments) == 0


def fingerprints(folder: str) -> dict[str, Any]:
    found: dict[str, Any] = provenance(Path(folder))["fingerprints"]
    return found


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("case", CASES)
def test_the_command_of_a_folder_writes_it_again(logs: Path, case: str) -> None:
    raw = {"two days": ["day 0", "day 1"], "no label": ["unlabeled"]}.get(case, ["day 0"])
    assert main(["preprocess", *raw, *CASES[case], "--out", "first"]) == 0
    line = preprocess_command(provenance(Path("first")), Path("second out"))
    run(line)
    assert fingerprints("first") == fingerprints("second out")
    if case == "defaults":
        assert line == "hotset preprocess 'day 0' --hot-bytes 8KiB --out 'second out'"


def test_a_schema_file_is_named_as_one(logs: Path) -> None:
    log = draw_log(90, KINDS, np.random.default_rng(3))
    write_parquet(logs / "log.parquet", log)
    (logs / "SCHEMA.toml").write_text(schema_text(log, format="parquet"))
    arguments = ["log.parquet", "--schema", "SCHEMA.toml", "--texts", "3", "--batch-size", "8"]
    assert main(["preprocess", *arguments, "--out", "first"]) == 0
    found = provenance(Path("first"))
    assert found["schema"].startswith("toml:") and found["logs"][0]["samples"] == 90
    run(preprocess_command(found, Path("second")))
    assert fingerprints("first") == fingerprints("second")


def test_provenance_names_what_a_folder_comes_from(logs: Path) -> None:
    assert main(["preprocess", "day 0", "day 1", "--eval-files", "1", "--out", "data"]) == 0
    found = provenance(Path("data"))
    assert [(log["name"], log["samples"], log["train_samples"]) for log in found["logs"]] == [
        ("day 0", 150, 150),
        ("day 1", 90, 0),
    ]
    assert found["logs"][0]["bytes"] == (logs / "day 0").stat().st_size
    assert (found["schema"], found["is_adopted"], found["bad_lines"]) == ("criteo-kaggle", False, {})
    assert found["fingerprints"]["shards"] == Manifest.read(logs / "data" / "shards").fingerprint
    assert main(["preprocess", "day 1", "--like", "data", "--out", "other"]) == 0
    adopted = provenance(Path("other"))
    assert adopted["is_adopted"]
    assert preprocess_command(adopted, Path("x")) == "hotset preprocess 'day 1' --like MODEL_DIR --out x"


@pytest.mark.parametrize("first", ["split", "rank"])
def test_rebuilding_with_another_setting_is_a_run_from_scratch_with_it(logs: Path, first: str) -> None:
    settings = ["--embedding-dim", "8", "--batch-size", "16", "--min-count", "2"]
    other = {"split": {"hot_bytes": "3KiB"}, "rank": {"rank_by": "peel"}}[first]
    given = [word for name, text in other.items() for word in (f"--{name.replace('_', '-')}", text)]
    usual = ["--hot-bytes", "2KiB"] if first == "rank" else []
    for folder, options in (("first", usual), ("wanted", [*usual, *given])):
        assert main(["preprocess", "day 0", *settings, *options, "--out", folder]) == 0
    before = fingerprints("first")
    for line in rebuild_commands(provenance(Path("first")), Path("first"), first=first, **other):
        run(line)
    assert fingerprints("first") == fingerprints("wanted") != before


def test_sizes_are_short_and_never_below(rng: np.random.Generator) -> None:
    for size in [
        1,
        1023,
        1024,
        2_965_821,
        16 * MIB,
        300 * MIB + 5,
        7 * GIB,
        *rng.integers(1, 2**40, 200).tolist(),
    ]:
        text = size_option(size)
        assert size <= parse_byte_size(text) <= 1.011 * size and len(text) <= 8
    assert [size_option(size) for size in (2_965_821, 16 * MIB, 300 * MIB + 5)] == [
        "2.83MiB",
        "16MiB",
        "301MiB",
    ]


def test_the_shortest_size_between_two_is_found(rng: np.random.Generator) -> None:
    assert size_option(6_585_984, 6_585_984 + 127) == "6.281MiB"
    for least in rng.integers(1, 2**36, 200).tolist():
        for most in (least, least + 127, 2 * least):
            assert least <= parse_byte_size(size_option(least, most)) <= most
    assert size_option(6_585_984, 6_585_984) == "6.280884MiB" and size_option(65_536, 65_536) == "64KiB"


def curve(shares: list[float]) -> list[dict[str, Any]]:
    return [
        {"order": "frequency", "bytes": 2**n << 20, "num_hot_rows": 10 * 2**n,
         "hot_lookup_share": min(1.0, share + 0.3), "hot_sample_share": share}
        for n, share in enumerate(shares)
    ]  # fmt: skip


def test_sentences_tell_how_many_samples_are_fully_hot() -> None:
    rows = curve([0.0, 0.2, 0.5, 0.65, 0.67, 1.0])
    found: Any = {"hot_samples": rows, "num_rows": 320, "budgets": [rows[1] | {"is_chosen": True}]}
    assert budget_sentences(found) == [
        "The plan's 2 MiB makes 20.0% of the samples fully hot; one more MiB would add 18 percentage points.",
        "4 MiB makes at least half of the samples fully hot.",
    ]
    whole = found | {"budgets": [rows[5] | {"is_chosen": True}]}
    (only,) = budget_sentences(whole)
    assert "every row fits" in only


def trace_of(curve: Any) -> dict[str, Any]:
    return {
        "batch_size": 1,
        "num_batches": 1,
        "prefetch": 0,
        "num_needed": 1,
        "num_first_uses": 1,
        "curve": curve,
    }


def test_sentences_name_the_best_policy_and_how_hot_rows_age() -> None:
    shares = {"lookahead": 0.05, "lru": 0.4, "lfu": 0.2, "dataset": 0.1, "static": 0.3}
    rows: Any = [
        {"policy": policy, "num_slots": slots, "bytes": slots * 1024, "refetched_share": share / slots * 1024}
        for policy, share in shares.items()
        for slots in (512, 1024)
    ]
    (sentence,) = policy_sentences(trace_of(rows))
    assert "1 MiB" in sentence and "(dataset) loads 10.0% again" in sentence and "lru 40.0%" in sentence
    assert policy_sentences(trace_of([])) == []
    by_age = [{"age": age, "hot_lookup_share": share} for age, share in enumerate([0.95, 0.93, 0.88])]
    drift: Any = {"by_age": by_age, "parts": [{"is_training": False, "no_id_share": 0.031}]}
    aged, unknown = drift_sentences(drift)
    assert "93.0%" in aged and "88.0%" in aged and "choose them again often" in aged
    assert unknown.startswith("3.1% of the lookups")


def test_policies_are_compared_with_lru_once() -> None:
    shares = {"lookahead": 0.05, "lru": 0.1, "lfu": 0.2, "dataset": 0.3, "static": 0.3}
    rows: Any = [
        {"policy": policy, "num_slots": 512, "bytes": 512 * 1024, "refetched_share": share}
        for policy, share in shares.items()
    ]
    (sentence,) = policy_sentences(trace_of(rows))
    assert sentence.count("lru") == 1 and sentence.endswith("(lru) loads 10.0% again.")


def test_the_placement_sentence_states_when_everything_fits() -> None:
    advice: Any = {
        "enough": {"placement": "all-fast", "fast_bytes": 33 << 20, "step_seconds": 0.001},
        "workload": {"batch_size": 2048},
        "compute_seconds": 0.0009,
        "options": [{"fast_bytes": 64 << 20, "placements": []}],
    }
    assert placement_sentence(advice).startswith("Everything fits in 33 MiB of fast memory")
    assert "about 2.0 M samples per second" in placement_sentence(advice)
    advice["enough"] |= {"placement": "lookahead"}
    assert "lookahead with 33 MiB of fast memory in total" in placement_sentence(advice)
    assert ": 90% of the speed" in placement_sentence(advice)


@pytest.mark.parametrize(
    ("number", "text"),
    [(2282565, "2.3 M"), (999_600, "1.0 M"), (994_000, "990 k"), (1234, "1.2 k"), (87, "87"), (3e9, "3.0 G")],
)
def test_predictions_are_rounded_to_two_digits(number: float, text: str) -> None:
    assert rounded(number) == text


def test_percentages_have_no_space() -> None:
    assert percent(0.614) == "61.4%" and percent(0.9, 0) == "90%" and percent(None) == ""
