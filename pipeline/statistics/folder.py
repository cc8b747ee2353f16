"""A preprocessed folder opened for statistics, and the rows of one of its tables.

It has the manifests, and what several series read. Its manifests alone give the origin of the figures (logs,
schema, settings and fingerprints), and whether counts, ids or the hot set saw evaluation data. Raw logs are
recognized by their checksum. So a log that was given twice, or that was in the training part of the model
whose ids were adopted, is found under any name.

The rows of a table are found by id or by category. This reads the vocabulary alone (and the plan, where there
is one, for what is hot), so it works on folders whose samples were discarded. A category is found by a scan:
10 M rows take 10 ms, and no index is kept for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from ... import __version__
from ..errors import STAGE_OF, ConfigError, ManifestError, hint_to_rewrite
from ..folders.disk import check_not_discarded, is_discarded
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
    by_feature,
)
from ..formats.arrow_files import read_batch, values_of
from ..formats.columns import texts_of_table
from ..runtime.tasks import DEFAULT_RESOURCES, Resources
from ..schema.schema_file import schema_named, schema_of
from ..stages.row_order import HotOrder, read_tables

Row = dict[str, Any]
"""A row of a series, plain data."""


def share_of(part: float, whole: int) -> float | None:
    """Return a share in [0, 1], None of nothing."""
    return float(part) / whole if whole else None


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
        check_not_discarded(folder / "samples", "stats", redo)
        # Parts of the folder may be from different runs, and ids of one index arrays of another.
        check_rows(SamplesTotals.of(samples).tables, samples, vocabulary)
        check_rows(PlanTotals.of(plan).tables, plan, vocabulary)
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
        for first, entry, _, num_own in self.samples.parts_within(0, self.num_train):
            yield first, entry, num_own

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


def check_rows(tables: Sequence[TableInfo], manifest: Manifest, vocabulary: Manifest) -> None:
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


MISSING = "(missing)"
"""Name of the row of missing values; `--category` takes it."""
OOV = "(oov)"
"""Name of the row of out-of-vocabulary categories; `--category` takes it."""


@dataclass(frozen=True, slots=True)
class TableRows:
    """One table of a vocabulary, mapped."""

    table: VocabularyTable
    """The table as the vocabulary describes it."""
    kind: str
    """Kind of its categories: hex8, integer, unsigned or text."""
    categories: NDArray[np.unsignedinteger]
    """(num_rows,) uint32 or uint64; those of missing and oov hold anything."""
    counts: NDArray[np.int64]
    """(num_rows,) lookups of the training part."""
    num_hot: int | None
    """Rows that the plan keeps in fast memory; None before there is a plan."""
    texts: dict[int, str] = field(default_factory=dict)
    """By id, the texts of the most frequent categories."""

    def rows(self, ids: list[int]) -> list[Row]:
        """Return id, category, count, share, cumulative_share and is_hot of each row.

        Shares are in [0, 1]; ``is_hot`` is None before there is a plan.
        """
        # Stop at the last requested row: most calls show the head of a table of millions.
        served = np.cumsum(self.counts[: max(ids, default=-1) + 1])
        total = max(1, int(self.counts.sum()))
        return [
            {
                "id": row,
                "category": self.category_of(row),
                "count": int(self.counts[row]),
                "share": int(self.counts[row]) / total,
                "cumulative_share": int(served[row]) / total,
                "is_hot": None if self.num_hot is None else row < self.num_hot,
            }
            for row in ids
        ]

    def category_of(self, row: int) -> str:
        """Return a row's category as the log writes it."""
        # Missing values too rare for a row share that of oov, which then has both names.
        shared = ((self.table.missing_id, MISSING), (self.table.oov_id, OOV))
        names = [name for shared_row, name in shared if shared_row == row]
        if names:
            return " ".join(names)
        return self.texts.get(row) or format_category(int(self.categories[row]), self.kind)

    def head(self, top: int) -> list[Row]:
        """Return the rows of the first ``top`` ids."""
        return self.rows(list(range(min(top, self.counts.shape[0]))))

    def by_id(self, row: int) -> Row:
        """The row with one id; raises ConfigError where the table has none."""
        num_rows = self.counts.shape[0]
        if not 0 <= row < num_rows:
            raise ConfigError(
                f"table {self.table.name} has no id {row}", hint=f"its ids go from 0 to {num_rows - 1}"
            )
        return self.rows([row])[0]

    def by_category(self, text: str) -> Row:
        """Return the row that lookups of ``text`` use.

        ``is_known`` says whether it is the category's own.

        Raises:
            ConfigError: no category of this table's kind is written so.
        """
        row, is_known = self._find(text)
        return {**self.rows([row])[0], "asked": text, "is_known": is_known}

    def _find(self, text: str) -> tuple[int, bool]:
        if text in (MISSING, OOV):
            return self.table.missing_id if text == MISSING else self.table.oov_id, True
        category = parse_category(text, self.kind, self.table.name)
        # The values of missing and oov hold anything, and so may equal a category by chance.
        nobody = {self.table.missing_id, self.table.oov_id}
        rows = [int(row) for row in np.flatnonzero(self.categories == category) if row not in nobody]
        return (rows[0], True) if rows else (self.table.oov_id, False)


