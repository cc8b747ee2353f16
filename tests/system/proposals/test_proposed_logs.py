"""Logs as people have them: each is proposed a schema that reads what was written.

The forms are those of public logs and of reports about other readers: types of Parquet, marks in text and
ways to write numbers among them. All values are made up.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_DNS, uuid5

import pyarrow as pa
import pytest

from hotset.tests.support.logs.forms_of_logs import (
    HEAD,
    LINE,
    READS,
    ROWS,
    START,
    USER,
    Form,
    Row,
    check_form,
    column,
    gap,
    hashes,
    holed,
    labelled,
    listed,
    moment,
    text,
    timed,
)


def two_lines(row: Row) -> str:
    return "a\nb" if row["item"] % 9 else "c"


def stray_quote(row: Row) -> str:
    return '"best' if row["item"] % 9 else "c"


STARS = [1 + row["label"] * 3 + row["item"] % 2 for row in ROWS]
UUIDS = [str(uuid5(NAMESPACE_DNS, str(user))) for user in column("user")]
CODES = [f"{row['user'] - 1000:05}" for row in ROWS]

FORMS: dict[str, Form] = {
    # The header: names that are missing, numbers, there twice, or in another encoding.
    "pandas index": Form(
        text("," + HEAD, lambda r: f"{ROWS.index(r)}," + LINE.format(**r)), READS, left_out=("",)
    ),
    "a name twice": Form(
        text("user,item,user,label", "{user},{item},{user},{label}"),
        {"item": "item"},
        left_out=("user", "user"),
    ),
    "a separator more": Form(text(HEAD + ",", LINE + ","), READS, left_out=("",)),
    "names are numbers": Form(
        text("label,0,1,2", "{label},{user},{item},{price}"), {"0": "user", "1": "item", "2": "price"}
    ),
    "a name is hexadecimal": Form(text("label,deadbeef", "{label},{user}"), {"deadbeef": "user"}),
    "a name is missing in the middle": Form(
        text("user,,label", "{user},{item},{label}"), USER, left_out=("",)
    ),
    "a name is a date": Form(
        text("user,2024-01-01,label", "{user},{item},{label}"), USER | {"2024-01-01": "item"}
    ),
    "names in GBK": Form(
        text("用户,物品,label", "{user},{item},{label}", encoding="gbk"),
        {"用户": "user", "物品": "item"},
        says=("encoding is a guess",),
    ),
    "names in Latin-1": Form(
        text("user,catégorie,label", "{user},{cat},{label}", encoding="latin-1"), USER | {"catégorie": "cat"}
    ),
    "row names of R": Form(
        text(HEAD, lambda r: f"r{ROWS.index(r) % 90}," + LINE.format(**r)),
        READS | {"row": hashes([f"r{row % 90}" for row in range(400)])},
    ),
    "typed names": Form(
        text(
            "user_id:token,item_id:token,timestamp:float,label:float", "{user},{item},{ts},{label}", sep="\t"
        ),
        {
            "user_id:token": "user",
            "item_id:token": "item",
            "timestamp:float_hour": [moment(r).hour for r in ROWS],
            "timestamp:float_weekday": [moment(r).isoweekday() for r in ROWS],
        },
    ),
    # Lines and fields.
    "a separator more in the rows": Form(text(HEAD, LINE + ","), READS, left_out=("unnamed",)),
    "a tab more in the rows": Form(text(HEAD, LINE + "\t", sep="\t"), READS, left_out=("unnamed",)),
    "a separator more in the header": Form(text(HEAD + ",", LINE), READS),
    "blanks behind separators": Form(
        text(HEAD.replace(",", ", "), LINE.replace(",", ", ")), READS, says=("trim = true",)
    ),
    "two colons": Form(
        text(None, "{user},{item},{label},{ts}", sep="::"),
        {"field1": "user", "field2": "item"},
        "label",
        says=("The label is a guess",),
    ),
    "control characters": Form(
        text(None, "{label},{user},{cat}", sep="\x01"), {"field2": "user", "field3": "cat"}, "label"
    ),
    "blanks": Form(text("label user item", "{label} {user} {item}"), USER | {"item": "item"}),
    "a remark first": Form(text(HEAD, LINE, above="# exported by job 17\n"), READS),
    "a line of dashes in quotes first": Form(text(HEAD, LINE, above='"Report, of January"\n\n'), READS),
    "titles first": Form(text(HEAD, LINE, above="Report: clicks\nRange: January\n\n"), READS),
    "an empty line first": Form(text(HEAD, LINE, above="\n"), READS),
    "empty lines last": Form(text(HEAD, LINE, below="\n\n"), READS),
    "remarks between": Form(
        text(HEAD, lambda r: LINE.format(**r) + ("\n# next day" if r["item"] == 5007 else "")),
        READS,
        says=('comment = "#"',),
    ),
    "Excel's first line": Form(text(HEAD, LINE, sep=";", above="sep=;\n"), READS),
    "two returns": Form(text(HEAD, LINE, end="\r\r\n"), READS),
    "UTF-16": Form(text(HEAD, LINE, encoding="utf-16"), READS),
    "a footer": Form(
        text(HEAD, LINE, below="(400 rows affected)\n"), READS, says=("The last line has 1 field",), skips=1
    ),
    "the header again": Form(
        text(HEAD, LINE, below=HEAD + "\n"), READS, says=("Lines that repeat the header: 1",), skips=1
    ),
    "semicolons and commas": Form(
        text(
            "user;item;price;label",
            lambda r: f"{r['user']};{r['item']};{str(r['price']).replace('.', ',')};{r['label']}",
        ),
        USER | {"item": "item", "price": hashes([str(p).replace(".", ",") for p in column("price")])},
        says=("decimals with a comma",),
    ),
    "a backslash before quotes": Form(
        text("user,q,label", lambda r: '{},"a \\"b\\" {}",{}'.format(r["user"], r["item"] % 5, r["label"])),
        USER | {"q": hashes([f'a "b" {i % 5}' for i in column("item")])},
        says=("escape = ",),
    ),
    "a line end in quotes": Form(
        text("user,q,label", lambda r: f'{r["user"]},"{two_lines(r)}",{r["label"]}'),
        USER | {"q": hashes(list(map(two_lines, ROWS)))},
    ),
    "quotes that are no quotes": Form(
        text("user\tq\tlabel", lambda r: f"{r['user']}\t{stray_quote(r)}\t{r['label']}"),
        USER | {"q": hashes(list(map(stray_quote, ROWS)))},
        says=('quote = "none"',),
    ),
    # Which column is the label, and which ones know it.
    "clk and nonclk": Form(
        text("user,ad,nonclk,clk", lambda r: f"{r['user']},{r['item']},{1 - r['label']},{r['label']}"),
        USER | {"ad": "item"},
        left_out=("nonclk",),
    ),
    "clicked and not": Form(
        text("not_served,clicked,user", lambda r: f"{1 - r['label']},{r['label']},{r['user']}"),
        USER,
        left_out=("not_served",),
    ),
    "click and conversion": Form(
        text(
            "user,conversion,click",
            lambda r: f"{r['user']},{int(r['label'] and r['item'] % 3 > 0)},{r['label']}",
        ),
        USER,
        left_out=("conversion",),
    ),
    "click and what was paid": Form(
        text("user,paid_usd,click", lambda r: f"{r['user']},{r['label'] * r['price']},{r['label']}"),
        USER,
        left_out=("paid_usd",),
    ),
    "click, like and seconds": Form(
        text(
            "user,is_like,is_click,seconds",
            lambda r: ",".join(
                map(
                    str,
                    (
                        r["user"],
                        int(r["label"] and r["item"] % 4 == 0),
                        r["label"],
                        r["label"] * (r["item"] % 50),
                    ),
                )
            ),
        ),
        USER,
        left_out=("is_like", "seconds"),
    ),
    "income and marital status": Form(
        text("marital status,age,income", lambda r: f"{r['user'] % 2},{r['item'] % 60},{r['label']}"),
        {"marital status": [u % 2 for u in column("user")], "age": [i % 60 for i in column("item")]},
    ),
    "no name": Form(
        text("user,gender,is_new", lambda r: f"{r['user']},{r['user'] % 2},{r['label']}"),
        USER | {"gender": [u % 2 for u in column("user")], "is_new": "label"},
        None,
        says=("It could be 'gender', 'is_new'",),
    ),
    # Missing values.
    **{
        f"missing as {word}": holed(word)
        for word in ("\\N", "nan", "NaN", "NULL", "None", "-", "NA", '"NA"', "#N/A", "(null)", "<NA>")
    },
    "missing as two words": Form(
        text(
            "user,item,label",
            lambda r: f"{gap(r, 'user', 'NULL')},{'-' if r['user'] % 9 == 0 else r['item']},{r['label']}",
        ),
        {
            "user": [None if r["item"] % 7 == 0 else r["user"] for r in ROWS],
            "item": [None if r["user"] % 9 == 0 else r["item"] for r in ROWS],
        },
        says=('missing = ["-", "NULL"]',),
    ),
    "no time": Form(
        text(
            "user,at,label",
            lambda r: (
                f"{r['user']},{moment(r).strftime('%Y-%m-%d %H:%M') if r['item'] % 7 else 'NaT'},{r['label']}"
            ),
        ),
        USER
        | {
            "at_hour": [moment(r).hour if r["item"] % 7 else None for r in ROWS],
            "at_weekday": [moment(r).isoweekday() if r["item"] % 7 else None for r in ROWS],
        },
    ),
    "NA is a word": Form(
        text("user,country,label", lambda r: f"{r['user']},{('NA', 'DE', 'FR')[r['item'] % 3]},{r['label']}"),
        USER | {"country": hashes([("NA", "DE", "FR")[i % 3] for i in column("item")])},
    ),
    "NaN in Parquet": Form(
        {
            "user": [float("nan") if r["item"] % 7 == 0 else float(r["user"]) for r in ROWS],
            "label": column("label"),
        },
        {"user": [None if r["item"] % 7 == 0 else r["user"] for r in ROWS]},
    ),
    "null in Parquet's text": Form(
        {"user": ["null" if r["item"] % 7 == 0 else str(r["user"]) for r in ROWS], "label": column("label")},
        {"user": [None if r["item"] % 7 == 0 else r["user"] for r in ROWS]},
    ),
    # Labels.
    "True and False": labelled("label", lambda y: str(bool(y))),
    "true and false in Parquet's text": Form(
        {"user": column("user"), "label": [str(bool(y)).lower() for y in column("label")]}, USER
    ),
    "-1 and 1": labelled("label", lambda y: str(2 * y - 1), says=("above = 0",)),
    "1 and 2": labelled("y", lambda y: str(1 + y), says=("above = 1.5",)),
    "1.0e+00": labelled("label", lambda y: f"{y:.6e}"),
    "yes and no": labelled("clicked", lambda y: "yes" if y else "no", says=('positive = ["yes"]',)),
    "t and f": labelled("is_click", lambda y: "t" if y else "f", says=('positive = ["t"]',)),
    "decimals": Form(
        {
            "user": column("user"),
            "label": pa.array([Decimal(y) for y in column("label")], pa.decimal128(1, 0)),
        },
        USER,
    ),
    "a label is missing": replace(
        labelled("label", lambda y: str(y)),
        content=text("user,label", lambda r: f"{r['user']},{'' if r['ts'] == START else r['label']}"),
        skips=1,
        says=("1 rows have no label",),
    ),
    "ratings": Form(
        text(
            "user_id,item_id,rating,timestamp,gender",
            lambda r: (
                f"{r['user']},{r['item']},{1 + r['label'] * 3 + r['item'] % 2},{r['ts']},{r['user'] % 2}"
            ),
        ),
        {"user_id": "user", "item_id": "item", "gender": [u % 2 for u in column("user")]},
        "label",
        says=('label = { column = "rating", above = 3.0 }', "a guess"),
    ),
    "ratings by half stars": Form(
        text("user,stars", lambda r: f"{r['user']},{(1 + r['label'] * 3 + r['item'] % 2) - 0.5}"),
        USER,
        [int(stars > 3.5) for stars in STARS],
        says=("a guess",),
    ),
    "counts of clicks": Form(
        text("user,clicks", lambda r: f"{r['user']},{r['label'] * (1 + r['item'] % 3)}"),
        USER,
        says=("above = 0",),
    ),
    # Lists.
    "a Python list": listed(lambda tags: str(tags)),
    "a JSON list": listed(
        lambda tags: "[" + ",".join(f'"t{tag}"' for tag in tags) + "]",
        tags=[hashes([f"t{tag}" for tag in row["tags"]]) for row in ROWS],
    ),
    "a Postgres list": listed(lambda tags: "{" + ",".join(map(str, tags)) + "}"),
    "a NumPy list": listed(lambda tags: "[" + " ".join(map(str, tags)) + "]"),
    "a tuple": listed(lambda tags: "(" + ", ".join(map(str, tags)) + ")"),
    "blanks between codes": listed(
        lambda tags: " ".join(f"N{tag}" for tag in tags),
        tags=[hashes([f"N{tag}" for tag in row["tags"]]) for row in ROWS],
    ),
    "carets between": listed(lambda tags: "^".join(map(str, tags))),
    "control characters between": listed(lambda tags: "\x02".join(map(str, tags))),
    "bars and blanks between": listed(
        lambda tags: " | ".join(f"w{tag}" for tag in tags),
        tags=[hashes([f"w{tag}" for tag in row["tags"]]) for row in ROWS],
    ),
    "weights": listed(
        lambda tags: "|".join(f"{tag}:{tag / 10}" for tag in tags), says=('weight_separator = ":"',)
    ),
    "weights behind equals signs": listed(
        lambda tags: ";".join(f"{tag}={tag + 1}" for tag in tags), says=('weight_separator = "="',)
    ),
    "codes in a list": listed(
        lambda tags: "|".join(f"{tag:03}" for tag in tags),
        tags=[hashes([f"{tag:03}" for tag in row["tags"]]) for row in ROWS],
    ),
    "lists in Parquet's text": Form(
        {"user": column("user"), "tags": [str(tags) for tags in column("tags")], "label": column("label")},
        USER | {"tags": "tags"},
    ),
    "thousands": Form(
        text(
            "user\tviews\tlabel", lambda r: f"{r['user']}\t{r['item'] * 1000 + r['user']:,}.5\t{r['label']}"
        ),
        USER | {"views": hashes([f"{r['item'] * 1000 + r['user']:,}.5" for r in ROWS])},
        says=("commas between thousands",),
    ),
    # Times.
    **{
        f"time {format}": timed(format)
        for format in (
            "%Y-%m-%d %H:%M:%S.%f UTC",
            "%Y-%m-%d %H:%M:%S +0000",
            "%d/%b/%Y:%H:%M:%S +0000",
            "%Y%m%d%H%M%S000",
            "%m/%d/%Y %I:%M:%S %p",
            "%Y-%m-%dT%H:%M:%S.123Z",
            "%y%m%d%H",
            "%Y/%m/%d %H:%M:%S",
            "%Y-%m-%dt%H:%M:%Sz",
            "%Y-%m-%dT%H:%M:%SZ[UTC]",
            "%d %b %Y %H:%M",
            "%a, %d %b %Y %H:%M:%S GMT",
            "%Y%m%dT%H%M%SZ",
            "%d.%m.%Y %H:%M:%S",
            "%a %b %d %H:%M:%S +0000 %Y",
        )
    },
    "seconds and fractions": timed(lambda row: f"{row['ts']}.{row['item'] % 1000:03}"),
    "unpadded times": timed(
        lambda row: "{0.year}-{0.month}-{0.day} {0.hour}:{0.minute:02}".format(moment(row))
    ),
    "milliseconds": timed(lambda row: f"{row['ts'] * 1000 + 7}"),
    "seconds of 1998": Form(
        text("user,timestamp,label", lambda r: f"{r['user']},{r['ts'] - 820_000_000},{r['label']}"),
        USER
        | {
            "timestamp_hour": [(moment(r) - datetime.timedelta(seconds=820_000_000)).hour for r in ROWS],
            "timestamp_weekday": [
                (moment(r) - datetime.timedelta(seconds=820_000_000)).isoweekday() for r in ROWS
            ],
        },
    ),
    # Numbers that are names.
    "codes": Form(text("zip,label", lambda r: f"{r['user'] - 1000:05},{r['label']}"), {"zip": hashes(CODES)}),
    "codes of which few have zeros": Form(
        text("zip,label", lambda r: f"{r['user'] - 1000:02},{r['label']}"),
        {"zip": hashes([f"{u - 1000:02}" for u in column("user")])},
    ),
    "codes with zeros at the end of the log": Form(
        text("zip,label", lambda r: f"{'0' if r['ts'] == START + 977 * 399 else ''}{r['user']},{r['label']}"),
        {"zip": hashes([*map(str, column("user")[:-1]), f"0{ROWS[-1]['user']}"])},
    ),
    # Parquet's types.
    "decimals without digits behind the point": Form(
        {
            "user": pa.array([Decimal(u) for u in column("user")], pa.decimal128(38, 0)),
            "price": pa.array([Decimal(f"{p:.4f}") for p in column("price")], pa.decimal128(18, 4)),
            "label": column("label"),
        },
        USER | {"price": "price"},
    ),
    "UUIDs": Form(
        {
            "user": pa.array([uuid5(NAMESPACE_DNS, str(u)).bytes for u in column("user")], pa.uuid()),
            "label": column("label"),
        },
        {"user": hashes(UUIDS)},
    ),
}


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

FORMS |= {
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


@pytest.mark.parametrize("name", FORMS)
def test_a_log_as_people_have_it_is_read_as_proposed(name: str, tmp_path: Path) -> None:
    check_form(FORMS[name], tmp_path)
