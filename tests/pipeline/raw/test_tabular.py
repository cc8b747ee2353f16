"""CSV and Parquet logs to columns and on, against naive readers; what is refused and where.

Tests `log_parts` and `part`, too.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hotset.pipeline.errors import ByteSize, InputError, ManifestError
from hotset.pipeline.folders.manifest import MANIFEST, Manifest
from hotset.pipeline.formats.arrow_files import read_batch, write_batch
from hotset.pipeline.preprocess import FOLDERS, PreprocessConfig, run_stage
from hotset.pipeline.raw.parquet_parts import ParquetParts
from hotset.pipeline.runtime.tasks import Resources
from hotset.pipeline.schema.schema_file import read_schema
from hotset.pipeline.stages.ingest import IngestConfig, ingest
from hotset.pipeline.stages.pack import PackConfig
from hotset.pipeline.verify import verify
from hotset.tests.support.logs.criteo_text import tree_of
from hotset.tests.support.logs.other_logs import (
    Log,
    columns_in,
    draw_log,
    naive_columns,
    schema_text,
    write_csv,
    write_parquet,
)
from hotset.tests.support.naive.naive_stages import OOV, ids_of, naive_table

KINDS = {
    "unused": "unused",
    "clicked": "label",
    "age": "dense",
    "user id": "text",
    "n": "integer",
    "hash": "unsigned",
    "site": "hex8",
    "price": "dense",
}


def config(text: str, **changes: Any) -> IngestConfig:
    settings: dict[str, Any] = {"schema": text, "block_bytes": ByteSize(1500)} | changes
    return IngestConfig(**settings)


@pytest.mark.diagonal(3)
@pytest.mark.parametrize(
    ("name", "block_bytes", "num_lines"),
    [
        # A part of its own for each line.
        *((name, 1, 20) for name in ("log.csv", "log.csv.gz")),
        *((name, block_bytes, 120) for name in ("log.csv", "log.csv.gz") for block_bytes in (500, 1 << 20)),
    ],
)
@pytest.mark.parametrize(
    ("separator", "end", "header"),
    [(",", "\n", True), ("\t", "\r\n", True), (";", "\n", False)],
)
def test_columns_hold_a_csv_log(
    tmp_path: Path,
    name: str,
    block_bytes: int,
    num_lines: int,
    separator: str,
    end: str,
    header: bool,
    rng: np.random.Generator,
) -> None:
    log = draw_log(num_lines, KINDS, rng)
    raw = write_csv(tmp_path / name, log, header=header, separator=separator, end=end)
    more = f'separator = "{separator}"' + ("" if header else f"\nheader = false\nfields = {list(KINDS)}")
    setting = config(schema_text(log, more=more), block_bytes=ByteSize(block_bytes))
    columns = ingest([raw], setting, tmp_path / "out", Resources(workers=2))
    assert columns_in(columns) == naive_columns(log)
    assert columns.totals["dense"] == ["age", "price"]
    assert columns.totals["sparse"] == ["user id", "n", "hash", "site"]
    assert columns.totals["has_label"] and read_schema(columns.totals["schema"]) == read_schema(
        setting.schema
    )
    assert (columns.totals["raw"][0]["lines"], columns.totals["raw"][0]["samples"]) == (num_lines,) * 2
    assert block_bytes > 500 or len(columns.files) > 1


@pytest.mark.parametrize("block_bytes", [1, 1500, 1 << 20])
def test_columns_hold_a_parquet_log(tmp_path: Path, block_bytes: int, rng: np.random.Generator) -> None:
    log = draw_log(130, KINDS, rng)
    raw = write_parquet(tmp_path / "log.parquet", log)
    text = schema_text(log, format="parquet")
    columns = ingest(
        [raw], config(text, block_bytes=ByteSize(block_bytes)), tmp_path / "out", Resources(workers=2)
    )
    assert columns_in(columns) == naive_columns(log)
    rows = [int(entry.path[12:24]) for entry in columns.files if not entry.is_texts]
    assert rows == sorted(rows) and len(rows) == {1: 130, 1500: 7, 1 << 20: 4}[block_bytes]


def test_one_log_gives_one_column_of_numbers_from_csv_and_parquet(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    logs = [
        draw_log(50, KINDS, rng),
        draw_log(1, KINDS, rng),
        draw_log(0, KINDS, rng),
        draw_log(30, KINDS, rng),
    ]
    csv = [write_csv(tmp_path / f"{n}.csv", log) for n, log in enumerate(logs)]
    parquet = [write_parquet(tmp_path / f"{n}.parquet", log) for n, log in enumerate(logs)]
    csv[2].write_bytes(b"")
    from_csv = ingest(csv, config(schema_text(logs[0])), tmp_path / "a")
    from_parquet = ingest(parquet, config(schema_text(logs[0], format="parquet")), tmp_path / "b")
    whole = Log(KINDS, [row for log in logs for row in log.rows])
    assert columns_in(from_csv) == columns_in(from_parquet) == naive_columns(whole)
    assert [file["samples"] for file in from_csv.totals["raw"]] == [50, 1, 0, 30]
    assert [file["samples"] for file in from_parquet.totals["raw"]] == [50, 1, 0, 30]


@pytest.mark.parametrize("format", ["csv", "parquet"])
def test_workers_change_no_byte_and_an_interrupted_run_goes_on(
    tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    log = draw_log(150, KINDS, rng)
    raw = [(write_csv if format == "csv" else write_parquet)(tmp_path / f"log.{format}", log)] * 2
    setting = config(schema_text(log, format=format), block_bytes=ByteSize(900))
    ingest(raw, setting, tmp_path / "whole", Resources(workers=1))
    for num_files in (0, 3, 20):
        out = tmp_path / f"out{num_files}"
        left = num_files

        def failing(path: Path, columns: dict[str, Any]) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
            write_batch(path, columns)

        with monkeypatch.context() as patch:
            patch.setattr("hotset.pipeline.stages.ingest.write_batch", failing)
            with pytest.raises(KeyboardInterrupt):
                ingest(raw, setting, out, Resources(workers=2))
        ingest(raw, setting, out, Resources(workers=3))
        assert tree_of(out) == tree_of(tmp_path / "whole")


def test_the_schema_is_part_of_the_folder_and_its_path_is_not(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    log = draw_log(9, KINDS, rng)
    raw = write_csv(tmp_path / "log.csv", log)
    text = schema_text(log)
    made = ingest([raw], config(text), tmp_path / "out")
    assert made.config["schema"].startswith("toml:")
    assert ingest([raw], config("# a comment\n" + text), tmp_path / "out").fingerprint == made.fingerprint
    with pytest.raises(ManifestError, match="was written with schema = toml:"):
        ingest([raw], config(text.replace('"hex8"', '"text"')), tmp_path / "out")


GOOD = "label = 'y'\ndense = ['d']\n[sparse]\nu = 'text'\ni = 'integer'\nn = 'unsigned'\nh = 'hex8'\n"
HEADER = b"y,d,u,i,n,h\n"
BAD_LINES: dict[bytes, tuple[str, str]] = {
    b",1,a,1,1,": ("missing_label", ", column 'y': found nothing, want 0 or 1"),
    b"2,1,a,1,1,": ("bad_label", ", column 'y': found '2', want 0 or 1"),
    b"1,1.5,a,1,1,": (
        "bad_integer",
        ", column 'd': found '1.5', want an integer from -2147483648 to 2147483647, or nothing",
    ),
    b"1,2147483648,a,1,1,": (
        "bad_integer",
        ", column 'd': found '2147483648', want an integer from -2147483648 to 2147483647, or nothing",
    ),
    b"1,,a,9223372036854775808,1,": (
        "bad_category",
        ", column 'i': found '9223372036854775808', want an integer from -2**63 to 2**63 - 1, or nothing",
    ),
    b"1,,a,1,-1,": (
        "bad_category",
        ", column 'n': found '-1', want an integer from 0 to 2**64 - 1, or nothing",
    ),
    b"1,,a,1,1,abc": ("bad_category", ", column 'h': found 'abc', want 8 hex digits, or nothing"),
    b"1,,a,1,1," + b"x" * 99: (
        "bad_category",
        f", column 'h': found '{'x' * 40}'... (99 bytes), want 8 hex digits, or nothing",
    ),
    b"1,1,a": ("field_count", ": found 3 fields, want 6 between ','"),
    b"": ("field_count", ": found 1 field, want 6 between ','"),
    b"1,1,a,1,1,,": ("field_count", ": found 7 fields, want 6 between ','"),
    b'1,1,"a,1,1,': ("field_count", ": a quoted field is not closed before the next field or line"),
    b'1,1,"a"b,1,1,': ("field_count", ": a quoted field is not closed before the next field or line"),
}


@pytest.mark.parametrize("line", BAD_LINES)
def test_a_bad_csv_line_is_refused_with_file_line_column_found_and_wanted(
    tmp_path: Path, line: bytes
) -> None:
    raw = tmp_path / "log.csv"
    raw.write_bytes(HEADER + b"1,1,a,1,1,\n" * 200 + line + b"\n" + b"x\n")
    with pytest.raises(InputError) as caught:
        ingest([raw], config('format = "csv"\n' + GOOD), tmp_path / "out", Resources(workers=2))
    assert str(caught.value) == f"{raw}, line 202{BAD_LINES[line][1]}"
    assert "--on-bad-line skip" in str(caught.value.hint)
    assert not (tmp_path / "out" / MANIFEST).exists()


def test_bad_csv_lines_are_skipped_and_counted(tmp_path: Path) -> None:
    raw = tmp_path / "log.csv"
    lines = [line for bad in BAD_LINES for line in (b'0,-7,"""q"",",-1,7,0000beef', bad)]
    raw.write_bytes(b"\xef\xbb\xbf" + HEADER + b"\n".join(lines))
    skipping = config('format = "csv"\n' + GOOD, on_bad_line="skip:0.5")
    columns = ingest([raw], skipping, tmp_path / "out")
    assert columns.totals["bad_lines"] == dict(sorted(Counter(r for r, _ in BAD_LINES.values()).items()))
    row = naive_columns(Log({"u": "text", "i": "integer"}, [('"q",', -1)]))
    found = columns_in(columns)
    assert found["u"] == row["u"] * len(BAD_LINES) and found["i"] == row["i"] * len(BAD_LINES)
    assert found["label"] == [0] * len(BAD_LINES) and found["d"] == [-7] * len(BAD_LINES)
    assert columns.totals["raw"][0]["lines"] == 2 * len(BAD_LINES)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        (GOOD.replace("u =", "U ="), "has no column 'U'", "did you mean"),
        (GOOD.replace("'y'", "'click'"), "has no column 'click'", "it has ['y', 'd', 'u', 'i', 'n', 'h']"),
    ],
)
@pytest.mark.parametrize("format", ["csv", "parquet"])
def test_a_column_that_is_not_there_is_named(
    tmp_path: Path, format: str, text: str, message: str, hint: str
) -> None:
    log = Log(dict(zip("yduinh", ("label", "dense", "text", "integer", "unsigned", "hex8"), strict=True)), [])
    raw = (write_csv if format == "csv" else write_parquet)(tmp_path / "log", log)
    with pytest.raises(InputError, match=message) as caught:
        ingest([raw], config(f'format = "{format}"\n' + text), tmp_path / "out")
    assert hint in str(caught.value.hint) or "U" in message