_RANGES = {
    "hex8": (0, 2**32),
    "integer": (-(2**63), 2**63),
    "unsigned": (0, 2**64),
    "hour": (0, 24),
    "weekday": (1, 8),
}
"""Numbers of each kind of category, the first and one past the last."""
_WANTED = {
    "hex8": "hex digits, 8 at most",
    "integer": "a whole number",
    "hour": "a number from 0 to 23",
    "weekday": "a number from 1, for Monday, to 7",
}


def open_table(folder: Path, feature: str) -> TableRows:
    """Open the table of a feature in a folder with a vocabulary.

    Raises:
        ConfigError: no feature has that name; the hint names those there are.
        ManifestError: there is no vocabulary, or it is damaged.
    """
    vocabulary = Manifest.read(folder / "vocabulary")
    totals = VocabularyTotals.of(vocabulary)
    tables = {table.name: table for table in totals.tables}
    # A feature that shares its table may be named itself.
    table_of = {each.name: table.name for table in totals.tables for each in by_feature([table])}
    if feature not in tables | table_of:
        names = dict.fromkeys((*tables, *table_of))
        raise ConfigError(f"no feature {feature!r} in {folder}", hint=f"use one of {', '.join(names)}")
    feature = feature if feature in tables else table_of[feature]
    batch = read_batch(vocabulary, vocabulary.entry(f"{feature}.arrow"))
    array = batch.column("category")
    categories = values_of(array)
    counts = values_of(batch.column("count"), np.int64)
    texts = texts_of_table(vocabulary, feature)
    num_hot = _num_hot(folder, vocabulary, feature)
    return TableRows(tables[feature], _kind(folder, feature), categories, counts, num_hot, texts)


def _kind(folder: Path, feature: str) -> str:
    columns = Manifest.read(folder / "columns")
    text = ColumnsTotals.of(columns).schema
    schema = schema_named(ColumnsSettings.of(columns).schema) if text is None else schema_of(text)
    # All features of a table are of one kind.
    return schema.kind_of[schema.features_of_tables[feature][0]]


def _num_hot(folder: Path, vocabulary: Manifest, feature: str) -> int | None:
    plan = Manifest.read_sealed(folder / "plan")
    if plan is None:
        return None
    tables = PlanTotals.of(plan).tables
    check_rows(tables, plan, vocabulary)
    return {table.name: table.num_hot for table in tables}[feature]


def format_category(category: int, kind: str) -> str:
    """Return a category as the log writes it, a text as its hash."""
    match kind:
        case "hex8":
            return f"{category:08x}"
        case "integer":
            # Integers are stored by their 64 bits, the negative ones in two's complement.
            return str(category - 2**64 if category >= 2**63 else category)
        case "unsigned" | "hour" | "weekday":
            return str(category)
    return f"#{category:016x}"


def parse_category(text: str, kind: str, feature: str) -> int:
    """Return the number of a category as the log writes it.

    ``#`` and 16 hex digits name the hash of a text.

    Raises:
        ConfigError: the table's categories are not written so.
    """
    try:
        # A text is known by its hash, which may be given itself.
        if kind == "text":
            is_hash = len(text) == 17 and text.startswith("#")
            return int(text[1:], 16) if is_hash else xxhash.xxh3_64_intdigest(text.encode())
        number = int(text, 16 if kind == "hex8" else 10)
        # Numbers have the range of their kind; a negative one is stored by its 64 bits.
        low, high = _RANGES[kind]
        if not low <= number < high:
            raise ValueError("out of range")
    except ValueError:
        wanted = _WANTED.get(kind, "a number from 0")
        hint = f"write {wanted}; {MISSING} and {OOV} name the rows without a category"
        raise ConfigError(f"{text!r} is no category of {feature} ({kind})", hint=hint) from None
    return number % 2**64
