"""Logs of many forms: memory, small row groups, and the speed of CSV and Parquet.

Peak memory is that of ``hotset preprocess --memory``, anonymous and of all its threads, for logs that are
wide, long or full of text, in each format. Where the cap is refused, the one that the hint names is measured,
the least that would do. Small row groups, and small files, are compared with one group of
the same rows. Speeds are CPU seconds of the whole process that reads a log of forty columns, in turns with
another checkout (``--other``) and with Polars, which reads the same columns.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from ...pipeline.errors import MIB, HotsetError
from ...pipeline.generate.generate import GenerateConfig, generate
from ...pipeline.runtime.limits import numbers_in
from . import harness
from .harness import Facts, Options, Seconds, tell

PARSER = harness.new_parser(__spec__, __doc__)
PARTS = ("memory", "small_parts", "speeds")
PARSER.add_argument("--of", nargs="*", choices=PARTS, default=PARTS, help="what is measured")
PARSER.add_argument("--memory", nargs="*", type=int, default=(192, 512), help="caps in MiB")
PARSER.add_argument("--megabytes", type=int, default=1024, help="text of each log whose memory is measured")
PARSER.add_argument("--samples", type=int, default=300_000, help="of the log whose reading is timed")
PARSER.add_argument("--groups", type=int, default=5_000, help="row groups of 20 rows")
PARSER.add_argument("--files", type=int, default=1_500, help="files of 66 rows")
PARSER.add_argument("--columns", type=int, default=1_500, help="of the widest log")
KINDS = ("texts", "lists", "columns")
_FORMS = (*(f"{kind} {format}" for kind in KINDS for format in ("csv", "parquet", "json")), "criteo")
PARSER.add_argument(
    "--forms", nargs="*", choices=_FORMS, default=_FORMS, help="logs whose memory is measured"
)
PARSER.add_argument("--rounds", type=int, default=5)
PARSER.add_argument("--other", type=Path, help="checkout with .venv/bin/hotset to take turns with")
_SAMPLING_SECONDS = 0.005
_ROWS_AT_A_TIME = 500
_NUM_ELEMENTS, _TEXT_BYTES = 2_000, 5_000


def measure(options: Options, scratch: Path) -> Facts:
    """Measure memory, small groups and speeds."""
    measures = {"memory": _peaks, "small_parts": _small_parts, "speeds": _speeds}
    return {part: measures[part](options, scratch) for part in options.of}


def _columns(kind: str, num_wide: int, first: int, num_rows: int) -> Facts:
    """Return the columns of rows of a log; the same for the same arguments."""
    drawn = np.random.default_rng(first)
    if kind == "texts":
        return {"text": [f"{row:0{_TEXT_BYTES}d}" for row in range(first, first + num_rows)]}
    if kind == "lists":
        return {"list": drawn.integers(0, 1_000_000, (num_rows, _NUM_ELEMENTS)).tolist()}
    return {f"c{number}": drawn.integers(0, 1_000, num_rows) for number in range(num_wide)}


def _batches(kind: str, num_wide: int, num_rows: int) -> Iterator[pa.RecordBatch]:
    for first in range(0, num_rows, _ROWS_AT_A_TIME):
        rows = min(_ROWS_AT_A_TIME, num_rows - first)
        labels = np.arange(first, first + rows) % 2
        yield pa.RecordBatch.from_pydict({"label": labels, **_columns(kind, num_wide, first, rows)})


def _write(kind: str, format: str, options: Options, path: Path) -> None:
    """Write a log that has so many bytes as text."""
    value_bytes = 12 if format == "json" else 4  # with its name, if that is short
    widths = {"texts": _TEXT_BYTES, "lists": 7 * _NUM_ELEMENTS, "columns": value_bytes * options.columns}
    batches = _batches(kind, options.columns, max(options.megabytes * 10**6 // widths[kind], 1))
    if format == "parquet":
        first = next(batches)
        with pq.ParquetWriter(path, first.schema, compression="zstd") as writer:
            # Two row groups: what memory holds must not follow their size.
            writer.write_table(pa.Table.from_batches([first, *batches]), row_group_size=None)
        return
    with path.open("wb") as file:
        for number, batch in enumerate(batches):
            if format == "json":
                file.writelines(json.dumps(row).encode() + b"\n" for row in batch.to_pylist())
                continue
            if kind == "lists":
                lists = ["|".join(map(str, row)) for row in batch["list"].to_pylist()]
                batch = pa.RecordBatch.from_pydict({"label": batch["label"], "list": lists})
            pyarrow.csv.write_csv(batch, file, pyarrow.csv.WriteOptions(include_header=number == 0))


def _schema(format: str, sparse: Sequence[str], path: Path, dense: Sequence[str] = ()) -> Path:
    header = ["header = true"] if format == "csv" else []
    lines = [f'format = "{format}"', *header, 'label = "label"', f"dense = {json.dumps(dense)}", "[sparse]"]
    path.write_text("\n".join([*lines, *sparse]) + "\n")
    return path


def _peaks(options: Options, scratch: Path) -> list[Facts]:
    """Preprocess each log within each cap, with one and two workers; return the peaks of anonymous memory."""
    found = []
    for form in options.forms:
        kind, _, format = form.partition(" ")
        log, schema = scratch / f"log-{kind}-{format}", "criteo-kaggle"
        if kind == "criteo":
            generate(GenerateConfig(samples=options.megabytes * 4_000), log)
        else:
            sparse = {
                "texts": ['text = "text"'],
                "lists": ['list = { kind = "integer", list = true }'],
                "columns": [f'c{number} = "integer"' for number in range(options.columns)],
            }[kind]
            schema = str(_schema(format, sparse, scratch / f"{kind}-{format}.toml"))
            _write(kind, format, options, log)
        words = ["preprocess", str(log), "--schema", schema, "--hot-bytes", "1MiB", "--embedding-dim", "4"]
        for num_workers, cap in product((1, 2), options.memory):
            facts = {"form": form, "workers": num_workers}
            facts |= _peak([*words, "--workers", str(num_workers)], cap, scratch)
            found.append(facts)
            tell(f"{form}, workers {num_workers}: {facts['of_cap']:.2f} of {facts['cap_mib']} MiB")
        log.unlink()
    return found


def _peak(words: Sequence[str], cap_mib: int, scratch: Path) -> Facts:
    """Run within a cap, or the one that its refusal names; return the peak and its share of the cap."""
    out = scratch / "out"
    # What a refused run has made would spare this one work.
    shutil.rmtree(out, ignore_errors=True)
    (process,) = harness.start_hotset([*words, "--memory", f"{cap_mib}MiB", "--out", str(out), "-q"], scratch)
    peak = 0
    while process.poll() is None:
        peak = max(peak, numbers_in(Path(f"/proc/{process.pid}/status")).get("RssAnon", 0) * 1024)
        time.sleep(_SAMPLING_SECONDS)
    message = harness.last_message(scratch)
    would_do = re.search(r"--memory ([0-9]+)MiB would do", message)
    if process.returncode and would_do and int(would_do[1]) > cap_mib:
        return _peak(words, int(would_do[1]), scratch) | {"refused_mib": cap_mib}
    if process.returncode:
        raise HotsetError(f"{' '.join(words)}: {message}")
    return {"cap_mib": cap_mib, "peak_mib": peak / MIB, "of_cap": peak / MIB / cap_mib}


def _samples(num_rows: int, seed: int = 0) -> pa.Table:
    """Return a label, 13 numbers and 26 categories, half of them text."""
    drawn = np.random.default_rng(seed)
    columns: Facts = {"label": drawn.integers(0, 2, num_rows)}
    columns |= {f"I{n}": drawn.integers(0, 10_000, num_rows) for n in range(13)}
    for number in range(26):
        ids = np.minimum(drawn.zipf(1.2, num_rows), 100_000)
        columns[f"C{number}"] = ids if number % 2 else [f"{each:08x}" for each in ids.tolist()]
    return pa.table(columns)


def _samples_schema(format: str, scratch: Path) -> Path:
    sparse = [f'C{n} = "{"integer" if n % 2 else "text"}"' for n in range(26)]
    return _schema(format, sparse, scratch / f"samples-{format}.toml", [f"I{n}" for n in range(13)])


def _ingest(program: str, log: Path, schema: Path, scratch: Path) -> Seconds:
    out = scratch / "ingested"
    return harness.time_anew(program, out, "ingest", log, "--schema", schema, "--workers", 1)


_THIS = str(Path(sys.executable).with_name("hotset"))


def _small_parts(options: Options, scratch: Path) -> Facts:
    """Compare many small parts with one of the same rows, by CPU seconds of reading them."""
    schema = _samples_schema("parquet", scratch)
    logs = {name: scratch / name for name in ("groups", "one_group", "files", "one_file")}
    pq.write_table(_samples(20 * options.groups), logs["groups"], row_group_size=20)
    pq.write_table(_samples(20 * options.groups), logs["one_group"])
    rows = _samples(66 * options.files)
    pq.write_table(rows, logs["one_file"])
    logs["files"].mkdir()
    for number in range(options.files):
        pq.write_table(rows.slice(66 * number, 66), logs["files"] / f"part-{number:05d}.parquet")
    turns = {name: partial(_ingest, _THIS, log, schema, scratch) for name, log in logs.items()}
    found = harness.take_turns(turns, options.rounds)
    return {
        "groups_over_one": harness.compare(found["groups"], found["one_group"]),
        "files_over_one": harness.compare(found["files"], found["one_file"]),
        "rounds": found,
    }


def _speeds(options: Options, scratch: Path) -> Facts:
    """Compare reading with another checkout and with Polars; a ratio above 1 says that this one is faster."""
    facts: Facts = {"samples": options.samples}
    table = _samples(options.samples)
    programs = {"this": _THIS}
    if options.other is not None:
        programs["other"] = harness.program_of(options.other)
    for format in ("csv", "parquet"):
        log, schema = scratch / f"samples.{format}", _samples_schema(format, scratch)
        if format == "csv":
            pyarrow.csv.write_csv(table, log)
        else:
            pq.write_table(table, log, row_group_size=65_536)
        turns = {who: partial(_ingest, program, log, schema, scratch) for who, program in programs.items()}
        read = [sys.executable, "-c", f"import sys, polars; polars.read_{format}(sys.argv[1])", str(log)]
        turns["polars"] = partial(harness.time_process, read)
        harness.take_turns(turns, 1)
        found = harness.take_turns(turns, options.rounds)
        others = [who for who in found if who != "this"]
        facts[format] = {f"over_{who}": harness.compare(found[who], found["this"]) for who in others}
        facts[format]["rounds"] = found
    return facts


if __name__ == "__main__":
    harness.main(PARSER, measure)
