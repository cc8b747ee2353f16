"""Did counts, ids or the hot set see what is evaluated? What the manifests of a folder tell.

Raw logs are known by their checksum, so a log that was given twice, or that a model's training part held
before its ids were adopted, is found whatever it is called.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .manifest import Manifest


def find_leaks(folder: Path) -> list[str]:
    """One line for each way evaluation data reached counts and ids; empty where none did.

    Args:
        folder: preprocessed as far as its vocabulary.
    """
    columns, vocabulary = Manifest.read(folder / "columns"), Manifest.read(folder / "vocabulary")
    raw, num_train = columns.totals["raw"], vocabulary.totals["num_train_samples"]
    if vocabulary.stage == "adopt":
        return _adopted(raw, vocabulary.totals)
    if num_train == columns.num_samples:
        return [
            f"counts, ids and the hot set saw all {num_train:,} samples: nothing is left to evaluate on, and "
            "the shares of hot look-ups are those of the log they were chosen from"
        ]
    trained = {_identity(log): log["name"] for log in training_logs(raw, num_train)}
    return [
        f"{log['name']} is evaluated on and is the same log as {trained[_identity(log)]}, "
        "which counts and ids saw"
        for log in raw[_num_training_logs(raw, num_train) :]
        if _identity(log) in trained
    ]


def training_logs(raw: list[dict[str, Any]], num_train: int) -> list[dict[str, Any]]:
    """The raw logs that have samples in the training part, with how many: ``train_samples``."""
    found, first = [], 0
    for log in raw[: _num_training_logs(raw, num_train)]:
        found.append(log | {"train_samples": min(log["samples"], num_train - first)})
        first += log["samples"]
    return found


def _num_training_logs(raw: list[dict[str, Any]], num_train: int) -> int:
    number = first = 0
    while number < len(raw) and first < num_train:
        first += raw[number]["samples"]
        number += 1
    return number


def _identity(log: dict[str, Any]) -> tuple[int, str]:
    return log["bytes"], log["xxh3_128_of_blocks"]


def _adopted(raw: list[dict[str, Any]], totals: dict[str, Any]) -> list[str]:
    trained = {_identity(log): log for log in totals.get("model_raw", [])}
    return [
        f"the ids are those of a model that trained on {known['train_samples']:,} "
        f"of the {log['samples']:,} samples of {log['name']}"
        + (f", as {known['name']}" if known["name"] != log["name"] else "")
        for log in raw
        if (known := trained.get(_identity(log))) is not None
    ]
