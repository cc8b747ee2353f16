"""Settings of checkpoints."""

from __future__ import annotations

import pytest

from hotset.pipeline.errors import ConfigError
from hotset.train.checkpoints.checkpoint_settings import CheckpointSettings


def test_at_least_one_checkpoint_is_kept() -> None:
    with pytest.raises(ConfigError, match="keep_checkpoints must be 1 or more"):
        CheckpointSettings(keep_checkpoints=0)
