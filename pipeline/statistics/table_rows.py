"""Rows of one table: the first ones, by id, or by category.

Reads the vocabulary alone (and the plan, where there is one, for what is hot), so it works on folders whose
samples were discarded. A category is found by a scan: 10 M rows take 10 ms, and no index is kept for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from ..errors import ConfigError
from ..folders.manifest import Manifest
from ..folders.totals import (
    ColumnsSettings,
    ColumnsTotals,
    PlanTotals,
    VocabularyTable,
    VocabularyTotals,
    table_named,
)
from ..formats.arrow_files import read_batch, values_of
from ..formats.columns import texts_of_table
from ..schema.schema import schema_named
from ..schema.schema_file import schema_of
from .folder import Row

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
    tables = {table.name: table for table in VocabularyTotals.of(vocabulary).tables}
    # The hint names the features there are.
    if feature not in tables:
        raise ConfigError(f"no feature {feature!r} in {folder}", hint=f"use one of {', '.join(tables)}")
    batch = read_batch(vocabulary, vocabulary.entry(f"{feature}.arrow"))
    array = batch.column("category")
    categories = values_of(array, array.type.to_pandas_dtype())
    counts = values_of(batch.column("count"), np.int64)
    texts = texts_of_table(vocabulary, feature)
    num_hot = _num_hot(folder, feature)
    return TableRows(tables[feature], _kind(folder, feature), categories, counts, num_hot, texts)


def _kind(folder: Path, feature: str) -> str:
    columns = Manifest.read(folder / "columns")
    text = ColumnsTotals.of(columns).schema
    schema = schema_named(ColumnsSettings.of(columns).schema) if text is None else schema_of(text)
    return schema.kind_of[feature]


def _num_hot(folder: Path, feature: str) -> int | None:
    plan = Manifest.read_sealed(folder / "plan")
    return None if plan is None else table_named(plan, PlanTotals.of(plan).tables, feature).num_hot


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
