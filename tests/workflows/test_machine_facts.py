"""The description of a machine."""

from __future__ import annotations

import json
import platform

from hotset.workflows.machine_facts import describe_machine


def test_the_machine_is_described_without_its_name() -> None:
    described = json.dumps(describe_machine())
    assert json.loads(described)["libraries"]["polars"]
    assert platform.node() not in described
