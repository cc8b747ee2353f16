"""A log of 400 made-up rows, and the forms that people write it in."""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from hotset.pipeline.errors import InputError
from hotset.pipeline.infer_schema import Proposal, propose_schema
from hotset.pipeline.schema.schema_file import read_schema
from hotset.pipeline.stages.ingest import IngestConfig, ingest
from hotset.tests.support.logs.other_logs import columns_in

Row = dict[str, Any]
START = 1_700_000_000


def _rows() -> list[Row]:
    draw = random.Random(7)
    rows = []
    for number in range(400):
        user, item = draw.randrange(40), draw.randrange(60)
        rows.append(
            {
                "user": 1000 + user,
                "item": 5000 + item,
                "price": draw.randrange(5_000, 900_000) / 10_000,
                "cat": f"grp{item % 5}",
                "ts": START + 977 * number,
                "label": int(draw.random() < (0.2, 0.5, 0.8)[(user + item) % 3]),
                "tags": sorted({item * 3 % 17, item * 5 % 17, user % 17}),
            }
        )
    return rows


ROWS = _rows()
BASE = ("user", "item", "price", "cat", "label")


@dataclass(frozen=True)
class Form:
    """A log, and what its proposal should read of it."""

    content: bytes | dict[str, Any] | pa.Table
    reads: Mapping[str, str | list[Any]]
    """Feature and the value of ROWS that it has, or all its values."""
    label: str | list[int] | None = "label"
    left_out: tuple[str, ...] = ()
    says: tuple[str, ...] = ()
    """Parts of the text that have to be there."""
    skips: int = 0
    """Rows that ingest refuses, or skips."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """How Parquet is written."""


def text(
    header: str | None,
    line: str | Callable[[Row], str],
    *,
    sep: str = ",",
    end: str = "\n",
    encoding: str = "utf-8",
    above: str = "",
    below: str = "",
) -> bytes:
    """Write ROWS: ``line`` is a format of one row with its values by name, or a function."""
    lines = [line(row) if callable(line) else line.format(**row) for row in ROWS]
    lines = [line.replace(",", sep) for line in ([header] if header is not None else []) + lines]
    return (above + end.join(lines) + end + below).encode(encoding)


LINE = "{user},{item},{price},{cat},{label}"
HEAD = "user,item,price,cat,label"
READS = {name: name for name in BASE if name != "label"}
USER = {"user": "user"}


def column(name: str) -> list[Any]:
    return [row[name] for row in ROWS]


def moment(row: Row) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(row["ts"], datetime.UTC)


def timed(format: str | Callable[[Row], str], **keys: Any) -> Form:
    """A log of a user, a time and a label."""
    written = format if callable(format) else lambda row: moment(row).strftime(format)
    content = text("user;event_time;label", lambda row: f"{row['user']};{written(row)};{row['label']}")
    hours = {"event_time_hour": [moment(row).hour for row in ROWS]}
    days = {"event_time_weekday": [moment(row).isoweekday() for row in ROWS]}
    return Form(content, USER | hours | days, says=("# time = ", *keys.pop("says", ())), **keys)


def listed(written: Callable[[list[int]], str], sep: str = "\t", **keys: Any) -> Form:
    """A log of a user, a list and a label, between tabs."""
    content = text("user\ttags\tlabel", lambda row: f"{row['user']}\t{written(row['tags'])}\t{row['label']}")
    return Form(content, USER | {"tags": keys.pop("tags", "tags")}, **keys)


def gap(row: Row, name: str, word: str) -> Any:
    return word if row["item"] % 7 == 0 else row[name]


def holed(word: str, kinds: Sequence[str] = ("user", "price")) -> Form:
    """A log in which a word stands for a missing value."""
    content = text(
        "user,item,price,label",
        lambda row: f"{gap(row, 'user', word)},{row['item']},{gap(row, 'price', word)},{row['label']}",
    )
    holes = {
        name: [None if row["item"] % 7 == 0 else row[name] for row in ROWS] for name in ("user", "price")
    }
    return Form(content, holes | {"item": "item"}, says=("missing = [",))


def labelled(name: str, written: Callable[[int], str], ones: list[int] | str = "label", **keys: Any) -> Form:
    content = text(f"user,{name}", lambda row: f"{row['user']},{written(row['label'])}")
    return Form(content, USER, ones, **keys)


def hashes(texts: Sequence[str]) -> list[int]:
    return [xxhash.xxh3_64_intdigest(each.encode()) for each in texts]


def written(form: Form, folder: Path) -> Path:
    raw = folder / "log"
    if isinstance(form.content, bytes):
        raw.write_bytes(form.content)
    else:
        table = form.content if isinstance(form.content, pa.Table) else pa.table(form.content)
        pq.write_table(table, raw, **form.options)
    return raw


def expected(values: str | list[Any], *, is_list: bool = False) -> list[Any]:
    return (
        [
            row[values]
            if not isinstance(row[values], str)
            else xxhash.xxh3_64_intdigest(row[values].encode())
            for row in ROWS
        ]
        if isinstance(values, str)
        else values
    )


def read(form: Form, raw: Path, proposal: Proposal, folder: Path) -> dict[str, list[Any]]:
    assert read_schema(proposal.text) == proposal.schema
    config = IngestConfig(schema=proposal.text, label=form.label is not None)
    if form.skips:
        with pytest.raises(InputError):
            ingest([raw], config, folder / "refused")
        config = replace(config, on_bad_line="skip:0.01")
    return columns_in(ingest([raw], config, folder / "columns"))


def check_form(form: Form, folder: Path) -> None:
    """Write a log, propose a schema for it, and compare what ingest reads with what was written."""
    raw = written(form, folder)
    proposal = propose_schema(raw)
    found = read(form, raw, proposal, folder)
    wanted = {feature: expected(values) for feature, values in form.reads.items()}
    if form.label is not None:
        wanted["label"] = expected(form.label)
    if form.skips and len(found["label"]) < len(ROWS):
        wanted = {feature: values[form.skips :] for feature, values in wanted.items()}
    assert {feature: found.get(feature) for feature in wanted} == wanted
    assert tuple(column.name for column in proposal.columns if not column.is_used) == form.left_out
    for part in form.says:
        assert part in proposal.text
