"""Scores next to plain torch; tests `plain_torch`, too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotset.workflows.bench import harness, plain_torch, quality

BOTH = "torch, both of hotset"


def run(out: Path, *words: str) -> dict[str, Any]:
    sizes = ("--seeds", "2", "--train-samples", "3000", "--test-samples", "2000", "--logs", "small")
    arguments = ["torch", *sizes, *words, "--out", str(out / "result.json"), "--scratch", str(out)]
    assert harness.run_script(quality.PARSER, quality.measure, arguments) == 0
    found: dict[str, Any] = json.loads((out / "result.json").read_text())
    return found


@pytest.mark.parametrize("layers", [pytest.param("kaggle", marks=pytest.mark.slow), "small"])
@pytest.mark.parametrize("model", ["dlrm", "dcnv2"])
def test_torch_with_values_and_batches_of_hotset_reaches_its_scores(
    model: str, layers: str, tmp_path: Path
) -> None:
    programs = ("--programs", "hotset", BOTH, "--optimizers", "adagrad")
    found = run(tmp_path, *programs, "--models", model, "--layers", layers)
    (case,) = found["cases"]
    # Of one case alone, the difference of all cases together is its own.
    assert found["together"]["adagrad"]["auc"][BOTH] == case["auc_difference"][BOTH]
    # The order of additions differs, and the last batch, which hotset divides by the full size.
    np.testing.assert_allclose(case["auc"]["hotset"], case["auc"][BOTH], atol=3e-3)
    np.testing.assert_allclose(case["log_loss"]["hotset"], case["log_loss"][BOTH], atol=3e-3)


@pytest.mark.slow
def test_only_adam_has_a_lazy_twin(tmp_path: Path) -> None:
    few = ("--models", "dlrm", "--optimizers", "sgd", "adam-0.001")
    found = run(tmp_path, *few, "--programs", "torch", "torch, SparseAdam")
    same, other = (case["auc_difference"]["torch, SparseAdam"] for case in found["cases"])
    assert same["mean"] == 0 != other["mean"]


def test_a_tie_counts_one_half(rng: np.random.Generator) -> None:
    logit_N = rng.integers(-4, 5, 200) / 2
    label_N = (rng.random(200) < 0.3).astype(np.float64)
    missing = plain_torch.scores_of(np.append(logit_N, 9), np.append(label_N, np.nan))
    above_PN = logit_N[label_N == 1][:, None] - logit_N[label_N == 0]
    found = plain_torch.scores_of(logit_N, label_N)
    assert found["auc"] == pytest.approx(np.mean((np.sign(above_PN) + 1) / 2), abs=1e-12)
    assert missing == found
    probability_N = 1 / (1 + np.exp(-logit_N))
    answer_N = np.where(label_N == 1, probability_N, 1 - probability_N)
    assert found["log_loss"] == pytest.approx(-np.log(answer_N).mean(), abs=1e-12)


def test_intervals_are_those_of_student() -> None:
    # A textbook case: mean 3, deviation sqrt(2.5).
    found = harness.interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert found == pytest.approx({"mean": 3, "from": 1.037, "to": 4.963}, abs=2e-3)
    # Differences are from the first contestant, of the same seed.
    seeds = harness.over_seeds({"hotset": [1.0, 2.0], "torch": [2.0, 4.0]})
    assert seeds["mean"] == {"hotset": 1.5, "torch": 3.0} and seeds["difference"]["torch"]["mean"] == 1.5