def test_a_file_of_the_other_format_is_refused(tmp_path: Path, rng: np.random.Generator) -> None:
    log = draw_log(5, KINDS, rng)
    csv = write_csv(tmp_path / "a.csv", log)
    parquet = write_parquet(tmp_path / "a.parquet", log)
    with pytest.raises(InputError, match=r"a\.csv is not a Parquet file"):
        ingest([csv], config(schema_text(log, format="parquet")), tmp_path / "a")
    with pytest.raises(InputError, match=r"a\.parquet is a Parquet file"):
        ingest([parquet], config(schema_text(log)), tmp_path / "b")


PARQUET: dict[str, tuple[Any, str]] = {
    "whole floats": (pa.array([1.0, None, -3.0]), "[1, None, -3]"),
    "small integers": (pa.array([1, None, -3], pa.int8()), "[1, None, -3]"),
    "text": (pa.array(["1", "", "-3"]), "[1, None, -3]"),
    "views": (pa.array(["1", "", "-3"], pa.string_view()), "[1, None, -3]"),
    "nothing": (pa.nulls(3), "[None, None, None]"),
    "floats": (pa.array([1.0, 2.0, 2.5]), "row 3, column 'd': found 2.5, want an integer"),
    "nan": (pa.array([1.0, float("nan"), 2.5]), "row 2, column 'd': found nan, want an integer"),
    "infinity": (pa.array([float("inf"), 1, 1]), "row 1, column 'd': found inf, want an integer"),
    "infinity in a half": (
        pa.array(np.array([1, 1, np.inf], np.float16)),
        "row 3, column 'd': found inf, want an integer",
    ),
    "large": (pa.array([1, 2**31, 3]), "row 2, column 'd': found 2147483648, want an integer"),
    "unsigned": (pa.array([1, 2**63, 3], pa.uint64()), "row 2, column 'd': found 9223372036854775808"),
    "lists": (pa.array([[1], [], None]), "column 'd' is list<element: int64>, want an integer"),
    "times": (pa.array([1, 2, 3], pa.timestamp("s")), "column 'd' is timestamp[ms], want an integer"),
}


