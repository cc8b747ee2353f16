"""Any schema that `propose_schema` proposes preprocesses its file, and so does each entry it suggests."""

from __future__ import annotations

import ast
import csv
import datetime
import gzip
import io
import re
import tempfile
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hotset.pipeline.errors import ByteSize, InputError
from hotset.pipeline.infer_schema import Proposal, propose_schema
from hotset.pipeline.preprocess import preprocess
from hotset.pipeline.schema.schema_file import read_schema, write_schema
from hotset.pipeline.stages.ingest import IngestConfig, ingest
from hotset.pipeline.stages.pack import PackConfig
from hotset.pipeline.stages.split import SplitConfig
from hotset.workflows.recipes import recipe_for

_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0"), max_size=5)
_INT64 = st.integers(-(2**63), 2**63 - 1)
_FINITE = st.floats(allow_nan=False, allow_infinity=False)
_TIMES = st.datetimes(datetime.datetime(1970, 1, 1), datetime.datetime(2100, 1, 1))
_OLD_TIMES = st.datetimes(datetime.datetime(1700, 1, 1), datetime.datetime(2250, 1, 1))
_START = datetime.datetime(2024, 5, 6)

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
    pa.float16(): st.floats(width=16),
    pa.uint8(): st.integers(0, 255),
    pa.large_binary(): st.binary(max_size=3),
    pa.binary(2): st.binary(min_size=2, max_size=2),
    pa.list_(pa.int64()): st.lists(st.none() | _INT64, max_size=3) | st.none(),
    pa.list_(pa.null()): st.lists(st.none(), max_size=2),
    pa.list_(pa.large_string()): st.lists(_TEXT, max_size=3) | st.none(),
    pa.list_(pa.timestamp("us")): st.lists(_TIMES, max_size=2),
    pa.list_(pa.decimal128(5, 1)): st.lists(st.integers(-99, 99).map(Decimal), max_size=2),
    pa.list_(pa.list_(pa.int8())): st.lists(st.lists(st.integers(0, 3), max_size=2), max_size=2),
    pa.list_(pa.struct([("a", pa.int8())])): st.lists(st.just({"a": 1}), max_size=2),
    pa.struct([("a", pa.list_(pa.struct([("b", pa.string())])))]): st.just({"a": [{"b": "x"}]}),
    pa.map_(pa.string(), pa.int32()): st.just([("a", 1), ("b", 2)]),
    pa.decimal128(38, 0): st.integers(-(10**37), 10**37).map(Decimal),
    pa.decimal256(50, 3): st.integers(-(10**40), 10**40).map(Decimal),
    pa.decimal128(9, 2): st.integers(-(10**9) + 1, 10**9 - 1).map(lambda cents: Decimal(cents) / 100),
    pa.timestamp("us"): _TIMES,
    pa.timestamp("ms", tz="UTC"): _TIMES,
    pa.timestamp("s"): _OLD_TIMES.map(lambda time: time.replace(microsecond=0)),
    pa.timestamp("ns"): _OLD_TIMES,
    pa.timestamp("us", tz="Asia/Tokyo"): _TIMES,
    pa.duration("s"): st.integers(-9, 9).map(lambda seconds: datetime.timedelta(seconds=seconds)),
    pa.time64("us"): _TIMES.map(lambda time: time.time()),
    pa.date64(): _OLD_TIMES.map(lambda time: time.date()),
    pa.dictionary(pa.int8(), pa.float64()): st.sampled_from([-1.5, 0.0]),
    pa.dictionary(pa.int8(), pa.large_string()): st.sampled_from(["a|b", "b|c"]),
    pa.date32(): _TIMES.map(lambda time: time.date()),
    pa.time32("s"): _TIMES.map(lambda time: time.time().replace(microsecond=0)),
    pa.null(): st.none(),
    pa.struct([("a\nb", pa.int8())]): st.just({"a\nb": 1}),
}
"""Types of Parquet columns and their values."""
_PARQUET_OF_ROW: list[tuple[Any, Callable[[int], Any]]] = [
    (pa.int64(), lambda row: 10**17 - row),
    (pa.int64(), lambda row: 1_700_000_000_000 + 977_000 * row),
    (pa.float64(), lambda row: 0.37 * row - 5),
    (pa.string(), lambda row: f"u{row}"),
    (pa.string(), lambda row: f"a{row}|b{row % 3}"),
    (pa.timestamp("us"), lambda row: _START + datetime.timedelta(minutes=37 * row)),
    (pa.date32(), lambda row: (_START + datetime.timedelta(days=row)).date()),
    (pa.list_(pa.int32()), lambda row: [row, row + 1]),
    (pa.decimal128(9, 2), lambda row: Decimal(row) / 4),
]
"""Columns whose values hardly ever come back."""
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
    st.sampled_from(["null", "NULL", "NaN", "None", "NA", "\\N", "-"]),
    st.sampled_from(["nan", "inf", "-inf", "1e400", "-1e400"]),
    st.sampled_from(["1.0", "2.0", "-0.0", "+5", "1_000", "1,5", " 7", "0x1f"]),
    st.sampled_from(["TRUE", "False", "yes", "no"]),
    st.sampled_from(["[1, 2]", "['a']", '{"a": 1}', "a;b|c", "|", ";;"]),
    st.sampled_from(['say "hi"', "two\tparts", "'", "a,b;c|d"]),
    _OLD_TIMES.map(lambda time: time.isoformat() + "Z"),
    st.sampled_from(["31/12/2024", "2024-13-01", "24:00:00", "2024-02-30 00:00:00"]),
]
"""Values of CSV columns."""
_CSV_OF_ROW: list[Callable[[int], str]] = [
    lambda row: str(10**30 + row),
    lambda row: str(1_700_000_000 + 977 * row),
    lambda row: f"{0.37 * row - 5:.3f}",
    lambda row: f"u{row}",
    lambda row: f"{row:08x}",
    lambda row: f"a{row}|b{row % 3}",
    lambda row: f"{_START + datetime.timedelta(minutes=37 * row)}",
]
"""Columns whose values hardly ever come back."""
_NAMES = st.lists(
    st.one_of(
        st.sampled_from(
            ["label", "click", "user id", "ids", "dense", "is_hot", "a/b", "Name", "é", "x.arrow"]
        ),
        _TEXT.filter(bool),
    ),
    min_size=1,
    max_size=4,
)
"""Names of columns, the same one now and then."""


