"""The parts of a training step by name."""

from __future__ import annotations

LOOP_PARTS = (
    "load",
    "transfers",
    "lookup",
    "bottom",
    "interaction",
    "top",
    "backward",
    "exchange",
    "reduce",
    "update",
    "idle",
)
"""Parts of the loop, which follow each other: their seconds add up to those of the step. ``load`` and
``transfers`` are the waits for what other threads do."""
BESIDE_PARTS = ("load", "transfers")
"""Parts that threads beside the loop work on for later steps."""