@pytest.mark.parametrize("case", PARQUET)
def test_parquet_types_are_read_or_refused(tmp_path: Path, case: str) -> None:
    array, wanted = PARQUET[case]
    pq.write_table(pa.table({"y": [True, False, True], "d": array, "u": ["a", "", None]}), tmp_path / "log")
    text = "format = 'parquet'\nlabel = 'y'\ndense = ['d']\n[sparse]\nu = 'text'"
    if wanted.startswith("["):
        found = columns_in(ingest([tmp_path / "log"], config(text), tmp_path / "out"))
        assert str(found["d"]) == wanted and found["label"] == [1, 0, 1] and found["u"][1:] == [None, None]
        return
    with pytest.raises(InputError) as caught:
        ingest([tmp_path / "log"], config(text), tmp_path / "out")
    assert wanted in str(caught.value) and "\n" not in str(caught.value)


TIMES = """
[sparse]
site = "text"
when = [{ kind = "hour" }, { kind = "weekday", name = "day" }, { kind = "text", name = "moment" }]
ms = { kind = "hour", unit = "ms" }
"""


def test_columns_hold_hours_and_weekdays(tmp_path: Path) -> None:
    raw = tmp_path / "log.csv"
    rows = b'a,"2024-05-06 07:59:59",1500000000000\n,,\n"b",2024-05-05,-1\n'
    raw.write_bytes(b"site,when,ms\n" + rows * 40)
    columns = ingest(
        [raw], config('format = "csv"' + TIMES, label=False, block_bytes=ByteSize(500)), tmp_path / "a"
    )
    found = columns_in(columns)
    assert len(columns.files) > 2 and list(found) == ["site", "when", "day", "moment", "ms"]
    assert (found["when"], found["day"]) == ([7, None, 0] * 40, [1, None, 7] * 40)
    assert found["ms"] == [2, None, 23] * 40 and found["moment"][1] is None
    stamps = pa.array(["2024-05-06 07:59:59", None, "2024-05-05"] * 40).cast(pa.timestamp("s"))
    table = {"site": ["a", None, "b"] * 40, "when": stamps, "ms": [1_500_000_000_000, None, -1] * 40}
    pq.write_table(pa.table(table), tmp_path / "log.parquet")
    text = ('format = "parquet"' + TIMES).replace(', { kind = "text", name = "moment" }', "")
    again = columns_in(ingest([tmp_path / "log.parquet"], config(text, label=False), tmp_path / "b"))
    assert again == {name: found[name] for name in ("site", "when", "day", "ms")}


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        (
            "when",
            ["2024-05-06", "2024-02-30"],
            "line 3, column 'when': found '2024-02-30', want a time such as",
        ),
        ("ms", ["1", "1.5"], "line 3, column 'ms': found '1.5', want an integer (ms since 1970), or nothing"),
        (
            "when",
            pa.array([1, 2]),
            "column 'when' is int64, want times as text or timestamps, or integers with",
        ),
        ("when", pa.array([1, 2], pa.time32("s")), "column 'when' is time32[ms], want times as text"),
        ("ms", pa.array([1, 2], pa.timestamp("s")), "is timestamp[ms], want an integer (ms since 1970)"),
    ],
)
def test_what_is_no_time_is_refused(column: str, values: Any, message: str, tmp_path: Path) -> None:
    table = {"site": ["a", "b"], "when": ["2024-05-06"] * 2, "ms": ["1", "2"]} | {column: values}
    is_text = isinstance(values, list)
    raw = tmp_path / "log"
    if is_text:
        rows = "".join(",".join(row) + "\n" for row in zip(*table.values(), strict=True))
        raw.write_text(",".join(table) + "\n" + rows)
    else:
        pq.write_table(pa.table(table), raw)
    with pytest.raises(InputError) as caught:
        setting = config(f'format = "{"csv" if is_text else "parquet"}"' + TIMES, label=False)
        ingest([raw], setting, tmp_path / "out")
    assert message in str(caught.value)


