"""The report's sentences follow from the figures."""

from __future__ import annotations

from typing import Any

import pytest

from hotset.pipeline.statistics.traffic import MissRatios
from hotset.workflows.report.report_sentences import (
    budget_sentences,
    drift_sentences,
    percent,
    placement_sentence,
    policy_sentences,
    rounded,
)


def curve(shares: list[float]) -> list[dict[str, Any]]:
    return [
        {"order": "frequency", "bytes": 2**n << 20, "num_hot_rows": 10 * 2**n,
         "hot_lookup_share": min(1.0, share + 0.3), "hot_sample_share": share}
        for n, share in enumerate(shares)
    ]  # fmt: skip


def test_sentences_tell_where_more_memory_stops_paying_off() -> None:
    rows = curve([0.0, 0.2, 0.5, 0.65, 0.67, 1.0])
    found: Any = {"hot_samples": rows, "num_rows": 320, "budgets": [rows[2] | {"is_chosen": True}]}
    sentences = budget_sentences(found)
    assert sentences == [
        "8 MiB of fast memory holds the 80 rows that serve at least 90% of the lookups: 25.0% of all 320 "
        "rows, which take 32 MiB.",
        "4 MiB makes at least half of the samples fully hot.",
        "The plan's 4 MiB makes 50.0% of the samples fully hot; one more MiB would add 4.8 percentage "
        "points.",
        "More memory stops paying off at 8 MiB: doubling it makes only 2.0 percentage points more of the "
        "samples fully hot. Beyond that, only room for all rows (32 MiB) makes a difference.",
    ]
    whole = found | {"budgets": [rows[5] | {"is_chosen": True}]}
    assert "every row fits" in budget_sentences(whole)[2]


def trace_of(curve: Any) -> MissRatios:
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
    assert (
        "1 MiB" in sentence and "(dataset) refetches 10.0%" in sentence and "lru refetches 40.0%" in sentence
    )
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
    assert sentence.count("lru") == 1 and sentence.endswith("(lru) refetches 10.0%.")


def test_the_placement_sentence_states_when_everything_fits() -> None:
    advice: Any = {
        "enough": {"placement": "all-fast", "fast_bytes": 33 << 20, "step_seconds": 0.001},
        "workload": {"batch_size": 2048},
        "compute_seconds": 0.0009,
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
