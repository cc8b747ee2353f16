"""Each known log is a file of data: its form is recognised, and a log of that form is read.

Tests `log_parts`, too.
"""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pyarrow as pa
import pytest
import xxhash

from hotset.pipeline.errors import FormatError
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.infer_schema import explain_built_in, propose_schema
from hotset.pipeline.raw.log_parts import recognise
from hotset.pipeline.raw.raw_file import RawFile
from hotset.pipeline.schema.schema_file import KNOWN_LOGS, KnownLog, schema_named, write_schema
from hotset.pipeline.stages.ingest import IngestConfig, ingest
from hotset.tests.support.logs.known_logs import NUM_ROWS, lines_of

SAME = {"avazu-x4": "avazu", "criteo-1tb": "criteo-kaggle"}
"""Logs that have the form of another one."""
OF_TEXT = [name for name in KNOWN_LOGS if schema_named(name).format == "csv"]


def labels_of(columns: Manifest) -> list[int]:
    found: list[int] = []
    for entry in columns.files:
        if "texts" not in entry.path:
            with pa.ipc.open_file(columns.folder / entry.path) as file:
                found += file.read_all()["label"].to_pylist()
    return found


@pytest.mark.parametrize("name", KNOWN_LOGS)
def test_a_known_log_says_where_it_is_from_and_names_its_columns(name: str) -> None:
    text = (Path(__file__).parents[3] / "pipeline" / "schema" / "logs" / f"{name}.toml").read_text()
    assert re.match(r"(# .*\n)+# Source: .+\n\n", text) and max(map(len, text.splitlines())) <= 110
    schema, known = schema_named(name), KnownLog.read(name)
    if schema.format == "csv":
        assert known.header or known.line
        assert not known.header or set(schema.columns(has_label=True)) <= set(known.header)
        assert bool(known.line) == bool(schema.fields)


def test_schemas_that_folders_were_made_with_are_what_they_were() -> None:
    # The hash of each text as it was when these schemas were no files.
    hashes = {
        "avazu": "29106959bb47689c",
        "avazu-x1": "e1edd9214ea06c36",
        "avazu-x4": "29106959bb47689c",
        "criteo-1tb": "21bd232a52a81636",
        "criteo-kaggle": "21bd232a52a81636",
        "criteo-x1": "f0f1700f6d197edd",
        "criteo-x4": "d53a3340eb53d579",
        "taobao": "fb1b7296d0aa53ee",
    }
    assert {
        name: xxhash.xxh3_64_hexdigest(write_schema(schema_named(name)).encode()) for name in hashes
    } == hashes


@pytest.mark.parametrize("name", KNOWN_LOGS)
def test_a_log_of_the_published_form_is_read(tmp_path: Path, name: str) -> None:
    (tmp_path / "log").write_text(lines_of(name))
    columns = ingest([tmp_path / "log"], IngestConfig(schema=name), tmp_path / "columns")
    labels = labels_of(columns)
    assert columns.num_samples == NUM_ROWS and set(labels) == {0, 1}
    rows = [line.split(schema_named(name).separator) for line in lines_of(name).splitlines()]
    wanted = {"movielens-1m": lambda row: row[2] > "3", "taobao-behavior": lambda row: row[3] == "buy"}
    if name in wanted:
        assert labels == [int(wanted[name](row)) for row in rows]


@pytest.mark.parametrize(
    ("name", "has_label"),
    [*((name, True) for name in OF_TEXT), *((name, False) for name in OF_TEXT if KnownLog.read(name).header)],
)
def test_a_log_of_the_published_form_is_recognised(tmp_path: Path, name: str, has_label: bool) -> None:
    log = tmp_path / "log"
    log.write_text(lines_of(name, without=None if has_label else schema_named(name).label))
    known = recognise(RawFile.inspect(log))
    assert known is not None and known.is_exact and known.has_label == has_label
    assert known.name == SAME.get(name, name)
    told = explain_built_in(log)
    assert told is not None and told.startswith(f"{log} is of the known log {known.name}: ")
    options = f"--schema {known.name}{'' if has_label else ' --no-label'}"
    assert told.endswith(f"give {options}")
    # Preprocessing it without a schema is refused with the same name, and with it the log is read.
    with pytest.raises(FormatError) as caught:
        ingest([log], IngestConfig(), tmp_path / "columns")
    assert (caught.value.hint or "").endswith(f"give {options}")
    assert not (tmp_path / "columns").exists()
    config = IngestConfig(schema=known.name, label=has_label)
    assert ingest([log], config, tmp_path / "columns").num_samples == NUM_ROWS


