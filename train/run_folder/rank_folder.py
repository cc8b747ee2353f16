"""The folder of a run to ranks that do not write it: rank 0 does, and they send it their rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ...pipeline.folders.manifest import Manifest
from .run_writer import RunFolder
from .weights_file import Weights


class RankFolder(RunFolder):
    """Writes nothing.

    Args:
        path: of the run.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)

    def log(self, entry: Mapping[str, Any]) -> None:
        """Leave the log to rank 0."""

    def keep_vocabulary(self, vocabulary: Manifest) -> None:
        """Leave the vocabulary to rank 0."""

    def save_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Send the rows that live here to rank 0, in the order in which it writes."""
        assert isinstance(weights, Weights)
        send_weights(weights)

    def save_states(self, states: Weights) -> None:
        """Send the states of these rows, likewise."""
        self.save_weights(states)

    def save_batch_order(self, numbers: list[int]) -> None:
        """Leave the order to rank 0."""

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Leave the summary to rank 0."""


def send_weights(weights: Weights) -> None:
    """Send the rows that live here to rank 0, in the order in which `write_weights` takes them there."""
    for name in sorted(weights.shapes):
        for _ in weights.parts(name):
            pass
