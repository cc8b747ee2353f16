"""Types of Parquet, marks in text and ways to write numbers that other readers stumbled on are read right."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from hotset.tests.support.logs.forms_of_logs import (
    HEAD,
    LINE,
    READS,
    ROWS,
    USER,
    Form,
    Row,
    check_form,
    column,
    hashes,
    labelled,
    moment,
    text,
)

_USERS, _LABELS = column("user"), column("label")
_BOTH = USER | {"item": "item"}


def _typed(reads: dict[str, Any] | None = None, options: Any = None, **columns: Any) -> Form:
    """A log of Parquet with the label and other columns, users and items where none are given."""
    plain = {"user": _USERS, "item": column("item")}
    content = {**(columns or plain), "label": _LABELS}
    return Form(content, _BOTH if reads is None else reads, options=options or {})


def _query(write: Callable[[Row], str]) -> Form:
    """A log of a user, a text and a label."""
    content = text("user\tq\tlabel", lambda row: f"{row['user']}\t{write(row)}\t{row['label']}")
    return Form(content, USER | {"q": hashes([write(row) for row in ROWS])})


def _ids(write: Callable[[int], str]) -> Form:
    """A log whose users are written so that only text holds them."""
    content = text("user,item,label", lambda row: f"{write(row['user'])},{row['item']},{row['label']}")
    return Form(content, {"user": hashes([write(user) for user in _USERS]), "item": "item"})


def _tags(row: int, tags: list[Any]) -> list[Any] | None:
    return None if row % 50 == 3 else [] if row % 50 == 4 else [*tags, None] if row % 50 == 5 else tags


_LISTS = [_tags(row, tags) for row, tags in enumerate(column("tags"))]
_HOURS = {
    "at_hour": [moment(row).hour for row in ROWS],
    "at_weekday": [moment(row).isoweekday() for row in ROWS],
}
_ODD_BLANKS = "\x0b\x0c\x1c\x85\u2028"
_LATE = [int(row["label"] and number > 150) for number, row in enumerate(ROWS)]

HELD: dict[str, Form] = {
    # Types and pages of Parquet.
    **{
        f"packed with {codec}": _typed(options={"compression": codec})
        for codec in ("snappy", "gzip", "zstd", "lz4", "brotli")
    },
    "pages of differences": _typed(
        USER | {"cat": "cat"},
        {
            "use_dictionary": False,
            "data_page_version": "2.0",
            "column_encoding": {"user": "DELTA_BINARY_PACKED", "cat": "DELTA_BYTE_ARRAY", "label": "PLAIN"},
        },
        user=_USERS,
        cat=column("cat"),
    ),
    "INT96": _typed(
        USER | _HOURS,
        {"use_deprecated_int96_timestamps": True},
        user=_USERS,
        at=pa.array([moment(row).replace(tzinfo=None) for row in ROWS], pa.timestamp("ns")),
    ),
    "a time zone and dates": _typed(
        USER | _HOURS,
        user=_USERS,
        at=pa.array([moment(row) for row in ROWS], pa.timestamp("us", "Asia/Shanghai")),
        day=[datetime.date(2026, 1, 1 + number // 20) for number in range(400)],
    ),
    "hashes above 2**63": _typed(
        {"user": [user * 0x9E3779B97F4A7C15 % 2**64 for user in _USERS], "item": "item"},
        user=pa.array([user * 0x9E3779B97F4A7C15 % 2**64 for user in _USERS], pa.uint64()),
        item=column("item"),
    ),
    "numbered integers": _typed(
        user=pa.array(_USERS).dictionary_encode(),
        item=pa.array(column("item"), pa.int16()).dictionary_encode(),
    ),
    "views, bytes and large texts": _typed(
        {name: hashes(list(map(str, column(name)))) for name in ("cat",)} | _BOTH,
        user=pa.array(list(map(str, _USERS)), pa.string_view()),
        item=pa.array([str(item).encode() for item in column("item")], pa.binary()),
        cat=pa.array(column("cat"), pa.large_string()),
    ),
    "lists that are missing, empty or lack an element": _typed(
        USER
        | {
            "tags": [[None] if each is None else each for each in _LISTS],
            "words": [hashes([f"w{tag}" for tag in tags]) for tags in column("tags")],
        },
        user=_USERS,
        tags=pa.array(_LISTS, pa.large_list(pa.int64())),
        words=pa.array(
            [[f"w{tag}" for tag in tags] for tags in column("tags")],
            pa.list_(pa.dictionary(pa.int32(), pa.string())),
        ),
    ),
    "lists of numbers and of ids": replace(
        _typed(
            {"pair": [[row["user"], row["item"]] for row in ROWS]},
            numbers=[[row["price"], 0.5] for row in ROWS],
            pair=[[row["user"], row["item"]] for row in ROWS],
        ),
        left_out=("numbers",),
    ),
    "floats for ids, and nulls": _typed(
        {"user": [user if user % 6 else None for user in _USERS], "item": "item"},
        user=[float(user) if user % 6 else None for user in _USERS],
        item=pa.array(column("item"), pa.float32()),
    ),
    "names with dots": _typed(
        {"u": "tags", "u.id": "user", "item.id": "item"},
        **{"u": column("tags"), "u.id": _USERS, "item.id": column("item")},
    ),
    "names of which one begins another": _typed(
        {"ad": "item", "ad.size": [row["user"] % 7 for row in ROWS]},
        **{"ad": column("item"), "ad.size": [row["user"] % 7 for row in ROWS]},
    ),
    "names in capitals": _typed({"C1": "user", "c1": "item"}, C1=_USERS, c1=column("item")),
    "maps and structs": replace(
        _typed(
            USER,
            user=_USERS,
            context=pa.array([[("os", "a")]] * 400, pa.map_(pa.string(), pa.string())),
            place=[{"lat": 1.0, "city": row["cat"]} for row in ROWS],
        ),
        left_out=("context", "place"),
    ),
    "a name twice in Parquet": Form(
        pa.table([_USERS, column("item"), _USERS, _LABELS], names=["user", "item", "user", "label"]),
        {"item": "item"},
        left_out=("user", "user"),
    ),
    "a label is null in Parquet": Form(
        {"user": _USERS, "label": [None, *map(bool, _LABELS[1:])]},
        USER,
        skips=1,
        says=("1 rows have no label",),
    ),
    # Lines and quotes.
    "mixed line ends": Form(text(HEAD, lambda row: LINE.format(**row) + "\r" * (row["item"] % 2)), READS),
    "everything in quotes": Form(
        text(
            ",".join(f'"{name}"' for name in HEAD.split(",")),
            lambda row: ",".join(f'"{field}"' for field in LINE.format(**row).split(",")),
        ),
        READS,
    ),
    "a byte order mark, quotes and returns": Form(
        text('"user","label"', '"{user}",{label}', end="\r\n", encoding="utf-8-sig"), USER
    ),
    "control characters and \\N": Form(
        text(
            None,
            lambda row: "\x01".join(
                map(str, (row["label"], row["user"] if row["item"] % 9 else "\\N", row["cat"]))
            ),
        ),
        {"field2": [row["user"] if row["item"] % 9 else None for row in ROWS], "field3": "cat"},
    ),
    # What text may hold.
    "line ends that are none": _query(lambda row: "a" + _ODD_BLANKS[row["item"] % 5] + "b"),
    "terminal codes and tags": _query(
        lambda row: "\x1b[31mred\x1b[2J" if row["item"] % 2 else "<script>x</script>"
    ),
    "composed letters and others": _query(lambda row: "cafe\u0301" if row["item"] % 2 else "caf\xe9"),
    "capitals and blanks": _query(lambda row: ("IOS", "ios", "iOS ", " android", "android")[row["item"] % 5]),
    # Numbers.
    "doubles of Java": _ids(lambda user: f"{user / 1000:.7f}".rstrip("0") + "E7"),
    "hexadecimal numbers": _ids(lambda user: f"0x{user * 7919:08x}"),
    "numbers above 2**64": _ids(lambda user: str(10**20 + user)),
    "percent": _ids(lambda user: f"{user - 990}%"),
    "money": _ids(lambda user: f"${user - 990}.5"),
    "signs": Form(
        text(
            "user,delta,label",
            lambda row: f"{row['user']},{'+-'[row['item'] % 2]}{row['price']},{row['label']}",
        ),
        USER | {"delta": [row["price"] * (1, -1)[row["item"] % 2] for row in ROWS]},
    ),
    "a word for a missing value near the end": Form(
        text(
            "user,price,label",
            lambda row: f"{row['user']},{'NULL' if row is ROWS[390] else row['price']},{row['label']}",
        ),
        USER | {"price": [None if row is ROWS[390] else row["price"] for row in ROWS]},
        says=('missing = ["NULL"]',),
    ),
    # Labels.
    "clicks that begin late": Form(
        text("user,is_new,clicked", lambda row: f"{row['user']},{row['item'] % 2},{_LATE[ROWS.index(row)]}"),
        USER | {"is_new": [row["item"] % 2 for row in ROWS]},
        _LATE,
    ),
    "counts without a name": Form(
        text(None, lambda row: f"{row['label'] * (1 + row['item'] % 3)}\t{row['item']}\t{row['user']}"),
        {"field2": "item", "field3": "user"},
        None,
        says=("No column of zeros and ones looks like a label",),
    ),
    "0.0 and 1.0": labelled("label", lambda label: f"{label:.1f}"),
}


@pytest.mark.parametrize("name", HELD)
def test_a_log_that_other_readers_stumble_on_is_read_as_proposed(name: str, tmp_path: Path) -> None:
    check_form(HELD[name], tmp_path)
