"""Labels, lists, times, codes and missing values as people write them: a log of 400 rows in each form.

The right values are those of the plain log: rows, labels of 1, distinct users, and so on.
"""

from __future__ import annotations

import datetime
import json
import random
import uuid
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hotset.pipeline.errors import InputError
from hotset.pipeline.stages.ingest import IngestConfig, ingest
from hotset.tests.support.logs.other_logs import columns_in

Row = dict[str, Any]


def _rows() -> list[Row]:
    luck = random.Random(7)
    rows = []
    for number in range(400):
        user, item = luck.randrange(40), luck.randrange(60)
        chance = 1 / (1 + np.exp(-(user * 7919 % 11 - 5) * 0.45 - (item * 104729 % 13 - 6) * 0.35))
        rows.append(
            {"user": 1000 + user, "item": 5000 + item, "price": round(luck.uniform(0.5, 90), 2)}
            | {"age": luck.randrange(18, 70), "ts": 1_700_000_000 + 977 * number}
            | {"label": int(luck.random() < chance)}
            | {"tags": sorted({item * 3 % 17, item * 5 % 17, user % 17})}
        )
    return rows


ROWS = _rows()


def read_csv(
    folder: Path, schema: str, columns: dict[str, Callable[[Row], Any]], quote: str = '"'
) -> dict[str, list[Any]]:
    """The columns that ingest makes of a CSV log, every field of which is quoted."""
    lines = [",".join(columns)]
    for row in ROWS:
        fields = (str(write(row)).replace('"', '""') for write in columns.values())
        lines.append(",".join(f"{quote}{field}{quote}" for field in fields))
    (folder / "log.csv").write_text("\n".join(lines) + "\n")
    config = IngestConfig(schema=f'format = "csv"\n{schema}')
    return columns_in(ingest([folder / "log.csv"], config, folder / "csv"))


def read_parquet(
    folder: Path, schema: str, columns: dict[str, Any], *, store_schema: bool = True
) -> dict[str, list[Any]]:
    """The columns that ingest makes of a Parquet log."""
    pq.write_table(pa.table(columns), folder / "log.parquet", store_schema=store_schema)
    config = IngestConfig(schema=f'format = "parquet"\n{schema}')
    return columns_in(ingest([folder / "log.parquet"], config, folder / "parquet"))


def column(name: str) -> list[Any]:
    return [row[name] for row in ROWS]


def test_the_plain_log_is_what_the_others_are_compared_with() -> None:
    assert (len(ROWS), sum(column("label"))) == (400, 203)
    assert (len(set(column("user"))), len(set(column("item")))) == (40, 60)
    assert sum(map(len, column("tags"))) == 1135 and len({t for row in ROWS for t in row["tags"]}) == 17


LABELS: dict[str, tuple[str, Callable[[Row], Any]]] = {
    "True and False": ('"label"', lambda row: bool(row["label"])),
    "true and false": ('"label"', lambda row: str(bool(row["label"])).lower()),
    "floats": ('"label"', lambda row: float(row["label"])),
    "floats with exponents": ('"label"', lambda row: f"{float(row['label']):.18e}"),
    "minus one": ('{ column = "label", positive = [1] }', lambda row: row["label"] * 2 - 1),
    "yes and no": ('{ column = "label", positive = ["yes"] }', lambda row: "yes" if row["label"] else "no"),
    "ratings": ('{ column = "label", above = 3 }', lambda row: 1 + row["label"] * 3 + row["age"] % 2),
    "counts": ('{ column = "label", above = 0 }', lambda row: row["label"] * (1 + row["age"] % 3)),
    "shares": ('{ column = "label", above = 0.5 }', lambda row: 0.25 + row["label"] / 2),
    "words": (
        '{ column = "label", positive = ["buy", "cart"] }',
        lambda row: ["pv", "fav", "buy", "cart"][row["label"] * 2 + row["age"] % 2],
    ),
}