@st.composite
def _column(draw: st.DrawFn, kind: Any, rows: int, gap: Any) -> list[Any]:
    """Draw a column, perhaps constant, perhaps with gaps.

    ``kind`` is a strategy, of which a few values are repeated to ``rows``, or makes the value of a row.
    """
    value_of = kind
    if isinstance(kind, st.SearchStrategy):
        few = draw(st.lists(kind, min_size=1, max_size=6))
        value_of = lambda row: few[row * 7 % len(few)]  # noqa: E731
    has_gaps = draw(st.booleans())
    return [gap if has_gaps and row % 5 == 4 else value_of(row) for row in range(rows)]


@st.composite
def parquet_logs(draw: st.DrawFn) -> pa.Table:
    """Draw a Parquet log with at least one column that any proposal keeps."""
    rows = draw(st.sampled_from([3, 120]))
    names = draw(_NAMES)
    kinds = [draw(st.sampled_from([*_PARQUET.items(), *_PARQUET_OF_ROW])) for _ in names]
    arrays = [_array(draw(_column(values, rows, None)), kind) for kind, values in kinds]
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
    columns = [draw(_column(draw(st.sampled_from([*_CSV, *_CSV_OF_ROW])), rows, "")) for _ in names]
    columns.append([str(row % 3) for row in range(rows)])
    text = io.StringIO(newline="")
    quoting: Literal[0, 1] = draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))
    end = draw(st.sampled_from(["\n", "\r\n"]))
    writer = csv.writer(text, delimiter=draw(st.sampled_from(",\t;|")), lineterminator=end, quoting=quoting)
    if draw(st.booleans()):
        writer.writerow([*names, "kept by any"])
    writer.writerows(zip(*columns, strict=True))
    written = text.getvalue().encode()
    written = written.removesuffix(b"\n") if draw(st.booleans()) else written
    written = b"\xef\xbb\xbf" + written if draw(st.booleans()) else written
    return gzip.compress(written) if draw(st.booleans()) else written


def on_bad_line(proposal: Proposal) -> str:
    """Return how to ingest a log in which labels are missing, as the proposal says."""
    return "skip:1" if any("rows have no " in note for note in proposal.notes) else "error"


def num_labelled(proposal: Proposal) -> int:
    """Return the number of rows that have a label, where the log has one."""
    told = (re.match(r"([\d,]+) rows have no ", note) for note in proposal.notes)
    return proposal.num_rows - sum(int(each[1].replace(",", "")) for each in told if each)


def preprocesses(raw: Path, proposal: Proposal, folder: Path) -> int:
    """Preprocess a log with its proposal; return the number of samples in the shards."""
    recipe = recipe_for(proposal.text)
    recipe = replace(
        recipe,
        ingest=replace(
            recipe.ingest, label=proposal.schema.label is not None, on_bad_line=on_bad_line(proposal)
        ),
        split=SplitConfig(hot_bytes=ByteSize(512), embedding_dim=2),
        pack=PackConfig(batch_size=8),
    )
    return preprocess([raw], recipe, folder / "out").num_samples


