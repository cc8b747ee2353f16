"""The signs of ranks that are at work, and which rank gives none."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from hotset.train.ranks import pulse
from hotset.train.ranks.pulse import Pulse


def test_a_rank_that_gives_no_sign_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse, "_BEAT_SECONDS", 0.1)
    store = dist.HashStore()  # type: ignore[attr-defined]
    pulses = [Pulse(store, rank, 4) for rank in range(4)]
    try:
        pulses[1].stop()
        pulses[3].stop()
        assert pulses[0].lost() == [1, 3]
        assert pulses[2].lost() == [1, 3]
    finally:
        for each in pulses:
            each.stop()