@pytest.mark.parametrize("case", LABELS)
def test_labels_are_read_in_every_form(tmp_path: Path, case: str) -> None:
    label, write = LABELS[case]
    schema = f'label = {label}\n[sparse]\nuser = "integer"'
    found = read_csv(tmp_path, schema, {"user": lambda row: row["user"], "label": write})
    assert found["label"] == column("label") and found["user"] == column("user")
    values = [write(row) for row in ROWS]
    assert read_parquet(tmp_path, schema, {"user": column("user"), "label": values}) == found


def test_a_label_of_another_form_is_refused_with_the_forms(tmp_path: Path) -> None:
    for word in ("yes", "-1", "3", "2.5"):
        with pytest.raises(
            InputError, match=f"line 2, column 'label': found '{word}', want 0 or 1"
        ) as caught:
            columns = {"user": lambda row: row["user"], "label": lambda row: word}  # noqa: B023
            read_csv(tmp_path, 'label = "label"\n[sparse]\nuser = "integer"', columns)
        assert 'label = { column = "label", positive = ["yes"] }, or above = 3' in str(caught.value.hint)


IDS = {user: uuid.uuid5(uuid.NAMESPACE_DNS, f"u{user}") for user in range(1000, 1040)}


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("integer", pa.array([Decimal(user) for user in column("user")], pa.decimal128(38, 0))),
        ("integer", pa.array([Decimal(user) for user in column("user")], pa.decimal128(12, 2))),
        ("unsigned", pa.array([Decimal(user) for user in column("user")], pa.decimal256(60, 0))),
        ("text", pa.array([IDS[user].bytes for user in column("user")], pa.uuid())),
        ("text", pa.array([IDS[user].bytes for user in column("user")], pa.binary(16))),
        ("text", pa.array([json.dumps({"u": user}) for user in column("user")], pa.json_())),
        ("integer", pa.array([str(user).encode() for user in column("user")], pa.binary(4))),
    ],
)
def test_ids_of_parquet_are_read_in_every_type(tmp_path: Path, kind: str, values: Any) -> None:
    schema = f'label = "label"\n[sparse]\nuser = "{kind}"\nitem = "integer"'
    label = pa.array([Decimal(label) for label in column("label")], pa.decimal128(1, 0))
    table = {"user": values, "item": column("item"), "label": label}
    found = read_parquet(tmp_path, schema, table)
    assert found["label"] == column("label") and len(set(found["user"])) == 40
    assert kind == "text" or found["user"] == column("user")
    # Rows of one user have one category.
    assert len(set(zip(found["user"], column("user"), strict=True))) == 40


@pytest.mark.parametrize("store_schema", [True, False])
def test_a_uuid_is_the_text_that_csv_has(tmp_path: Path, store_schema: bool) -> None:
    """Also in files of other programs, which have no schema of Arrow."""
    schema = '[sparse]\nuser = "text"'
    columns = {"user": pa.array([IDS[user].bytes for user in column("user")], pa.uuid())}
    found = read_parquet(tmp_path, schema, columns, store_schema=store_schema)
    assert read_csv(tmp_path, schema, {"user": lambda row: IDS[row["user"]]}) == found


def test_decimals_that_no_integer_holds_are_named(tmp_path: Path) -> None:
    values = pa.array([Decimal(1), Decimal(2**63)], pa.decimal128(38, 0))
    with pytest.raises(InputError, match=r"row 2, column 'user': found 9223372036854775808, want an integer"):
        read_parquet(tmp_path, '[sparse]\nuser = "integer"', {"user": values})


LISTS: dict[str, tuple[str, Callable[[Row], Any]]] = {
    "Python": ('"brackets"', lambda row: row["tags"]),
    "JSON": ('"brackets"', lambda row: json.dumps([f"t{tag}" for tag in row["tags"]])),
    "Postgres": ('"brackets"', lambda row: "{" + ",".join(f't"{tag}"' for tag in row["tags"]) + "}"),
    "tuples": ('"brackets"', lambda row: tuple(row["tags"])),
    "NumPy": ('"brackets", separator = " "', lambda row: np.array(row["tags"])),
    "bars with blanks": ('true, separator = " | "', lambda row: " | ".join(map(str, row["tags"]))),
    "uneven blanks": ('"brackets", separator = "|"', lambda row: "| ".join(map(str, row["tags"])) + " |"),
    "blanks": ('true, separator = " "', lambda row: " ".join(f"N{tag}" for tag in row["tags"])),
    "carets": ('true, separator = "^"', lambda row: "^".join(map(str, row["tags"]))),
    "Hive": ('true, separator = "\\u0002"', lambda row: "\2".join(map(str, row["tags"]))),
    "arrows": ('true, separator = "→"', lambda row: "→".join(map(str, row["tags"]))),
    "weights": (
        'true, weight_separator = ":"',
        lambda row: "|".join(f"{tag}:{tag / 10}" for tag in row["tags"]),
    ),
    "objects": (
        '"brackets", weight_separator = ":"',
        lambda row: json.dumps({str(tag): tag / 10 for tag in row["tags"]}),
    ),
}