def suggested(proposal: Proposal) -> str:
    """Return the proposal with the lists that it suggests in place of text, and with what it left out."""
    lines = []
    for line in proposal.text.split("\n"):
        entry = re.fullmatch(r'.+ = "text"  # .*; if these are lists, write: (.*)', line)
        line = entry[1] if entry else line
        lines.append(line.removeprefix("# ") if "  # left out: " in line else line)
    return "\n".join(lines) + "\n"


def check(raw: Path, folder: Path) -> None:
    proposal = propose_schema(raw)
    assert read_schema(proposal.text) == proposal.schema
    assert "kept by any" in proposal.schema.sparse or proposal.schema.fields
    assert preprocesses(raw, proposal, folder) == num_labelled(proposal)
    has_label = proposal.schema.label is not None
    config = IngestConfig(schema=suggested(proposal), label=has_label, on_bad_line=on_bad_line(proposal))
    assert ingest([raw], config, folder / "more").num_samples == num_labelled(proposal)


SETTINGS = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.slow
@SETTINGS
@given(parquet_logs())
def test_the_schema_proposed_for_a_parquet_log_preprocesses_it(log: pa.Table) -> None:
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "log.parquet"
        pq.write_table(log, raw)
        check(raw, Path(folder))


def check_csv(log: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "log.csv"
        raw.write_bytes(log)
        check(raw, Path(folder))


def many(num_examples: int) -> Any:
    """Ten examples, and ``num_examples`` in the slow run."""
    return pytest.mark.parametrize("num_examples", [10, pytest.param(num_examples, marks=pytest.mark.slow)])


@many(25)
def test_the_schema_proposed_for_a_csv_log_preprocesses_it(num_examples: int) -> None:
    settings(SETTINGS, max_examples=num_examples)(given(csv_logs())(check_csv))()


def changed(text: str, hint: str) -> str:
    """Return a schema as somebody writes it who does what a hint says."""
    schema = read_schema(text)
    untransformed = re.search(r'take transform = "none" of column (.*) from the schema', hint)
    if untransformed:
        column = ast.literal_eval(untransformed[1])
        kept = tuple(name for name in schema.untransformed if name != column)
        return write_schema(replace(schema, untransformed=kept))
    # What is drawn here has digits by chance, and is no time.
    written = re.match(r"if it is a time, say in the schema how those of column (.*) are written: ", hint)
    if written:
        hint = f'if the value is right, give column {written[1]} the kind "text" in the schema'
    found = re.match(r'if the value is right, give column (.*) the kind "(\w+)" in the schema', hint)
    assert found, hint
    column, kind = ast.literal_eval(found[1]), found[2]
    # The features of a time become one, named after their column.
    kinds = {name: of for name, of in schema.kind_of.items() if schema.column_of[name] != column}
    dense = tuple(name for name in schema.dense if name != column)
    floats = tuple(name for name in schema.floats if name != column)
    if kind == "float":
        dense, floats = (*dense, column), (*floats, column)
    else:
        kinds[column] = kind
    return write_schema(
        replace(
            schema,
            dense=dense,
            floats=floats,
            untransformed=tuple(name for name in schema.untransformed if name != column),
            sparse=tuple(kinds),
            kinds=tuple(kinds.values()),
            renamed=tuple(pair for pair in schema.renamed if pair[1] != column),
            time_units=tuple(pair for pair in schema.time_units if pair[0] in kinds),
        )
    )


def ingested_by_hints(rows: list[list[str]], text: str, folder: Path) -> list[str]:
    """Ingest a CSV log, doing what each refusal hints at; return the hints."""
    hints: list[str] = []
    for attempt in range(9):
        raw = folder / "log.csv"
        with open(raw, "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([["click", "x", "kept by any"], *rows])
        config = IngestConfig(schema=text, label=read_schema(text).label is not None)
        try:
            columns = ingest([raw], config, folder / f"columns{attempt}")
        except InputError as error:
            assert error.hint is not None and error.hint.endswith("skip such lines with --on-bad-line skip")
            hints.append(error.hint)
            missing = re.match(r"if .* stands for a missing value, set (missing = \[.*\]) in the", error.hint)
            if missing:
                text = "\n".join([missing[1], *re.sub("^missing = .*\n", "", text).splitlines()])
            else:
                text = changed(text, error.hint)
        else:
            assert columns.num_samples == len(rows)
            return hints
    raise AssertionError(hints)


@pytest.mark.parametrize(
    ("first", "later", "words"),
    [
        ("{row}", "x7", ['the kind "text" in the schema, or count']),
        ("{row}", "2.5", ['"float" in the schema, not under [sparse] but in a section [dense]']),
        ("{row}", str(2**63), ['the kind "unsigned" in the schema, or count']),
        ("{row}", str(10**30), ['the kind "text" in the schema, or count']),
        ("922337203685477580{row}", "-1", ['the kind "text" in the schema, or count']),
        ("00ff00f{row}", "zz", ['the kind "text" in the schema, or count']),
        ("{row}.5", "cheap", ['the kind "text" in the schema, under [sparse] instead of dense']),
        ("-{row}.5", "1e39", ["take transform = \"none\" of column 'x' from the schema, or count"]),
        ("2024-05-06 0{row}:00:00", "soon", ['the kind "text" in the schema, or count']),
        (
            "2024-05-06 0{row}:00:00",
            "6 May",
            ["how those of column 'x' are written: format = \"%d/%b/%Y:%H:%M:%S %z\""],
        ),
        ("{row}", "NULL", ['if NULL stands for a missing value, set missing = ["NULL"] in the schema, or']),
        ("{row}.5", "\\N", ['if \\N stands for a missing value, set missing = ["\\\\N"] in the schema, or']),
    ],
)
def test_a_later_row_that_a_proposal_did_not_see_names_the_other_kind(
    first: str, later: str, words: list[str], tmp_path: Path
) -> None:
    rows = [[str(row % 2), first.format(row=row % 2 + 8), str(row % 3)] for row in range(120)]
    (tmp_path / "first.csv").write_text(
        "click,x,kept by any\n" + "".join(",".join(row) + "\n" for row in rows)
    )
    text = propose_schema(tmp_path / "first.csv").text
    hints = ingested_by_hints([*rows, ["0", later, "1"]], text, tmp_path)
    assert [word in hint for word, hint in zip(words, hints, strict=True)] == [True]


def test_a_number_of_parquet_that_a_proposal_did_not_see_names_the_other_kind(tmp_path: Path) -> None:
    """Numbers of Parquet cannot be read as text."""
    for kind, later, words in (
        (pa.float64(), 2.5, '"float" in the schema, not under [sparse] but in a section [dense]'),
        (pa.float64(), float("inf"), "fix the line, or count"),
        (pa.uint64(), 2**63, "give column 'x' the kind \"unsigned\" in the schema, or count"),
        (pa.list_(pa.uint64()), [1, 2**63], "give column 'x' the kind \"unsigned\" in the schema, or count"),
    ):
        values: list[Any] = [[row % 7] if pa.types.is_list(kind) else row % 7 for row in range(200)]
        raw = tmp_path / "log.parquet"
        kept = [row % 3 for row in range(201)]
        pq.write_table(pa.table({"x": pa.array([*values, later], kind), "kept by any": kept}), raw)
        text = propose_schema(raw, num_rows=200).text
        config = IngestConfig(schema=text, label=read_schema(text).label is not None)
        with pytest.raises(InputError) as refused:
            ingest([raw], config, tmp_path / "columns")
        assert refused.value.hint is not None and words in refused.value.hint, later
        if "give column" in words:
            config = replace(config, schema=changed(text, refused.value.hint))
            assert ingest([raw], config, tmp_path / f"read {kind}").num_samples == 201


def test_a_built_in_schema_has_no_other_kind(tmp_path: Path) -> None:
    raw = tmp_path / "log.csv"
    names = ["label", *(f"feat_{number}" for number in range(1, 23))]
    raw.write_text(",".join(names) + "\n" + ",".join(["1", "x", *["3"] * 21]) + "\n")
    with pytest.raises(InputError, match="column 'feat_1': found 'x', want an integer") as refused:
        ingest([raw], IngestConfig(schema="avazu-x1"), tmp_path / "columns")
    assert refused.value.hint == "fix the line, or count and skip such lines with --on-bad-line skip"


@st.composite
def contradicted_logs(draw: st.DrawFn) -> tuple[list[list[str]], list[list[str]]]:
    """Draw the rows that a proposal sees, and those behind them, whose values may be of any kind."""
    parts = [[draw(_column(draw(st.sampled_from(_CSV)), rows, "")) for _ in range(2)] for rows in (120, 30)]
    seen, behind = (
        [[str(row % 2), values, str(row % 3)] for row, values in enumerate(column)]
        for column in (parts[0][0], parts[1][1])
    )
    return seen, behind


def check_contradicted(log: tuple[list[list[str]], list[list[str]]]) -> None:
    seen, behind = log
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "seen.csv"
        with open(raw, "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([["click", "x", "kept by any"], *seen])
        hints = ingested_by_hints(seen + behind, propose_schema(raw).text, Path(folder))
        assert len(hints) <= 8


@many(150)
def test_hints_lead_from_a_proposal_to_a_schema_that_reads_the_log(num_examples: int) -> None:
    settings(SETTINGS, max_examples=num_examples)(given(contradicted_logs())(check_contradicted))()
