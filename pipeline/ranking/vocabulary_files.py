"""The files of a vocabulary, read column by column."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..folders.manifest import Manifest
from ..folders.stage_totals import VocabularyTotals
from ..formats.arrow_files import read_batch, values_of


def read_tables(
    vocabulary: Manifest, column: Literal["count", "place", "sampled", "appearance"]
) -> list[NDArray[np.int64]]:
    """Per table (num_rows,): one column of its rows, by id; mapped."""
    names = [table.name for table in VocabularyTotals.of(vocabulary).tables]
    batches = [read_batch(vocabulary, vocabulary.entry(f"{name}.arrow")) for name in names]
    return [values_of(batch.column(column), np.int64) for batch in batches]