def test_a_damaged_parquet_file_is_one_clear_line(tmp_path: Path, rng: np.random.Generator) -> None:
    log = draw_log(500, KINDS, rng)
    raw = write_parquet(tmp_path / "log.parquet", log, group_rows=500)
    text = raw.read_bytes()
    setting = config(schema_text(log, format="parquet"))
    raw.write_bytes(text.replace(b"clicked", b"click\xc3d"))
    with pytest.raises(InputError, match=r"is not a Parquet file|cannot be read"):
        ingest([raw], setting, tmp_path / "out", Resources(workers=1))
    for number in range(25):
        place = int(rng.integers(len(text)))
        raw.write_bytes(text[:place] + bytes([text[place] ^ 255]) + text[place + 1 :])
        try:
            ingest([raw], setting, tmp_path / f"out{number}", Resources(workers=1))
        except InputError as error:
            assert "\n" not in str(error) and str(raw) in str(error)


def run_to_plan(folder: Path, raw: list[Path], setting: IngestConfig, stage: str = "split") -> Manifest:
    """Every stage up to ``stage``, evaluation being a third."""
    recipe = PreprocessConfig(ingest=setting, pack=PackConfig(batch_size=8))
    recipe = replace(recipe, count=replace(recipe.count, eval_fraction=1 / 3))
    made = ingest(raw, setting, folder / "columns")
    for name in list(FOLDERS)[1 : list(FOLDERS).index(stage) + 1]:
        made = run_stage(name, getattr(recipe, name), folder, Resources(workers=2))
    return made


