"""Logs as people have them: each is proposed a schema that reads what was written.

The forms are those of public logs and of reports about other readers. All values are made up.
"""

from __future__ import annotations

import datetime
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
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


@pytest.mark.parametrize("name", FORMS)
def test_a_log_as_people_have_it_is_read_as_proposed(name: str, tmp_path: Path) -> None:
    check_form(FORMS[name], tmp_path)
