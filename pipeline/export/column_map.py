"""``columns.json``: what a program has to know of files of named columns to build a model for them."""

from __future__ import annotations

import json
from pathlib import Path

from .named_batches import LABEL, NamedBatches

COLUMN_MAP = "columns.json"


def write_column_map(shards: NamedBatches, out: Path) -> None:
    """Write the label, the dense features and the tables into ``out``.

    For each table its column, whether that holds lists, its rows (ids are below), and the ids of categories
    without a row of their own and of missing values.
    """
    totals = shards.totals
    tables = [
        {
            "column": table.name,
            "is_list": table.is_multi_hot,
            "num_rows": table.num_rows,
            "oov_id": table.oov_id,
            "missing_id": table.missing_id,
        }
        for table in totals.tables
    ]
    # Columns by their part in training, since their names do not tell it.
    found = {
        "label": LABEL if totals.has_label else None,
        "dense": list(totals.dense),
        "tables": tables,
        "samples": shards.num_samples,
    }
    (out / COLUMN_MAP).write_text(json.dumps(found, indent=2) + "\n")
