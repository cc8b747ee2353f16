"""Small random logs that are not Criteo's, as CSV and Parquet, and what ingest should make of them."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from hotset.pipeline.arrow_files import read_batch
from hotset.pipeline.manifest import Manifest

Value = int | str | None
_TEXTS = ("", "a", "news & games", 'say "hi"', "a,b", "naïve ☃", " padded ", "0", "x" * 300, "\t")
_TYPES = {"label": pa.int8(), "dense": pa.int32(), "integer": pa.int64(), "unsigned": pa.uint64()}


@dataclass(frozen=True, slots=True)
class Log:
    """Named columns of values; None is missing."""

    kinds: dict[str, str]
    """label, dense, integer, unsigned, text or hex8 of each column, and unused."""
    rows: list[tuple[Value, ...]]


def draw_log(num_rows: int, kinds: dict[str, str], rng: np.random.Generator) -> Log:
    """Every kind's least and largest values among few others; a quarter missing, but no label."""
    columns = [[_draw(kind, rng) for _ in range(num_rows)] for kind in kinds.values()]
    return Log(kinds, list(zip(*columns, strict=True)))


def _draw(kind: str, rng: np.random.Generator) -> Value:
    if kind == "label":
        return int(rng.integers(2))
    if rng.random() < 0.25:
        return None
    edges_of: dict[str, tuple[int | str, ...]] = {
        "dense": (-(2**31), -1, 0, 5, 2**31 - 1),
        "integer": (-(2**63), -1, 0, 7, 2**63 - 1),
        "unsigned": (0, 9, 2**63 - 1, 2**63, 2**64 - 1),
        "hex8": ("00000000", "0000beef", "FFFFFFFF", "ffffffff", "80000000"),
    }
    edges = edges_of.get(kind, _TEXTS)
    return edges[int(rng.integers(len(edges)))]


def write_csv(path: Path, log: Log, *, header: bool = True, separator: str = ",", end: str = "\n") -> Path:
    """The log as text, gzip where ``path`` says so; fields are quoted where they must be."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=separator, lineterminator=end)
    writer.writerows(([list(log.kinds)] if header else []) + [list(row) for row in log.rows])
    raw = text.getvalue().encode()
    path.write_bytes(gzip.compress(raw, mtime=0) if path.suffix == ".gz" else raw)
    return path


def write_parquet(path: Path, log: Log, *, group_rows: int = 40) -> Path:
    """The log as Parquet, text columns alternately plain and as dictionaries."""
    columns: dict[str, Any] = {}
    for number, (name, kind) in enumerate(log.kinds.items()):
        text = pa.dictionary(pa.int32(), pa.string()) if number % 2 else pa.string()
        columns[name] = pa.array([row[number] for row in log.rows], _TYPES.get(kind, pa.string()))
        columns[name] = columns[name].cast(_TYPES.get(kind, text))
    pq.write_table(pa.table(columns), path, row_group_size=group_rows)
    return path


def schema_text(log: Log, *, format: str = "csv", more: str = "") -> str:
    """The schema of the log as a user would write it."""
    names = {kind: [name for name, k in log.kinds.items() if k == kind] for kind in ("label", "dense")}
    lines = [f'format = "{format}"', *more.splitlines()]
    lines += [f'label = "{name}"' for name in names["label"]]
    lines += [f"dense = {names['dense']}", "[sparse]"]
    sparse = {name: kind for name, kind in log.kinds.items() if kind not in ("label", "dense", "unused")}
    return "\n".join([*lines, *(f'"{name}" = "{kind}"' for name, kind in sparse.items())])


def naive_category(kind: str, value: Value) -> int | None:
    """What a category is in columns/."""
    if value is None or value == "":
        return None
    if kind == "text":
        return xxhash.xxh3_64_intdigest(str(value).encode())
    return int(value, 16) if isinstance(value, str) else value % 2**64


def naive_columns(log: Log) -> dict[str, list[int | None]]:
    """What columns/ should hold."""
    columns: dict[str, list[int | None]] = {}
    for number, (name, kind) in enumerate(log.kinds.items()):
        values = [row[number] for row in log.rows]
        if kind in ("label", "dense"):
            columns["label" if kind == "label" else name] = [v if v is None else int(v) for v in values]
        elif kind != "unused":
            columns[name] = [naive_category(kind, value) for value in values]
    return columns


def columns_in(columns: Manifest) -> dict[str, list[int | None]]:
    """What columns/ holds, in log order."""
    batches = [read_batch(columns, entry) for entry in columns.files]
    names: Sequence[str] = batches[0].schema.names
    return {name: [value for batch in batches for value in batch.column(name).to_pylist()] for name in names}
