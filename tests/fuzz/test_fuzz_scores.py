"""Some hundred random cases, the first ones of every run."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotset.tests.fuzz import fuzz_scores


@pytest.mark.slow
def test_scores_are_those_of_other_programs(tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    found = fuzz_scores.measure(fuzz_scores.PARSER.parse_args(["--cases", "300"]), tmp_path)
    assert found["cases_with_the_score"].keys() >= {"auc", "pr_auc", "log_loss", "gauc"}
    assert max(found["largest_difference"].values()) < 1e-12
