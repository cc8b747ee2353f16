"""Any schema that `propose_schema` proposes preprocesses its file, and so does each entry it suggests."""

from __future__ import annotations

import csv
import datetime
import io
import re
import tempfile
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.preview.infer_schema import Proposal, propose_schema
from hotset.pipeline.schema.schema_file import read_schema
from hotset.pipeline.sizes import ByteSize
from hotset.pipeline.stages.ingest import IngestConfig, ingest
from hotset.pipeline.stages.pack import PackConfig
from hotset.pipeline.stages.preprocess import preprocess
from hotset.pipeline.stages.split import SplitConfig
from hotset.tests.support.logs.other_logs import columns_in
from hotset.workflows.recipes import recipe_for

_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0"), max_size=5)
_INT64 = st.integers(-(2**63), 2**63 - 1)
_FINITE = st.floats(allow_nan=False, allow_infinity=False)
_TIMES = st.datetimes(datetime.datetime(1970, 1, 1), datetime.datetime(2100, 1, 1))

_PARQUET: dict[Any, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-1, 1),
    pa.int64(): _INT64,
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.float64(): st.floats(),
    pa.float32(): st.floats(width=32),
    pa.string(): _TEXT,
    pa.large_string(): st.sampled_from(["a|b", "b|c", "a", "", "c|a|b"]),
    pa.string_view(): _TEXT,
    pa.binary(): st.binary(max_size=3),
    pa.dictionary(pa.int8(), pa.string()): st.sampled_from(["x", "y", ""]),
    pa.dictionary(pa.int8(), pa.int32()): st.sampled_from([1, 2]),
    pa.list_(pa.int32()): st.lists(st.integers(0, 3), max_size=3),
    pa.list_(pa.string()): st.lists(_TEXT, max_size=3),
    pa.large_list(pa.bool_()): st.lists(st.booleans(), max_size=3),
    pa.list_(pa.float64()): st.lists(_FINITE, max_size=3),
    pa.list_(pa.uint8(), 2): st.lists(st.integers(0, 255), min_size=2, max_size=2),
    pa.decimal128(9, 2): st.integers(-(10**9) + 1, 10**9 - 1).map(lambda cents: Decimal(cents) / 100),
    pa.timestamp("us"): _TIMES,
    pa.timestamp("ms", tz="UTC"): _TIMES,
    pa.date32(): _TIMES.map(lambda time: time.date()),
    pa.time32("s"): _TIMES.map(lambda time: time.time().replace(microsecond=0)),
    pa.null(): st.none(),
    pa.struct([("a\nb", pa.int8())]): st.just({"a\nb": 1}),
}
"""Types of Parquet columns and their values."""
_CSV: list[st.SearchStrategy[str]] = [
    st.integers(0, 1).map(str),
    st.integers(-3, 3).map(str),
    st.integers(-(2**65), 2**65).map(str),
    _FINITE.map(repr),
    st.floats().map(repr),
    _TEXT,
    st.sampled_from(["a|b", "b|c", "a", "", "c|a|b"]),
    st.sampled_from(["1;2", "2;3", "3", ""]),
    st.sampled_from(["00ff00ff", "deadbeef"]),
    st.sampled_from(["007", "01", "2"]),
    st.sampled_from(["true", "false"]),
    _TIMES.map(str),
    _TIMES.map(lambda time: str(time.date())),
    st.integers(1_500_000_000, 1_500_100_000).map(str),
    st.just(""),
]
"""Values of CSV columns."""
_NAMES = st.lists(
    st.one_of(
        st.sampled_from(
            ["label", "click", "user id", "ids", "dense", "is_hot", "a/b", "Name", "é", "x.arrow"]
        ),
        _TEXT.filter(bool),
    ),
    min_size=1,
    max_size=4,
    unique=True,
)


@st.composite
def _columns(draw: st.DrawFn, kinds: list[st.SearchStrategy[Any]], rows: int, gap: Any) -> list[list[Any]]:
    """Draw columns, some constant, some with gaps, each of a few values that are repeated to ``rows``."""
    columns = []
    for kind in kinds:
        few = draw(st.lists(kind, min_size=1, max_size=6))
        has_gaps = draw(st.booleans())
        columns.append([gap if has_gaps and row % 5 == 4 else few[row * 7 % len(few)] for row in range(rows)])
    return columns