@pytest.mark.parametrize("case", LISTS)
def test_lists_are_read_in_every_form(tmp_path: Path, case: str) -> None:
    form, write = LISTS[case]
    schema = f'[sparse]\ntags = {{ kind = "text", list = {form} }}'
    found = read_csv(tmp_path, schema, {"tags": write})["tags"]
    assert sum(map(len, found)) == 1135 and len({tag for row in found for tag in row}) == 17
    tags = {
        tag: number
        for row, each in zip(ROWS, found, strict=True)
        for tag, number in zip(row["tags"], each, strict=True)
    }
    assert found == [[tags[tag] for tag in row["tags"]] for row in ROWS]
    texts = [str(write(row)) for row in ROWS]
    if '"brackets"' not in form and ", separator" not in form:
        schema = schema.replace("list = true", 'list = true, separator = "|"')
    assert read_parquet(tmp_path, schema, {"tags": texts})["tags"] == found


def test_a_separator_after_the_last_element_of_a_plain_list_has_a_missing_one(tmp_path: Path) -> None:
    schema = '[sparse]\ntags = { kind = "integer", list = true }'
    found = read_csv(tmp_path, schema, {"tags": lambda row: "|".join(map(str, row["tags"])) + "|"})
    assert found["tags"] == [[*row["tags"], None] for row in ROWS]


def moment(row: Row) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(row["ts"], datetime.UTC)


def without_zeros(row: Row) -> str:
    at = moment(row)
    return f"{at.year}-{at.month}-{at.day} {at.hour}:{at.minute:02}"


TIMES: dict[str, tuple[str, Callable[[Row], Any]]] = {
    "UTC": ("", lambda row: moment(row).strftime("%Y-%m-%d %H:%M:%S.%f UTC")),
    "a blank Z": ("", lambda row: moment(row).strftime("%Y-%m-%d %H:%M:%S Z")),
    "a blank offset": ("", lambda row: moment(row).strftime("%Y-%m-%d %H:%M:%S +0000")),
    "another offset": (
        "",
        lambda row: (moment(row) + datetime.timedelta(hours=8)).strftime("%Y-%m-%d %H:%M:%S +0800"),
    ),
    "no zeros": ("", without_zeros),
    "a comma": ("", lambda row: moment(row).strftime("%Y-%m-%dT%H:%M:%S,123Z")),
    "slashes": ("", lambda row: moment(row).strftime("%Y/%m/%d %H:%M:%S")),
    "small letters": ("", lambda row: moment(row).strftime("%Y-%m-%dt%H:%M:%Sz")),
    "Java": ("", lambda row: moment(row).strftime("%Y-%m-%dT%H:%M:%SZ[UTC]")),
    "Apache": (
        ', format = "%d/%b/%Y:%H:%M:%S %z"',
        lambda row: moment(row).strftime("%d/%b/%Y:%H:%M:%S +0000"),
    ),
    "17 digits": (', format = "%Y%m%d%H%M%S%f"', lambda row: moment(row).strftime("%Y%m%d%H%M%S000")),
    "AM and PM": (
        ', format = "%m/%d/%Y %I:%M:%S %p"',
        lambda row: moment(row).strftime("%m/%d/%Y %I:%M:%S %p"),
    ),
    "Avazu": (', format = "%y%m%d%H"', lambda row: moment(row).strftime("%y%m%d%H")),
    "Excel": (', format = "%d.%m.%Y %H:%M"', lambda row: moment(row).strftime("%d.%m.%Y %H:%M")),
    "seconds": (', unit = "s"', lambda row: row["ts"]),
    "float seconds": (', unit = "s"', lambda row: f"{row['ts']}.{row['age']:03}"),
    "exponents": (', unit = "s"', lambda row: f"{float(row['ts']):.18e}"),
}


