"""A log of one label has no AUC: benchmarks of quality refuse it before they train."""

from __future__ import annotations

from ....pipeline.errors import ConfigError
from ....train.data.evaluation_part import EvaluationPart
from ....train.data.shards import Shards


def refuse_one_label(shards: Shards) -> None:
    """Raise ConfigError where the labels of the test part do not include both 0 and 1."""
    part = EvaluationPart(shards, "test")
    found: set[float] = set()
    for number in part.numbers:
        found |= set(part.batch(number).label_B.tolist())
        if len(found) > 1:
            return
    labels = f"have the label {found.pop():.0f}" if found else "are none"
    raise ConfigError(
        f"the {part.num_samples:,} samples of the test part {labels}, so there is no AUC to compare",
        hint="give --data a log with both labels in the part that is evaluated, its last samples",
    )
