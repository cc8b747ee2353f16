"""An epoch of all-fast and one of lookahead are trained as a user trains them, and end with equal weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hotset.train.gpu.transfers import QueuedTransfers
from hotset.workflows.bench.gpu_day import epoch
from hotset.workflows.bench.gpu_day.epoch import train_an_epoch
from hotset.workflows.bench.gpu_day.part_settings import PartSettings
from hotset.workflows.bench.gpu_day.records import Records

_EQUAL = "lookahead ends an epoch with the weights of all-fast"


def found_in(folder: Path) -> tuple[list[dict[str, Any]], dict[str, bool]]:
    """Train, and return the rows and the checks."""
    folder.mkdir()
    train_an_epoch(PartSettings("late", folder, True), Records(folder / "records", 60))
    found = [json.loads(line) for line in (folder / "records").read_text().splitlines()]
    checks = [each["check"] for each in found if "check" in each]
    rows = [each["row"] for each in found if "row" in each]
    return rows, {check["name"]: check["is_right"] for check in checks}


@pytest.mark.slow
def test_two_epochs_are_compared(tmp_path: Path) -> None:
    (inputs, *rows), checks = found_in(tmp_path / "epoch")
    assert checks == {_EQUAL: True}
    assert inputs["seconds"].keys() == {"draw", "pack"}
    assert [row["placement"] for row in rows] == ["all-fast", "lookahead"]
    for row in rows:
        assert row["samples"] == inputs["samples"] == 6_000
        assert 0 < row["training_seconds"] < row["whole_seconds"] and row["samples_per_second"] > 0
        assert 0.4 < row["auc"] < 1 and row["auc"] == rows[0]["auc"]
    # The runs, of 4 GB at full size, are gone.
    assert rows[1]["mover"] == "kernel"
    assert sorted(path.name for path in (tmp_path / "epoch").iterdir()) == ["epoch", "records"]


@pytest.mark.slow
def test_other_weights_and_a_run_that_raises_are_checks_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checksums = iter("ab")
    with monkeypatch.context() as patch:
        patch.setattr(epoch, "checksum_of_weights", lambda run: next(checksums))
        rows, checks = found_in(tmp_path / "other")
    assert checks == {_EQUAL: False} and len(rows) == 3

    def begin(self: object, number: int) -> None:
        raise ZeroDivisionError("a transfer")

    monkeypatch.setattr(QueuedTransfers, "begin", begin)
    monkeypatch.setattr(QueuedTransfers, "wait_for", begin)
    rows, checks = found_in(tmp_path / "raises")
    assert checks == {"an epoch of lookahead": False} and len(rows) == 2