WIDE = "300 features"
SHAPES = {
    "strings and numbers": (90, KINDS),
    "a single feature": (90, {"y": "label", "d": "dense", "only": "text"}),
    WIDE: (
        20,
        {"y": "label", "d": "dense", **{f"f{n}": ("text", "unsigned", "hex8")[n % 3] for n in range(300)}},
    ),
    "one row": (1, KINDS),
    "no dense column": (30, {"y": "label", "a": "integer", "b": "hex8"}),
    "no label": (30, {"d": "dense", "a": "unsigned"}),
}


def config_of(shape: str, text: str) -> IngestConfig:
    """Settings that cut a log into parts; a wide one into few, as each file of each feature takes time."""
    return config(text, block_bytes=ByteSize(30_000)) if shape == WIDE else config(text)


@pytest.mark.diagonal(2)
@pytest.mark.parametrize(
    ("shape", "format"),
    [
        pytest.param(shape, format, marks=[pytest.mark.slow] if shape == WIDE else [])
        for shape, format in product(SHAPES, ["csv", "parquet"])
    ],
)
def test_ids_are_those_of_the_naive_count(
    tmp_path: Path, shape: str, format: str, rng: np.random.Generator
) -> None:
    """Categories of 2**63 and more among them: no stage may take them for negative."""
    num_rows, kinds = SHAPES[shape]
    log = draw_log(num_rows, kinds, rng)
    raw = (write_csv if format == "csv" else write_parquet)(tmp_path / "log", log)
    run_to_plan(tmp_path, [raw], config_of(shape, schema_text(log, format=format)))
    vocabulary = Manifest.read(tmp_path / "vocabulary")
    columns = naive_columns(log)
    num_train = num_rows - num_rows // 3
    tables = [
        naive_table(columns[name][:num_train], 1)
        for name in Manifest.read(tmp_path / "columns").totals["sparse"]
    ]
    for table, facts in zip(tables, vocabulary.totals["tables"], strict=True):
        entry = next(entry for entry in vocabulary.files if entry.path == f"{facts['name']}.arrow")
        batch = read_batch(vocabulary, entry)
        assert batch.column("category").to_pylist() == [
            what if isinstance(what, int) else None for what, _ in table
        ]
        assert batch.column("count").to_pylist() == [count for _, count in table]
    id_of = [{what: i for i, (what, _) in enumerate(table)} for table in tables]
    sparse = [columns[facts["name"]] for facts in vocabulary.totals["tables"]]
    wanted = [
        [known.get(value, known[OOV]) for known, value in zip(id_of, row, strict=True)]
        for row in zip(*sparse, strict=True)
    ]
    assert ids_of(Manifest.read(tmp_path / "samples")) == wanted
    assert verify(tmp_path, raw=[raw]) == []


