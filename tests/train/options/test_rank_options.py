"""Options of ranks are refused where they make no sense."""

from __future__ import annotations

import pytest

from hotset.pipeline.errors import ConfigError
from hotset.train.options.rank_options import RankOptions


@pytest.mark.parametrize("seconds", [0.0, -1.0, 1e9, float("nan")])
def test_a_timeout_is_some_seconds(seconds: float) -> None:
    assert RankOptions(rank_timeout=2).homes == "by-use"
    with pytest.raises(ConfigError, match="rank_timeout"):
        RankOptions(rank_timeout=seconds)
