"""Logs of many forms through their proposed schemas; Polars and DuckDB read the same files.

    python -m hotset.tests.fuzz.fuzz_logs --files 100000 --out result.json

Each log is written, a schema is proposed for it, and what ingest reads is compared with what was written. So
is what Polars and DuckDB read, which are told the dialect. Where one of them has no such option the text is
rewritten for it, or it is passed by; the result counts both by their reason. DuckDB is of the extra
`interop`, and is left out where it is not installed.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from hotset.pipeline.errors import HotsetError
from hotset.pipeline.infer_schema import propose_schema
from hotset.pipeline.runtime.tasks import Resources
from hotset.pipeline.stages.ingest import IngestConfig, ingest
from hotset.tests.fuzz.drawn_logs import Column, Log, draw_log
from hotset.tests.support.logs.other_logs import columns_in
from hotset.workflows.bench.harness import Facts, Options, main, new_parser, tell

PARSER = new_parser(__spec__, __doc__)
PARSER.add_argument("--files", type=int, default=100_000, help="number of logs")
PARSER.add_argument("--seed", type=int, default=0, help="seed of the first log; the next ones follow")
PARSER.add_argument("--seconds", type=float, default=1e6, help="after which no more are waited for")
PARSER.add_argument("--workers", type=int, default=1, help="processes that read them")
_FILES_OF_TASK = 500
_SHOWN = 20

Reader = Callable[[Log, Path], dict[str, list[Any]]]
"""Reads a file of a log; returns its columns in the order of the log."""


def differences(log: Log, folder: Path, others: dict[str, Reader]) -> Iterator[tuple[str, str]]:
    """Read a log with every reader; yield reader and outcome, "equal" or how it differs.

    Args:
        log: the log, which is written to ``folder``.
        folder: an empty folder.
        others: readers besides ours.
    """
    raw = folder / f"log.{log.format}"
    raw.write_bytes(log.content)
    try:
        found = _read_as_proposed(log, raw, folder / "columns")
    except HotsetError as error:
        found = f"refused: {error}"
    except Exception as error:
        found = f"crashed: {error!r}"
    yield "hotset", found
    for who, read in others.items():
        form, why = _form_for(who, log)
        if form is None:
            yield who, f"not read: {why}"
            continue
        if form is not log:
            (folder / who).write_bytes(form.content)
        columns = read(form, folder / who if form is not log else raw)
        wrong = _unlike_written(log, columns)
        yield who, f"differs: {wrong}" if wrong else f"equal{why and f' after {why}'}"


def _read_as_proposed(log: Log, raw: Path, out: Path) -> str:
    """Propose a schema and ingest; return "equal", or what differs."""
    proposal = propose_schema(raw)
    schema = proposal.schema
    if (proposal.num_rows, log.format) != (log.num_rows, schema.format):
        return f"differs: {proposal.num_rows} rows as {schema.format}"
    if log.format == "csv" and schema.separator != log.separator:
        return f"differs: separator {schema.separator!r}"
    left_out = {column.name for column in proposal.columns if not column.is_used}
    if left_out - ({"unnamed", "", f"field{len(log.columns) + 1}"} if log.trailing else set()):
        return f"differs: left out {left_out}"
    read = columns_in(ingest([raw], IngestConfig(schema=proposal.text), out, Resources(workers=1)))
    names = (
        dict(zip(schema.fields, log.columns, strict=False)) if schema.fields and not log.has_header else {}
    )
    for name in (*schema.dense, *schema.sparse):
        column = log.columns[names.get(schema.column_of[name], schema.column_of[name])]
        kind = "float" if name in schema.floats else schema.kind_of.get(name, "dense")
        if column.kind not in (kind, "time"):
            return f"differs: {column.kind} is proposed as {kind}"
        if read[name] != _as_stored(column, kind, is_list=name in dict(schema.lists)):
            return f"differs: values of {column.kind}"
    return "equal" if read["label"] == log.columns["label"].values else "differs: labels"


def _as_stored(column: Column, kind: str, *, is_list: bool) -> list[Any]:
    """Return what columns/ should hold of a column."""
    if kind == "hour":
        return [None if value is None else value.hour for value in column.values]
    if kind == "weekday":
        return [None if value is None else value.isoweekday() for value in column.values]
    if is_list:
        return [[None] if value is None else value for value in column.values]
    return column.values


_OPTIONS_OF: dict[str, dict[str, Callable[[Log], bool]]] = {
    "polars": {
        "no separator of several characters": lambda log: len(log.separator) > 1,
        "no escape": lambda log: log.escape is not None,
    },
    "duckdb": {},
}
"""What a reader cannot be told, and the logs that need it."""
_REWRITTEN: dict[str, tuple[Callable[[Log], bool], dict[str, Any]]] = {
    "decompressing": (lambda log: log.compression != "", {"compression": ""}),
    "encoding it as UTF-8": (lambda log: log.encoding.startswith("utf-16"), {"encoding": "utf-8"}),
    "taking a return out of line ends of two": (lambda log: log.end == "\r\r\n", {"end": "\r\n"}),
    "leaving out blanks behind separators": (lambda log: log.pad != "", {"pad": ""}),
}
"""What none of the others does, the logs that need it, and the log that asks for less."""


def _form_for(who: str, log: Log) -> tuple[Log | None, str]:
    """Return the log as a reader can be told it, and how it was changed; None and why where it cannot be."""
    if log.format == "parquet":
        return log, ""
    if log.format == "csv":
        for lacks, needs in _OPTIONS_OF[who].items():
            if needs(log):
                return None, lacks
    done: list[str] = []
    form = log
    for action, (needs, keys) in _REWRITTEN.items():
        if needs(log):
            form, done = replace(form, **keys), [*done, action]
    if who == "duckdb" and len(log.comment) > 1:
        form, done = replace(form, comment=""), [*done, "leaving out comments that begin with two characters"]
    return form, ", ".join(done)


def _unlike_written(log: Log, columns: dict[str, list[Any]]) -> str:
    """Return the first value that another reader has otherwise than it was written; empty where none."""
    for (name, column), found in zip(log.columns.items(), columns.values(), strict=False):
        wanted = list(map(_comparable, column.fields))
        read = [None if value in (log.word, "") else value for value in map(_comparable, found)]
        if read != wanted:
            row = next(row for row, pair in enumerate(zip(read, wanted, strict=False)) if pair[0] != pair[1])
            return f"{name!r}, row {row}: {read[row]!r}, want {wanted[row]!r}"
    return ""


def _comparable(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    if hasattr(value, "tzinfo") and value.tzinfo is not None:
        return value.timestamp()
    return value


def read_with_polars(log: Log, path: Path) -> dict[str, list[Any]]:
    """Read a log with Polars: text as text."""
    if log.format == "parquet":
        return pl.read_parquet(path).to_dict(as_series=False)
    if log.format == "json":
        return pl.read_ndjson(path, infer_schema_length=None).to_dict(as_series=False)
    return pl.read_csv(
        path,
        separator=log.separator,
        quote_char=log.quote,
        comment_prefix=log.comment or None,
        skip_lines=len(log.titles),
        has_header=log.has_header,
        infer_schema=False,
    ).to_dict(as_series=False)


def duckdb_reader() -> Reader | None:
    """Return a reader that uses DuckDB; None where it is not installed."""
    if importlib.util.find_spec("duckdb") is None:
        return None
    duckdb: Any = importlib.import_module("duckdb")
    connection = duckdb.connect()
    connection.execute("set threads = 1")
    return partial(_read_with_duckdb, connection)


def _read_with_duckdb(connection: Any, log: Log, path: Path) -> dict[str, list[Any]]:
    keys: dict[str, Any] = {}
    reader = {"parquet": "read_parquet", "json": "read_json", "csv": "read_csv"}[log.format]
    if log.format == "json":
        keys = {"format": "newline_delimited", "compression": "uncompressed"}
    if log.format == "csv":
        keys = {
            "auto_detect": False,
            "delim": log.separator,
            "quote": log.quote or "",
            "escape": log.escape or log.quote or "",
            "comment": log.comment,
            "skip": len(log.titles),
            "header": log.has_header,
            "columns": {f"c{number}": "VARCHAR" for number in range(len(log.columns) + log.trailing)},
        }
    query = f"select * from {reader}({', '.join(['$path', *(f'{key} = ${key}' for key in keys)])})"
    found = connection.sql(query, params={"path": str(path), **keys}).to_arrow_table()
    columns: dict[str, list[Any]] = found.to_pydict()
    return columns


def fuzz_logs(num_files: int, seed: int, scratch: Path) -> Facts:
    """Read so many logs with every reader; return the outcomes and the logs that differ."""
    duckdb = duckdb_reader()
    others: dict[str, Reader] = {"polars": read_with_polars} | ({"duckdb": duckdb} if duckdb else {})
    found: Facts = {"files": num_files, "outcomes": Counter(), "differences": [], "drawn": Counter()}
    for number in range(seed, seed + num_files):
        log = draw_log(number)
        found["drawn"].update(_facts_of(log))
        with tempfile.TemporaryDirectory(dir=scratch) as folder:
            for who, outcome in differences(log, Path(folder), others):
                what, _, why = outcome.partition(" after ")
                is_named = outcome.startswith(("equal", "not read"))
                what = what if is_named else what.partition(": ")[0]
                found["outcomes"][f"{who} {log.format} {what}"] += 1
                found["outcomes"].update(
                    f"{who} {log.format}, after {each}" for each in why.split(", ") if each
                )
                if not is_named:
                    where = {"seed": number, "format": log.format, "reader": who}
                    found["differences"].append(where | {"outcome": outcome})
    return found | {"duckdb": None if duckdb is None else sys.modules["duckdb"].__version__}


def _facts_of(log: Log) -> Iterator[str]:
    """Yield what is drawn in a log."""
    yield f"format {log.format}"
    for column in log.columns.values():
        yield f"column {column.kind if column.type is None else column.type}"
    if any(None in column.fields for column in log.columns.values()):
        yield f"missing {log.word!r}"
    if log.compression:
        yield f"compression {log.compression}"
    if log.format == "csv":
        yield f"separator {log.separator!r}"
        yield f"quote {log.quote}, escape {log.escape}"
        yield f"line end {log.end!r}"
        yield f"encoding {log.encoding}"


def measure(options: Options, scratch: Path) -> Facts:
    """Read the logs in memory, where the system has a folder of it."""
    if options.scratch is None and os.access("/dev/shm", os.W_OK):
        options.scratch = Path("/dev/shm")
    end = options.seed + options.files
    firsts = range(options.seed, end, _FILES_OF_TASK)
    total: Facts = {"files": 0, "outcomes": Counter(), "differences": [], "drawn": Counter()}
    added = tuple(total)
    started = time.perf_counter()
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.workers, spawn) as pool:
        for task in [
            pool.submit(fuzz_logs, min(_FILES_OF_TASK, end - first), first, scratch) for first in firsts
        ]:
            found = task.result()
            total = found | {key: total[key] + found[key] for key in added}
            seconds = time.perf_counter() - started
            tell(f"{total['files']} files, {len(total['differences'])} differ, {seconds:.0f} s")
            if seconds > options.seconds:
                pool.shutdown(wait=True, cancel_futures=True)
                break
    counted = {key: dict(sorted(total[key].items())) for key in ("outcomes", "drawn")}
    shown = {"differences": len(total["differences"]), "first_differences": total["differences"][:_SHOWN]}
    return total | counted | shown | {"seconds": seconds}


if __name__ == "__main__":
    main(PARSER, measure)
