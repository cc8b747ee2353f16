"""The record of a checkpoint beside rows and dense layers: how far the run is, and what it has counted.

A part of a run that has a state of its own, such as a schedule of learning rates or the best score so far,
gives and takes it by the protocol `Resumable`; the trainer keeps a dict of them, by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from ...pipeline.folders.manifest import JsonRecord

BATCHES = "run.batches"
"""The tensor of a checkpoint with the batch of each step so far, (num_steps,) int32."""


class Resumable(Protocol):
    """A part of a run whose state a checkpoint keeps.

    What `state` returns after a step and `restore` is given before the next one in another process: plain
    JSON values (numbers, strings, lists, dicts, None), and tensors on the host. Tensors must be copies:
    training continues while they are written. A file is not trusted: `restore` raises HotsetError or
    ValueError on values that `state` does not return.
    """

    def state(self) -> Mapping[str, Any]: ...

    def restore(self, state: Mapping[str, Any]) -> None: ...


def split_state(state: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Divide a state into its plain values and its tensors."""
    tensors = {key: value for key, value in state.items() if isinstance(value, torch.Tensor)}
    return {key: value for key, value in state.items() if key not in tensors}, tensors


@dataclass(frozen=True, kw_only=True, slots=True)
class RunState(JsonRecord):
    """The plain part of a run's state after some step."""

    step: int
    """Steps so far."""
    num_samples: int
    """Samples of these steps."""
    is_logged: bool = True
    """Whether the evaluation that is due after the step was made."""
    unlogged_samples: int = 0
    """Samples since the last line of losses."""
    metrics: tuple[str, ...] = ()
    """The lines of metrics.jsonl so far."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds by kind of work; so too the two below."""
    bytes_to_fast: dict[str, int] = field(default_factory=dict)
    bytes_to_slow: dict[str, int] = field(default_factory=dict)
    rows_by_table: dict[str, dict[str, int]] = field(default_factory=dict)
    """Rows moved, by way and table."""
    transfers: dict[str, float] = field(default_factory=dict)
    """Seconds and numbers of transfers."""
    test_losses: tuple[float, ...] = ()
    """Those that the scheduler of fae has seen."""
    others: dict[str, dict] = field(default_factory=dict)  # type: ignore[type-arg]
    """Plain state of each `Resumable`, by name."""
