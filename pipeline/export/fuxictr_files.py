"""``feature_map.json``, which tells FuxiCTR (reczoo) the columns of Parquet files and the sizes of tables.

FuxiCTR keeps id 0 for padding, so ids are written one higher than in the shards.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..folders.table_info import PlannedTable
from .named_batches import LABEL, NamedBatches

FEATURE_MAP = "feature_map.json"
FIRST_ID = 1


def write_feature_map(shards: NamedBatches, out: Path, data_set: str) -> None:
    """Write the map of the data set ``data_set`` into ``out``."""
    totals = shards.totals
    # Features stand in the order of the files' columns.
    features: list[dict[str, Any]] = [{name: {"source": "", "type": "numeric"}} for name in totals.dense]
    features += [{table.name: _categorical(table)} for table in totals.tables]
    # Every table has one row more than in the shards, that of the padding.
    found = {
        "dataset_id": data_set,
        "num_fields": len(features),
        "total_features": len(totals.dense) + sum(table.num_rows + FIRST_ID for table in totals.tables),
        "input_length": len(features),
        "labels": [LABEL],
        "features": features,
    }
    (out / FEATURE_MAP).write_text(json.dumps(found, indent=4) + "\n")


def _categorical(table: PlannedTable) -> dict[str, Any]:
    return {
        "source": "",
        "type": "categorical",
        "padding_idx": 0,
        "oov_idx": table.oov_id + FIRST_ID,
        "vocab_size": table.num_rows + FIRST_ID,
    }
