"""What is proposed for logs nobody described, and that it can be used as it stands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hotset.pipeline.errors import InputError
from hotset.pipeline.preview.infer_schema import Proposal, propose_schema
from hotset.pipeline.schema.schema import schema_named
from hotset.pipeline.schema.schema_file import read_schema
from hotset.pipeline.stages.ingest import IngestConfig, ingest
from hotset.tests.support.other_logs import columns_in, draw_log, naive_columns, write_csv, write_parquet

KINDS = {
    "other": "label",
    "clicked": "label",
    "user id": "text",
    "n": "integer",
    "hash": "unsigned",
    "site": "hex8",
}


def check_it_is_read_back(proposal: Proposal) -> None:
    assert read_schema(proposal.text) == proposal.schema


@pytest.mark.parametrize("separator", [",", "\t", ";", "|"])
@pytest.mark.parametrize("format", ["csv", "parquet"])
def test_kinds_label_and_separator_are_guessed_and_fit(
    tmp_path: Path, format: str, separator: str, rng: np.random.Generator
) -> None:
    log = draw_log(200, KINDS, rng)
    raw = tmp_path / "log.gz"
    proposal = propose_schema(
        write_csv(raw, log, separator=separator) if format == "csv" else write_parquet(raw, log)
    )
    schema = proposal.schema
    assert schema.kind_of == {name: kind for name, kind in KINDS.items() if kind != "label"} | {
        "other": "integer"
    }
    assert (schema.label, schema.format, proposal.num_rows) == (
        "clicked",
        format,
        200 if format == "csv" else 40,
    )
    assert format == "parquet" or schema.separator == separator
    check_it_is_read_back(proposal)
    columns = columns_in(ingest([raw], IngestConfig(schema=proposal.text), tmp_path / "out"))
    wanted = naive_columns(log) | {"other": [row[0] for row in log.rows]}
    wanted["label"] = [row[1] for row in log.rows]
    assert columns == wanted


def test_a_log_without_a_header_gets_names(tmp_path: Path) -> None:
    path = tmp_path / "log.tsv"
    path.write_text("1\t5\tabc\n0\t6\tabd\n")
    proposal = propose_schema(path)
    assert proposal.schema.fields == ("field1", "field2", "field3") and proposal.schema.label == "field1"
    assert proposal.schema.kind_of == {"field2": "integer", "field3": "text"}
    check_it_is_read_back(proposal)


def test_what_cannot_be_a_category_is_left_out_with_the_reason(tmp_path: Path) -> None:
    columns: dict[str, Any] = {
        "a/b": ["x"] * 200,
        "every": list(range(200)),
        "lists": [[[1]]] * 200,
        "fractions": [0.5, float("nan")] * 100,
        "ids": ["a"] * 200,
        "times": pa.array([1] * 200, pa.timestamp("s")),
        "label": [7] * 200,
        "kept": [1.0, None] * 100,
        "nothing": pa.nulls(200),
    }
    pq.write_table(pa.table(columns), tmp_path / "log")
    proposal = propose_schema(tmp_path / "log")
    reasons = {look.name: look.note for look in proposal.columns if not look.is_used}
    assert set(reasons) == {"a/b", "every", "lists", "fractions", "ids", "times", "label"}
    assert reasons["every"] == "every row has another value"
    assert reasons["lists"] == "list<element: list<element: int64>> is not supported"
    assert reasons["fractions"] == "it holds neither text nor finite numbers"
    assert "a feature cannot be called 'ids'" in reasons["ids"] and 'name = "..."' in reasons["ids"]
    assert reasons["label"] == "only the label can be called so"
    assert set(proposal.schema.sparse) == {"kept", "nothing"} and proposal.schema.label is None
    assert "# 'every' is left out: every row has another value" in proposal.text
    assert "looks like a label" in proposal.text
    check_it_is_read_back(proposal)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["00000001", "12345678"], "hex8"),
        (["12345678", "23456789"], "integer"),
        (["007", "8"], "text"),
        (["1.5", "02"], "text"),
        (["1e400", "2"], "text"),
        (["1.0", "0.0", ""], "integer"),
        (["-1", "5"], "integer"),
        (["18446744073709551615", "5"], "unsigned"),
        (["18446744073709551615", "-5"], "text"),
        (["", ""], "text"),
    ],
)
def test_a_kind_is_the_plainest_that_no_value_contradicts(
    tmp_path: Path, values: list[str], kind: str
) -> None:
    (tmp_path / "log").write_text("a,b\n" + "".join(f"{value},x\n" for value in values))
    assert propose_schema(tmp_path / "log").schema.kind_of["a"] == kind


def test_lists_and_floats_of_parquet_are_proposed_and_fit(tmp_path: Path, rng: np.random.Generator) -> None:
    kinds = {"clicked": "label", "tags": "list text", "price": "float"}
    kinds |= {"codes": "list hex8", "n": "list integer"}
    log = draw_log(200, kinds, rng, empty_lists=True)
    raw = write_parquet(tmp_path / "log", log, group_rows=200)
    proposal = propose_schema(raw)
    schema = proposal.schema
    assert (schema.lists, schema.floats) == ((("tags", ""), ("codes", ""), ("n", "")), ("price",))
    assert schema.kind_of == {"tags": "text", "codes": "hex8", "n": "integer"}
    assert "lists of " in proposal.text and ", 300 at most" in proposal.text
    check_it_is_read_back(proposal)
    columns = ingest([raw], IngestConfig(schema=proposal.text), tmp_path / "out")
    assert columns_in(columns) == naive_columns(log)


def test_decimals_are_dense_and_what_looks_like_lists_is_a_hint(tmp_path: Path) -> None:
    rows = "".join(f"{n % 2},{n}.5,{n % 5}|{n % 7}|3,x{n % 3};y{n % 4},a|b\n" for n in range(60))
    (tmp_path / "log").write_text("clicked,price,numbers,texts,one\n" + rows)
    proposal = propose_schema(tmp_path / "log")
    assert proposal.schema.floats == proposal.schema.dense == ("price",)
    assert proposal.schema.kind_of == {"numbers": "text", "texts": "text", "one": "text"}
    notes = {look.name: look.note for look in proposal.columns}
    hint = '; looks like a list: { kind = "integer", list = true, separator = "|" }'
    assert notes["numbers"] == "35 distinct" + hint and "list" not in notes["one"]
    assert notes["texts"].endswith('{ kind = "text", list = true, separator = ";" }')
    assert hint[2:] in proposal.text
    check_it_is_read_back(proposal)


def test_few_rows_can_be_looked_at(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("a,b\n" + "1,x\n" * 50 + "c,x\n" * 50)
    proposal = propose_schema(tmp_path / "log", num_rows=50)
    assert proposal.num_rows == 50 and proposal.columns[0].name == "b"


@pytest.mark.parametrize("text", [b"", b'"a\n', b"PAR1 and no more"])
def test_what_is_no_log_is_one_clear_line(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "log").write_bytes(text)
    with pytest.raises(InputError, match="log") as caught:
        propose_schema(tmp_path / "log")
    assert "\n" not in str(caught.value)


@pytest.mark.real_data
def test_the_avazu_sample_is_proposed_as_the_built_in_schema(real_data: Path) -> None:
    assert propose_schema(real_data / "avazu_train_head_10k.csv.gz").schema == schema_named("avazu")