@pytest.mark.diagonal(2)
@pytest.mark.parametrize(
    "shape",
    [pytest.param(name, marks=pytest.mark.slow) if name == "300 features" else name for name in SHAPES],
)
def test_logs_of_any_shape_become_shards(tmp_path: Path, shape: str, rng: np.random.Generator) -> None:
    num_rows, kinds = SHAPES[shape]
    log = draw_log(num_rows, kinds, rng)
    setting = config_of(shape, schema_text(log))
    shards = run_to_plan(tmp_path, [write_csv(tmp_path / "log", log)], setting, "pack")
    assert sum(shards.totals["samples"].values()) == num_rows
    assert shards.totals["has_label"] == ("label" in kinds.values())
    assert verify(tmp_path) == []


def test_a_label_can_be_left_out(tmp_path: Path, rng: np.random.Generator) -> None:
    log = draw_log(20, KINDS, rng)
    raw = write_csv(tmp_path / "log.csv", log)
    columns = ingest([raw], config(schema_text(log), label=False), tmp_path / "out")
    naive = naive_columns(log)
    del naive["label"]
    assert columns_in(columns) == naive and columns.totals["has_label"] is False


@pytest.mark.real_data
def test_the_real_avazu_sample_is_read(tmp_path: Path, real_data: Path) -> None:
    raw = real_data / "avazu_train_head_10k.csv.gz"
    run_to_plan(tmp_path, [raw], IngestConfig(schema="avazu"))
    columns = Manifest.read(tmp_path / "columns")
    assert columns.num_samples == 9999 and columns.totals["bad_lines"] == {}
    assert verify(tmp_path, raw=[raw]) == []


def test_a_finished_part_that_says_it_has_no_rows_is_refused() -> None:
    """It would be followed by itself for ever: found by `bench fuzz`."""
    parts: Any = SimpleNamespace(_name="row{}".format, _file=SimpleNamespace(path="log.parquet"))
    part = SimpleNamespace(path="row0", read_facts=lambda kind: SimpleNamespace(num_lines=0))
    with pytest.raises(ManifestError, match=r"row0 is said to have 0 rows of log\.parquet"):
        ParquetParts._finished_names(parts, 0, 5, {"row0": part})  # type: ignore[dict-item]
