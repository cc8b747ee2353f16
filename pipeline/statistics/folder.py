"""A preprocessed folder opened for statistics.

It has the manifests, and what several series read. Its manifests alone give the origin of the figures (logs,
schema, settings and fingerprints), and whether counts, ids or the hot set saw evaluation data. Raw logs are
recognized by their checksum. So a log that was given twice, or that was in the training part of the model
whose ids were adopted, is found under any name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ... import __version__
from ..errors import STAGE_OF, ManifestError, hint_to_rewrite
from ..folders.disk import is_discarded, refuse_discarded
from ..folders.manifest import FileEntry, Manifest, is_sealed
from ..folders.totals import (
    ColumnsSettings,
    ColumnsTotals,
    PlanTotals,
    RawLog,
    SamplesTotals,
    ShardSettings,
    TableInfo,
    TrainingLog,
    VocabularyTable,
    VocabularyTotals,
)
from ..runtime.tasks import DEFAULT_RESOURCES, Resources
from ..stages.row_order import HotOrder, read_tables

Row = dict[str, Any]
"""A row of a series, plain data."""


@dataclass(frozen=True)
class Inspected:
    """A folder that was preprocessed as far as its plan."""

    folder: Path
    vocabulary: Manifest
    samples: Manifest
    plan: Manifest
    num_parts: int | None
    """Parts of the log whose hot sets are compared; see `drift.parts_of_log`."""
    resources: Resources
    left_out: list[str]
    """A line for each thing that could not be found out, with the reason."""

    @classmethod
    def open(
        cls, folder: Path, resources: Resources = DEFAULT_RESOURCES, *, num_parts: int | None = None
    ) -> Inspected:
        """Open ``folder``; raise ManifestError where a part is missing."""
        vocabulary, samples, plan = (
            Manifest.read(folder / name) for name in ("vocabulary", "samples", "plan")
        )
        # Samples are encoded again from columns/, or from the raw log where these were discarded, too.
        redo = "ingest" if is_discarded(folder / "columns") else "encode"
        refuse_discarded(folder / "samples", "stats", redo)
        # Parts of the folder may be from different runs, and ids of one index arrays of another.
        refuse_other_rows(SamplesTotals.of(samples).tables, samples, vocabulary)
        refuse_other_rows(PlanTotals.of(plan).tables, plan, vocabulary)
        return cls(folder, vocabulary, samples, plan, num_parts, resources, [])

    @property
    def tables(self) -> tuple[VocabularyTable, ...]:
        """Tables as the vocabulary describes them."""
        return VocabularyTotals.of(self.vocabulary).tables

    @property
    def num_train(self) -> int:
        """Training samples."""
        return VocabularyTotals.of(self.vocabulary).num_train_samples

    def train_parts(self) -> Iterator[tuple[int, FileEntry, int]]:
        """Yield first sample, file and training samples of each training file."""
        for first, entry in self.samples.parts():
            if first < self.num_train:
                yield first, entry, min(self.num_train - first, entry.num_samples)

    @cached_property
    def counts(self) -> list[NDArray[np.int64]]:
        """Training lookups of each row by id, per table (num_rows,)."""
        return read_tables(self.vocabulary, "count")

    @cached_property
    def num_lookups(self) -> int:
        """Lookups of the training part; of the model's where ids were adopted."""
        return sum(int(count.sum()) for count in self.counts)

    @cached_property
    def hot_order(self) -> HotOrder:
        """The order in which rows get fast memory."""
        return HotOrder(self.vocabulary, PlanTotals.of(self.plan).bytes_of_rows)


def refuse_other_rows(tables: Sequence[TableInfo], manifest: Manifest, vocabulary: Manifest) -> None:
    """Raise ManifestError unless ``tables``, those of ``manifest``, are of the vocabulary's sizes.

    Kernels take ids that one of the folders bounds as indexes of arrays that are as long as the other says.
    """
    wanted = [(table.name, table.num_rows) for table in VocabularyTotals.of(vocabulary).tables]
    if [(table.name, table.num_rows) for table in tables] != wanted:
        raise ManifestError(
            f"{manifest.folder} has tables of other rows than {vocabulary.folder}",
            hint=hint_to_rewrite(manifest.folder),
        )


def read_shards(folder: Path) -> Manifest | None:
    """Return the manifest of the shards, or None without shards."""
    # Unpacked shards are no fault; damaged ones are.
    return Manifest.read_sealed(folder / "shards")


def packed_batch_size(folder: Path) -> int | None:
    """Return the batch size of the shards, or None without shards."""
    shards = read_shards(folder)
    return None if shards is None else ShardSettings.of(shards).batch_size


def provenance(folder: Path) -> dict[str, Any]:
    """Return logs, settings and fingerprints, which make the same folder again.

    Args:
        folder: preprocessed as far as its plan.

    Returns:
        ``hotset``, the version that computed the statistics; ``schema``, its built-in name, or ``toml:`` and
        a fingerprint; ``logs``: name, bytes, samples and train_samples of each raw file; ``bad_lines`` that
        were skipped, by reason; ``is_adopted``: ids are those of another folder (``--like``);
        ``settings`` and ``fingerprints`` of each stage that is finished.
    """
    columns = Manifest.read(folder / "columns")
    vocabulary = Manifest.read(folder / "vocabulary")
    log = ColumnsTotals.of(columns)
    num_train = VocabularyTotals.of(vocabulary).num_train_samples
    trained = [found.num_train_samples for found in log.training_logs(num_train)]
    # Unfinished stages have no origin.
    stages = {
        stage: Manifest.read(folder / name) for name, stage in STAGE_OF.items() if is_sealed(folder / name)
    }
    return {
        "hotset": __version__,
        "schema": ColumnsSettings.of(columns).schema,
        "logs": [
            {
                "name": raw.name,
                "bytes": raw.num_bytes,
                "samples": raw.num_samples,
                "train_samples": trained[number] if number < len(trained) else 0,
            }
            for number, raw in enumerate(log.raw)
        ],
        "bad_lines": dict(log.bad_lines),
        "is_adopted": vocabulary.stage == "adopt",
        "settings": {stage: dict(manifest.config) for stage, manifest in stages.items()},
        "fingerprints": {manifest.folder.name: manifest.fingerprint for manifest in stages.values()},
    }


def find_leaks(folder: Path) -> list[str]:
    """Return a line for each way evaluation data reached counts and ids.

    Args:
        folder: preprocessed as far as its vocabulary.
    """
    columns = Manifest.read(folder / "columns")
    vocabulary = Manifest.read(folder / "vocabulary")
    log = ColumnsTotals.of(columns)
    totals = VocabularyTotals.of(vocabulary)
    num_train = totals.num_train_samples
    # Adopted ids were made from the logs of another folder.
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