@st.composite
def parquet_logs(draw: st.DrawFn) -> pa.Table:
    """Draw a Parquet log with at least one column that any proposal keeps."""
    rows = draw(st.sampled_from([3, 120]))
    names = draw(_NAMES)
    types = [draw(st.sampled_from(list(_PARQUET))) for _ in names]
    columns = draw(_columns([_PARQUET[kind] for kind in types], rows, None))
    arrays = [_array(column, kind) for column, kind in zip(columns, types, strict=True)]
    kept = pa.array([row % 3 for row in range(rows)])
    return pa.Table.from_arrays([*arrays, kept], names=[*names, "kept by any"])


def _array(values: list[Any], kind: Any) -> Any:
    if pa.types.is_dictionary(kind):
        return pa.array(values, kind.value_type).dictionary_encode()
    if pa.types.is_fixed_size_list(kind):
        values = [[0, 0] if value is None else value for value in values]
    return pa.array(values, kind)


@st.composite
def csv_logs(draw: st.DrawFn) -> bytes:
    """Draw a CSV log with at least one column that any proposal keeps."""
    rows = draw(st.sampled_from([3, 120]))
    names = draw(_NAMES)
    columns = draw(_columns([draw(st.sampled_from(_CSV)) for _ in names], rows, ""))
    columns.append([str(row % 3) for row in range(rows)])
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=draw(st.sampled_from(",\t;|")), lineterminator="\n")
    if draw(st.booleans()):
        writer.writerow([*names, "kept by any"])
    writer.writerows(zip(*columns, strict=True))
    return text.getvalue().encode()


def preprocesses(raw: Path, proposal: Proposal, folder: Path) -> int:
    """Preprocess a log with its proposal; return the number of samples in the shards."""
    recipe = recipe_for(proposal.text)
    recipe = replace(
        recipe,
        ingest=replace(recipe.ingest, label=proposal.schema.label is not None),
        split=SplitConfig(hot_bytes=ByteSize(512), embedding_dim=2),
        pack=PackConfig(batch_size=8),
    )
    return preprocess([raw], recipe, folder / "out").num_samples


def suggested(proposal: Proposal) -> str:
    """Return the proposal with the lists that it suggests in place of text, and with what it left out."""
    lines = []
    for line in proposal.text.splitlines():
        entry = re.fullmatch(r'(.+ = )"text"  # .*; looks like a list: (\{.*\})', line)
        line = entry[1] + entry[2] if entry else line
        lines.append(line.removeprefix("# ") if "  # left out: " in line else line)
    return "\n".join(lines) + "\n"


def check(raw: Path, folder: Path) -> None:
    proposal = propose_schema(raw)
    assert read_schema(proposal.text) == proposal.schema
    assert "kept by any" in proposal.schema.sparse or proposal.schema.fields
    assert preprocesses(raw, proposal, folder) == proposal.num_rows
    schema = suggested(proposal)
    columns = ingest(
        [raw], IngestConfig(schema=schema, label=proposal.schema.label is not None), folder / "more"
    )
    assert columns.num_samples == proposal.num_rows


@pytest.mark.parametrize("form", ["csv", "unix", "parquet"])
def test_times_become_hour_and_weekday(form: str, tmp_path: Path) -> None:
    start = datetime.datetime(2024, 5, 6, tzinfo=datetime.UTC)
    times = [start + datetime.timedelta(minutes=37 * row) for row in range(400)]
    raw = tmp_path / f"clicks.{form}"
    sites = [row % 5 for row in range(400)]
    if form == "parquet":
        pq.write_table(pa.table({"click": [row % 2 for row in sites], "ts": times, "site": sites}), raw)
    else:
        written = [f"{time:%Y-%m-%d %H:%M:%S}" if form == "csv" else int(time.timestamp()) for time in times]
        rows = "".join(f"{site % 2},{time},{site}\n" for site, time in zip(sites, written, strict=True))
        raw.write_text("click,ts,site\n" + rows)
    proposal = propose_schema(raw)
    assert proposal.schema.kind_of == {"ts_hour": "hour", "ts_weekday": "weekday", "site": "integer"}
    assert preprocesses(raw, proposal, tmp_path) == 400
    columns = columns_in(Manifest.read(tmp_path / "out" / "columns"))
    assert columns["ts_hour"] == [time.hour for time in times]
    assert columns["ts_weekday"] == [time.isoweekday() for time in times]


SETTINGS = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.slow
@SETTINGS
@given(parquet_logs())
def test_the_schema_proposed_for_a_parquet_log_preprocesses_it(log: pa.Table) -> None:
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "log.parquet"
        pq.write_table(log, raw)
        check(raw, Path(folder))


@SETTINGS
@given(csv_logs())
def test_the_schema_proposed_for_a_csv_log_preprocesses_it(log: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "log.csv"
        raw.write_bytes(log)
        check(raw, Path(folder))
