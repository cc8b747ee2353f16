"""The settings in the result of a benchmark."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hotset.workflows.bench.measuring.recorded_settings import recorded_settings


@dataclass(frozen=True)
class Config:
    """Settings of a benchmark."""

    rounds: int = 3
    data: Path | None = None
    scratch: Path | None = None


def test_no_place_on_this_machine_is_recorded() -> None:
    assert recorded_settings(Config()) == {"rounds": 3, "data": None}
    found = recorded_settings(Config(data=Path("/home/me/log.tsv"), scratch=Path("/big")))
    assert found == {"rounds": 3, "data": "log.tsv"}
