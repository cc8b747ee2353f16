"""A run of an earlier version goes on where its options are those that are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hotset.pipeline.errors import HotsetError
from hotset.train.run_folder import removed_options as module
from hotset.train.run_folder.removed_options import without_removed

RUN = Path("run")


def test_settings_are_renamed_and_those_at_their_defaults_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RENAMED", {"parts": "pieces"})
    monkeypatch.setattr(module, "REMOVED", {"old": 3, "older": None})
    description = {"config": {"seed": 1, "parts": 2, "old": 3, "recipe": {"older": None}}, "model": "dlrm"}
    kept = {"config": {"seed": 1, "pieces": 2, "recipe": {}}, "model": "dlrm"}
    assert without_removed(RUN, description) == kept
    assert description["config"]["old"] == 3  # type: ignore[index]
    with pytest.raises(HotsetError, match="run was begun with --old 4, an option that this version does not"):
        without_removed(RUN, {"config": {"old": 4}})
    with pytest.raises(HotsetError, match="--older 5"):
        without_removed(RUN, {"config": {"recipe": {"older": 5}}})


@pytest.mark.parametrize(
    ("name", "value", "option"),
    [
        ("decay", "step", "--exchange-decay step"),
        ("homes", "moving", "--homes moving"),
        ("sync_every", 8, "--sync-every 8"),
    ],
)
def test_codecs_are_continued_with_a_linear_decay_or_none(name: str, value: Any, option: str) -> None:
    exchange = {"vectors": "int8", "decay": "linear", "sync_rows": 0, "sync_every": None, "homes": "by-use"}
    assert without_removed(RUN, {"exchange": exchange}) == {"exchange": {"vectors": "int8"}}
    assert without_removed(RUN, {"exchange": exchange | {"decay": "none"}})["exchange"] == {"vectors": "int8"}
    with pytest.raises(HotsetError, match=option):
        without_removed(RUN, {"exchange": exchange | {name: value}})
