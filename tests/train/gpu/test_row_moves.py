"""What moves the rows of queued steps; faults are planted in `test_queued_steps`."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotset.tests.support.late_runs import PLACEMENTS, draw_run, train_late, wanted_of
from hotset.tests.support.trained_models import assert_equal_bits
from hotset.train.gpu.simulated_device import LateDevice
from hotset.train.run_log import summarize_transfers

STAGED = tuple(fields for fields in PLACEMENTS if fields["placement"] in ("lookahead", "cache", "hybrid-uva"))


@pytest.mark.parametrize("fields", STAGED, ids=str)
def test_the_host_moves_rows_that_cannot_be_pinned(
    fields: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = draw_run(9, tmp_path)
    assert summarize_transfers(train_late(run, 1, **fields)).mover == "kernel" and not caplog.records
    monkeypatch.setattr(LateDevice, "pin", lambda device, tensor: False)
    found = train_late(run, 1, **fields)
    assert summarize_transfers(found).mover is None
    assert "cannot be pinned" in caplog.text
    assert_equal_bits(found, wanted_of(run))


@pytest.mark.parametrize("placement", ["all-fast", "hybrid"])
def test_nothing_moves_the_rows_of_a_placement_without_staging(placement: str, tmp_path: Path) -> None:
    run = draw_run(9, tmp_path)
    assert summarize_transfers(train_late(run, 1, placement=placement)).mover is None
