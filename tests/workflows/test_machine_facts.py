"""The description of a machine."""

from __future__ import annotations

import json
import platform

import pytest

from hotset.workflows.machine_facts import describe_machine


def test_the_machine_is_described_without_its_name() -> None:
    described = json.dumps(describe_machine())
    assert json.loads(described)["libraries"]["polars"]
    assert platform.node() not in described


def test_instructions_that_libraries_are_held_to_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS", "NUMBA_CPU_NAME", "ONEDNN_MAX_CPU_ISA"):
        monkeypatch.delenv(name, raising=False)
    assert describe_machine()["held_to"] == {}
    monkeypatch.setenv("NUMBA_CPU_NAME", "haswell")
    assert describe_machine()["held_to"] == {"NUMBA_CPU_NAME": "haswell"}
