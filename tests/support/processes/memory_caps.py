"""Caps of a few kilobytes: what the process holds beside a stage is left out of the count."""

from __future__ import annotations

import pytest


def count_stages_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``memory_bytes`` be the room of a stage itself, and let the least rooms be small."""
    monkeypatch.setattr("hotset.pipeline.runtime.tasks.FIXED_BYTES", 0)
    monkeypatch.setattr("hotset.pipeline.runtime.tasks._SLACK_BYTES", 0)
    monkeypatch.setattr("hotset.pipeline.runtime.tasks.anonymous_bytes", lambda: 0)
    monkeypatch.setattr("hotset.pipeline.stages.count._LEAST_ROOM", 0)
    monkeypatch.setattr("hotset.pipeline.stages.rank._LEAST_ROOM", 0)
    monkeypatch.setattr("hotset.pipeline.stages.encode.LEAST_TABLE_BYTES", 0)
