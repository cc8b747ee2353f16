"""Options of ranks are refused where they make no sense."""

from __future__ import annotations

import pytest

from hotset.pipeline.errors import ConfigError
from hotset.train.options.rank_options import is_launched, rank_timeout


@pytest.mark.parametrize("seconds", ["0", "-1", "1e9", "nan", "soon"])
def test_a_timeout_is_some_seconds(seconds: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOTSET_RANK_TIMEOUT", raising=False)
    assert rank_timeout() == 60
    monkeypatch.setenv("HOTSET_RANK_TIMEOUT", "2.5")
    assert rank_timeout() == 2.5
    monkeypatch.setenv("HOTSET_RANK_TIMEOUT", seconds)
    with pytest.raises(ConfigError, match=f"HOTSET_RANK_TIMEOUT is '{seconds}', want seconds"):
        rank_timeout()


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