@pytest.mark.parametrize("case", TIMES)
def test_times_are_read_in_every_form(tmp_path: Path, case: str) -> None:
    form, write = TIMES[case]
    kinds = ", ".join(f'{{ kind = "{kind}", name = "{kind}"{form} }}' for kind in ("hour", "weekday"))
    schema = f"[sparse]\nat = [{kinds}]"
    found = read_csv(tmp_path, schema, {"at": write})
    assert found["hour"] == [moment(row).hour for row in ROWS]
    assert found["weekday"] == [moment(row).isoweekday() for row in ROWS]
    assert (found["hour"][0], found["weekday"][0], len(set(found["hour"]))) == (22, 2, 24)
    values = [write(row) for row in ROWS]
    values = [int(each) for each in values] if case == "Avazu" else values
    assert read_parquet(tmp_path, schema, {"at": values}) == found


def test_double_seconds_and_a_zone_are_read(tmp_path: Path) -> None:
    schema = 'zone = "Asia/Shanghai"\n[sparse]\nat = { kind = "hour", unit = "s" }'
    found = read_parquet(tmp_path, schema, {"at": [row["ts"] + 0.25 for row in ROWS]})
    assert found["at"] == [(moment(row).hour + 8) % 24 for row in ROWS]
    assert read_csv(tmp_path, schema, {"at": lambda row: row["ts"]}) == found


def test_a_time_of_another_form_is_refused_with_what_to_write(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"line 2, column 'at': found '14/11/2023', want a time such as"
    ) as caught:
        read_csv(tmp_path, '[sparse]\nat = "weekday"', {"at": lambda row: moment(row).strftime("%d/%m/%Y")})
    assert 'format = "%d/%b/%Y:%H:%M:%S %z"' in str(caught.value.hint)


@pytest.mark.parametrize("word", ["\\N", "NULL", "nan", "-", "None", "NA"])
def test_words_for_a_missing_value_are_missing_in_text_columns_of_parquet(tmp_path: Path, word: str) -> None:
    schema = (
        f"missing = [{json.dumps(word)}]\n[dense]\nprice = 'float'\n[sparse]\nuser = 'integer'\nname = 'text'"
    )
    users = [str(row["user"]) if row["item"] % 7 else word for row in ROWS]
    prices = [str(row["price"]) if row["age"] % 5 else word for row in ROWS]
    found = read_parquet(tmp_path, schema, {"user": users, "name": users, "price": prices})
    assert (found["user"].count(None), found["name"].count(None), found["price"].count(None)) == (65, 65, 84)


def test_nan_is_missing_in_parquet(tmp_path: Path) -> None:
    nan = float("nan")
    users = pa.array([float(row["user"]) if row["item"] % 7 else nan for row in ROWS])
    prices = pa.array([row["price"] if row["age"] % 5 else nan for row in ROWS])
    schema = "[dense]\nprice = 'float'\n[sparse]\nuser = 'integer'"
    found = read_parquet(tmp_path, schema, {"user": users, "price": prices})
    assert (found["user"].count(None), found["price"].count(None)) == (65, 84)
    assert found["user"] == [row["user"] if row["item"] % 7 else None for row in ROWS]


def test_a_code_with_a_leading_zero_is_refused_wherever_it_is(tmp_path: Path) -> None:
    def zip_code(row: Row) -> str:
        return f"0{row['user']}" if row is ROWS[-1] else str(row["user"])

    schema = '[sparse]\nzip = "integer"'
    with pytest.raises(
        InputError, match=r"line 401, column 'zip': found '0[0-9]{4}', want an integer"
    ) as caught:
        read_csv(tmp_path, schema, {"zip": zip_code})
    assert "give column 'zip' the kind \"text\" in the schema" in str(caught.value.hint)
    assert len(set(read_csv(tmp_path, schema.replace("integer", "text"), {"zip": zip_code})["zip"])) == 41
