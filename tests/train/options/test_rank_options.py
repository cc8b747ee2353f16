"""Options of ranks are refused where they make no sense."""

from __future__ import annotations

import pytest

from hotset.pipeline.errors import ConfigError
from hotset.train.options.rank_options import RankOptions, is_launched


@pytest.mark.parametrize("seconds", [0.0, -1.0, 1e9, float("nan")])
def test_a_timeout_is_some_seconds(seconds: float) -> None:
    assert RankOptions(rank_timeout=2).homes == "by-use"
    with pytest.raises(ConfigError, match="rank_timeout"):
        RankOptions(rank_timeout=seconds)


@pytest.mark.parametrize(("number", "wanted"), [("", False), ("0", False), ("1", False), ("2", True)])
def test_several_ranks_are_told_by_their_number(
    number: str, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", number)
    assert is_launched() == wanted


@pytest.mark.parametrize("number", ["abc", "-2", "1.5"])
def test_a_number_of_ranks_that_is_none_is_refused(number: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", number)
    with pytest.raises(ConfigError, match=f"WORLD_SIZE is '{number}', want the number of ranks"):
        is_launched()
