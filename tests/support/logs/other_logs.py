"""Small random logs that are not Criteo's, as CSV and Parquet, and what ingest should make of them."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.formats.arrow_files import read_batch

Value = Any
"""An int, float or str, a list of them, or None, which is missing."""
_TEXTS = ("", "a", "news & games", 'say "hi"', "a,b", "naïve ☃", " padded ", "0", "x" * 300, "\t")
_TYPES = {"label": pa.int8(), "dense": pa.int32(), "integer": pa.int64(), "unsigned": pa.uint64()}
_TYPES |= {"float": pa.float64(), "raw": pa.float64(), "whole": pa.int64()}
_TYPES |= {"maybe label": pa.int8(), "weight": pa.float64()}
_DENSE = {
    "whole": '{ kind = "integer", transform = "none" }',
    "dense": '"integer"',
    "float": '"float"',
    "raw": '{ kind = "float", transform = "none" }',
}


@dataclass(frozen=True, slots=True)
class Log:
    """Named columns of values; None is missing."""

    kinds: dict[str, str]
    """label, dense, float, raw (a float that is not transformed), whole (such an integer), integer, unsigned,
    text or hex8 of each column, "list text" and the like, and unused; "maybe label" (one of ``labels``),
    weight, "group text" and the like."""
    rows: list[tuple[Value, ...]]


def draw_log(
    num_rows: int, kinds: dict[str, str], rng: np.random.Generator, *, empty_lists: bool = False
) -> Log:
    """Every kind's least and largest values among few others; a quarter missing, but no label.

    Lists have up to 5 elements, now and then 300; none at all only where ``empty_lists``: CSV has no such.
    """
    columns = [[_draw(kind, rng, empty_lists) for _ in range(num_rows)] for kind in kinds.values()]
    return Log(kinds, list(zip(*columns, strict=True)))


def _draw(kind: str, rng: np.random.Generator, empty_lists: bool = False) -> Value:
    if kind == "label":
        return int(rng.integers(2))
    if kind == "weight":
        return (0.0, 0.1, 1.0, 3.4e38, 1e-46, 2.0)[int(rng.integers(6))]
    if rng.random() < 0.25:
        return None
    if kind.startswith("list "):
        length = 300 if rng.random() < 0.05 else int(rng.integers(0 if empty_lists else 1, 6))
        return [_draw(kind.removeprefix("list "), rng) for _ in range(length)]
    edges_of: dict[str, tuple[Value, ...]] = {
        "float": (-1.5, 0.0, 0.1, 12345.678, 1e300, 5e-324),
        "raw": (-1.5, -0.0, 0.1, 16777217.0, 3.4e38, 1e-46),
        "dense": (-(2**31), -1, 0, 5, 2**31 - 1),
        "whole": (-(2**31), -1, 0, 5, 2**31 - 1),
        "integer": (-(2**63), -1, 0, 7, 2**63 - 1),
        "unsigned": (0, 9, 2**63 - 1, 2**63, 2**64 - 1),
        "hex8": ("00000000", "0000beef", "FFFFFFFF", "ffffffff", "80000000"),
        "maybe label": (0, 1),
    }
    edges = edges_of.get(kind.removeprefix("group "), _TEXTS)
    return edges[int(rng.integers(len(edges)))]


def write_csv(path: Path, log: Log, *, header: bool = True, separator: str = ",", end: str = "\n") -> Path:
    """The log as text, gzip where ``path`` says so; fields are quoted where they must be."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=separator, lineterminator=end)
    rows = [[_field(value) for value in row] for row in log.rows]
    writer.writerows(([list(log.kinds)] if header else []) + rows)
    raw = text.getvalue().encode()
    path.write_bytes(gzip.compress(raw, mtime=0) if path.suffix == ".gz" else raw)
    return path


def _field(value: Value) -> Value:
    if isinstance(value, list):
        return "|".join("" if element is None else str(element) for element in value)
    return repr(value) if isinstance(value, float) else value