@pytest.mark.parametrize("name", [name for name in OF_TEXT if KnownLog.read(name).header])
@pytest.mark.parametrize("separator", [",", "\t", ";"])
def test_other_letters_and_separators_give_the_schema_with_the_names_of_the_file(
    tmp_path: Path, name: str, separator: str
) -> None:
    header, rows = lines_of(name).split("\n", 1)
    log = tmp_path / "log"
    log.write_text((header.swapcase() + "\n" + rows).replace(",", separator))
    known = recognise(RawFile.inspect(log))
    assert known is not None and known.name == SAME.get(name, name)
    proposal = propose_schema(log)
    schema = schema_named(name)
    if not known.is_exact:  # numbers have no capitals
        assert proposal.schema.kind_of == schema.kind_of and proposal.schema.dense == schema.dense
    columns = ingest([log], IngestConfig(schema=write_schema(known.schema)), tmp_path / "columns")
    (tmp_path / "published").write_text(lines_of(name))
    published = ingest([tmp_path / "published"], IngestConfig(schema=name), tmp_path / "published-columns")
    files = [[entry.xxh3_128 for entry in made.files] for made in (columns, published)]
    assert files[0] == files[1]


def test_criteo_with_a_header_of_small_letters_has_dense_integers(tmp_path: Path) -> None:
    # The lines of Kaggle's log, below names as many write them.
    names = ",".join(["label", *(f"I{n}" for n in range(1, 14)), *(f"C{n}" for n in range(1, 27))])
    (tmp_path / "log.csv").write_text(names + "\n" + lines_of("criteo-kaggle").replace("\t", ","))
    proposal = propose_schema(tmp_path / "log.csv")
    assert len(proposal.schema.dense) == 13 and proposal.schema.label == "label"
    assert set(proposal.schema.kind_of.values()) == {"hex8"}
    config = IngestConfig(schema=proposal.text)
    assert ingest([tmp_path / "log.csv"], config, tmp_path / "columns").num_samples == NUM_ROWS


@pytest.mark.parametrize("compressed", [False, True])
def test_a_byte_order_mark_is_no_part_of_criteos_text(tmp_path: Path, compressed: bool) -> None:
    text = lines_of("criteo-kaggle").encode()
    files = []
    for name, content in (("plain", text), ("marked", b"\xef\xbb\xbf" + text)):
        (tmp_path / name).write_bytes(gzip.compress(content) if compressed else content)
        columns = ingest([tmp_path / name], IngestConfig(), tmp_path / f"{name}-columns")
        files.append([entry.xxh3_128 for entry in columns.files])
        assert columns.num_samples == NUM_ROWS
        assert "the format of Criteo's logs" in (explain_built_in(tmp_path / name) or "")
    assert files[0] == files[1]


def test_without_a_schema_criteos_text_below_names_is_no_damage(tmp_path: Path) -> None:
    names = "\t".join(["label", *(f"I{n}" for n in range(1, 14)), *(f"C{n}" for n in range(1, 27))])
    (tmp_path / "log").write_text(names + "\n" + lines_of("criteo-kaggle"))
    with pytest.raises(FormatError, match="looks like the log criteo-x4") as caught:
        ingest([tmp_path / "log"], IngestConfig(), tmp_path / "columns")
    assert (caught.value.hint or "").startswith("`hotset schema ")


def edited(name: str, column: str, value: str) -> str:
    """Return lines of a known log with another value in a column."""
    header, *rows = (line.split(",") for line in lines_of(name).splitlines())
    place = header.index(column)
    edited = [[*row[:place], value, *row[place + 1 :]] for row in rows]
    return "".join(",".join(row) + "\n" for row in [header, *edited])


def test_a_log_that_only_looks_like_a_known_one_gets_no_name(tmp_path: Path) -> None:
    texts = {
        "another column": lines_of("taobao-ad").replace("pid", "price"),
        "one more column": lines_of("taobao-ad").replace("\n", ",3\n").replace("clk,3", "clk,price"),
        "a column less": lines_of("avazu", without="C21"),
        "another behaviour": lines_of("taobao-behavior").replace("pv", "view"),
        "a rating of 9": lines_of("movielens-1m").replace("::5::", "::9::"),
        "a column twice": lines_of("kuairec").replace("date", "time"),
        "an address": edited("avazu", "device_ip", "10.0.0.1"),
        "a decimal": edited("criteo-x4", "C3", "7.0"),
        "a wrong quote": edited("avazu-x1", "feat_22", '""""'),
        "lists of one": re.sub(r"\|\d+", "", lines_of("taobao")),
        "no values": lines_of("ali-ccp", num_rows=0),
        "nothing": "",
    }
    for what, text in texts.items():
        (tmp_path / "log").write_text(text)
        assert recognise(RawFile.inspect(tmp_path / "log")) is None, what
