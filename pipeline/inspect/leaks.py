"""Whether counts, ids or the hot set saw evaluation data, as far as the manifests of a folder tell.

Raw logs are known by their checksum, so a log that was given twice, or that a model's training part held
before its ids were adopted, is found whatever its name.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..folders.manifest import Manifest
from ..folders.stage_totals import ColumnsTotals, RawLog, TrainingLog, VocabularyTotals


def find_leaks(folder: Path) -> list[str]:
    """Return a line for each way evaluation data reached counts and ids; empty where none did.

    Args:
        folder: preprocessed as far as its vocabulary.
    """
    columns = Manifest.read(folder / "columns")
    vocabulary = Manifest.read(folder / "vocabulary")
    log = ColumnsTotals.of(columns)
    totals = VocabularyTotals.of(vocabulary)
    num_train = totals.num_train_samples
    # Adopted ids have seen the logs of another folder.
    if vocabulary.stage == "adopt":
        return _adopted(log.raw, totals.model_raw or ())
    if num_train == columns.num_samples:
        return [
            f"counts, ids and the hot set saw all {num_train:,} samples: nothing is left to evaluate on, and "
            "the shares of hot lookups are those of the log they were chosen from"
        ]
    # A log that is given twice is found by its checksum, whatever its name.
    trained_on = log.training_logs(num_train)
    trained = {each.identity: each.name for each in trained_on}
    return [
        f"{each.name} is evaluated on and is the same log as {trained[each.identity]}, "
        "which counts and ids saw"
        for each in log.raw[len(trained_on) :]
        if each.identity in trained
    ]


def _adopted(raw: Sequence[RawLog], model_raw: Sequence[TrainingLog]) -> list[str]:
    trained = {log.identity: log for log in model_raw}
    return [
        f"the ids are those of a model that trained on {known.num_train_samples:,} "
        f"of the {log.num_samples:,} samples of {log.name}"
        + (f", as {known.name}" if known.name != log.name else "")
        for log in raw
        if (known := trained.get(log.identity)) is not None
    ]