def write_parquet(path: Path, log: Log, *, group_rows: int = 40) -> Path:
    """The log as Parquet, text columns alternately plain and as dictionaries."""
    columns: dict[str, Any] = {}
    for number, (name, kind) in enumerate(log.kinds.items()):
        text = pa.dictionary(pa.int32(), pa.string()) if number % 2 else pa.string()
        values = [row[number] for row in log.rows]
        if kind.startswith("list "):
            element = _TYPES.get(kind.removeprefix("list "), pa.string())
            columns[name] = pa.array(values, (pa.large_list if number % 2 else pa.list_)(element))
            continue
        kind = kind.removeprefix("group ")
        columns[name] = pa.array(values, _TYPES.get(kind, pa.string())).cast(_TYPES.get(kind, text))
    pq.write_table(pa.table(columns), path, row_group_size=group_rows)
    return path


def schema_text(
    log: Log, *, format: str = "csv", more: str = "", tables: Mapping[str, str] | None = None
) -> str:
    """The schema of the log as a user would write it; ``tables`` of features that are not named like them."""
    lines = [f'format = "{format}"', *more.splitlines()]
    lines += [f'label = "{name}"' for name, kind in log.kinds.items() if kind == "label"]
    labels = [name for name, kind in log.kinds.items() if kind == "maybe label"]
    lines += [f"labels = {labels}"] if labels else []
    lines += [f'weight = "{name}"' for name, kind in log.kinds.items() if kind == "weight"]
    groups = {name: kind for name, kind in log.kinds.items() if kind.startswith("group ")}
    lines += [f'group = {{ column = "{name}", kind = "{kind[6:]}" }}' for name, kind in groups.items()]
    dense = {name: kind for name, kind in log.kinds.items() if kind in _DENSE}
    if set(dense.values()) <= {"dense"}:
        lines += [f"dense = {list(dense)}"]
    else:
        lines += ["[dense]", *(f'"{name}" = {_DENSE[kind]}' for name, kind in dense.items())]
    lines += ["[sparse]"]
    for name, kind in log.kinds.items():
        table = f', table = "{(tables or {})[name]}"' if name in (tables or {}) else ""
        if kind.startswith("list "):
            lines += [f'"{name}" = {{ kind = "{kind[5:]}", list = true{table} }}']
        elif table:
            lines += [f'"{name}" = {{ kind = "{kind}"{table} }}']
        elif kind not in ("label", "maybe label", "weight", "unused", *groups.values(), *_DENSE):
            lines += [f'"{name}" = "{kind}"']
    return "\n".join(lines)


def naive_category(kind: str, value: Value) -> Any:
    """Return a category as columns/ has it; a missing list has one missing element."""
    if kind.startswith("list "):
        return [naive_category(kind[5:], element) for element in value] if value is not None else [None]
    if value is None or value == "":
        return None
    if kind == "text":
        return xxhash.xxh3_64_intdigest(str(value).encode())
    return int(value, 16) if isinstance(value, str) else value % 2**64


def naive_columns(log: Log) -> dict[str, list[Any]]:
    """Return the columns that columns/ should hold."""
    columns: dict[str, list[Any]] = {}
    for number, (name, kind) in enumerate(log.kinds.items()):
        values = [row[number] for row in log.rows]
        if kind == "maybe label":
            columns[f"label_{name}" if "label" in columns else "label"] = values
        elif kind == "weight":
            columns["weight"] = [float(np.float32(value)) for value in values]
        elif kind.startswith("group "):
            columns["group"] = [naive_category(kind[6:], value) for value in values]
        elif kind in ("label", "dense"):
            columns["label" if kind == "label" else name] = [v if v is None else int(v) for v in values]
        elif kind in ("float", "raw", "whole"):
            columns[name] = values
        elif kind != "unused":
            columns[name] = [naive_category(kind, value) for value in values]
    return columns


def columns_in(columns: Manifest) -> dict[str, list[Any]]:
    """Return the columns of columns/, in log order."""
    batches = [read_batch(columns, entry) for entry in columns.files if not entry.is_texts]
    names: Sequence[str] = batches[0].schema.names
    return {name: [value for batch in batches for value in batch.column(name).to_pylist()] for name in names}
