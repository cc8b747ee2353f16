"""Scores and lines that hang together, each check by itself; `test_run_edits` edits whole runs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hotset.pipeline.errors import HotsetError
from hotset.train.run_folder.check_results import check_log, parse_object


def scores(**changes: Any) -> dict[str, Any]:
    """Scores of 3 hot and 1 mixed samples."""
    found: dict[str, Any] = {
        "auc": 0.5,
        "log_loss": 0.7,
        "accuracy": 0.75,
        "num_samples": 4,
        "hot": {"log_loss": 0.6, "accuracy": 1.0, "num_samples": 3},
        "mixed": {"log_loss": 1.0, "accuracy": 0.0, "num_samples": 1},
        "oov": {"num_samples": 0},
    }
    return found | changes


def log_of(*lines: dict[str, Any]) -> list[str]:
    return [json.dumps(line) for line in lines]


def test_a_log_says_how_a_run_ended() -> None:
    log = check_log(
        log_of(
            {"step": 2, "samples": 64, "loss": 0.7},
            {"step": 3, "samples": 90, "loss": 0.5},
            {"step": 3, "validation": scores()},
            {"step": 3, "evaluation": scores(auc=None)},
        ),
        "x",
        32,
    )
    assert (log.step, log.num_samples) == (3, 90)
    assert log.validation == scores() and log.evaluation == scores(auc=None)
    assert check_log([], "x", None).num_samples is None


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"num_samples": 5, "log_loss": None, "accuracy": None}, "5 samples, of which 3 hot and 1 mixed"),
        ({"log_loss": 0.71}, "log_loss is 0.71, of its groups 0.7"),
        ({"accuracy": 0.5}, "accuracy is 0.5, of its groups 0.75"),
        ({"auc": -0.1}, "auc is -0.1"),
        ({"pr_auc": 1.1}, "pr_auc is 1.1"),
        ({"calibration": float("inf") * -1}, "calibration is -inf"),
        ({"accuracy": True}, "accuracy is True"),
        ({"num_samples": -4}, "num_samples is -4"),
        ({"oov": {"num_samples": 0, "auc": 2}}, "oov is damaged: auc is 2"),
    ],
)
def test_scores_that_do_not_hang_together_are_named(changes: dict[str, Any], fault: str) -> None:
    with pytest.raises(HotsetError, match="x, line 1, evaluation") as caught:
        check_log(log_of({"step": 1, "evaluation": scores(**changes)}), "x", None)
    assert fault in str(caught.value)


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        ([{"step": 2}, {"step": 1}], "line 2, is damaged: it is of step 1, the one before of 2"),
        ([{"step": 1.5}], "it is of step 1.5"),
        ([{"step": 1, "loss": 0.5}], "samples is None"),
        ([{"step": 1, "loss": 0.5, "samples": 33}], "33 samples at step 1"),
        ([{"step": 1, "loss": 0.5, "samples": 5}, {"step": 2, "loss": 0.5, "samples": 5}], "5 samples at"),
        ([{"step": 1, "loss": None, "samples": 5}], "loss is None"),
    ],
)
def test_lines_that_no_run_writes_are_named(lines: list[dict[str, Any]], fault: str) -> None:
    with pytest.raises(HotsetError) as caught:
        check_log(log_of(*lines), "x", 32)
    assert fault in str(caught.value)


@pytest.mark.parametrize("text", ["[1]", "{", "[" * 100_000, b"\xff"])
def test_what_is_no_object_is_named(text: str | bytes) -> None:
    with pytest.raises(HotsetError, match=r"^x is damaged: "):
        parse_object(text, "x")
