"""Files of the form of public samples: schema, preprocess, train and predict, as a user types them.

The names of their columns are published; all values are made up.
"""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hotset.pipeline.errors import HotsetError
from hotset.pipeline.infer_schema import propose_schema
from hotset.workflows.cli import main

_NUM_ROWS = 160
_CRITEO = ["label", *(f"I{number}" for number in range(1, 14)), *(f"C{number}" for number in range(1, 27))]
_AVAZU = (
    "id,click,hour,C1,banner_pos,site_id,site_domain,site_category,app_id,app_domain,app_category,device_id,"
    "device_ip,device_model,device_type,device_conn_type,C14,C15,C16,C17,C18,C19,C20,C21"
)
_START = datetime.datetime(2023, 11, 14, 22, 13, 20, tzinfo=datetime.UTC)


class _Row:
    """Values of a row, the same ones in every run: those of a user and an item come back."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.luck = random.Random(number)
        self.user = self.luck.randrange(30)
        self.item = self.luck.randrange(40)
        self.label = int(self.luck.random() < (0.2, 0.5, 0.8)[(self.user + self.item) % 3])
        self.seconds = int(_START.timestamp()) + 977 * number

    def integer(self, most: int = 9) -> str:
        return str(self.luck.randrange(most))

    def decimal(self) -> str:
        return f"{self.luck.randrange(1, 400) / 4:.2f}"

    def hex(self) -> str:
        return f"{self.luck.randrange(7) * 2654435761 % 2**32:08x}"

    def some(self, between: str, name: str = "{}") -> str:
        return between.join(name.format(self.luck.randrange(12)) for _ in range(self.luck.randrange(1, 5)))


@dataclass(frozen=True)
class _Sample:
    """A file, and what is proposed for it."""

    content: bytes | dict[str, list[Any]]
    label: str | None
    """Column of the label, None where the file has none."""
    kinds: dict[str, str]
    """Kinds of some features."""
    left_out: tuple[str, ...] = ()
    """Columns that must be no feature."""
    known: str = ""
    """Known log whose form it is."""
    refused: str = ""
    """What `hotset schema` says of a file without a category."""
    name: str = "log.csv"
    more: tuple[str, ...] = field(default=())
    """More options of `hotset preprocess`."""


def _text(header: str, write: Callable[[_Row], list[Any]], between: str = ",") -> bytes:
    lines = [between.join(map(str, write(_Row(number)))) for number in range(_NUM_ROWS)]
    return ("\n".join([*([header] if header else []), *lines]) + "\n").encode()


def _table(**columns: Callable[[_Row], Any]) -> dict[str, list[Any]]:
    rows = [_Row(number) for number in range(_NUM_ROWS)]
    return {name: [write(row) for row in rows] for name, write in columns.items()}


def _criteo_row(row: _Row) -> list[Any]:
    numbers = ["" if row.luck.random() < 0.2 else row.integer(500) for _ in range(13)]
    return [row.label, *numbers, *("" if row.luck.random() < 0.1 else row.hex() for _ in range(26))]


def _avazu_row(row: _Row) -> list[Any]:
    ids = [10**18 + 7919 * row.number, row.label, 14102100 + row.number // 40, 1005, row.integer(2)]
    names = [row.hex() for _ in range(9)]
    return [*ids, *names, 1, 0, *(row.integer(50) for _ in range(8))]


def _movie_row(row: _Row) -> list[Any]:
    words = f"Film {row.item} (199{row.item % 9})", row.some("|", "Genre{}")
    more = "FM"[row.user % 2], (18, 25, 35)[row.user % 3], row.user % 7, f"{row.user:05}"
    return [
        row.user,
        row.item,
        1 + 3 * row.label + row.item % 2,
        978_000_000 + 61 * row.number,
        *words,
        *more,
    ]


def _census_row(row: _Row) -> list[Any]:
    income = " 50000+." if row.label else " - 50000."
    words = (" Private", " Not in universe")[row.user % 2], " Married" if row.item % 3 else " Never married"
    return [row.user + 20, *words, f" {row.item}", f" {row.number * 7919 % 1999}.{row.user:02}", income]


def _shop_row(row: _Row) -> list[Any]:
    return [
        row.user,
        row.item,
        row.some("|"),
        f"{_START + datetime.timedelta(minutes=37 * row.number):%F %T}",
    ]


SAMPLES: dict[str, _Sample] = {
    "DeepCTR's Avazu": _Sample(_text(_AVAZU, _avazu_row), "click", {"site_id": "hex8"}, ("id",), "avazu"),
    "DeepCTR's Criteo": _Sample(
        _text(",".join(_CRITEO), _criteo_row), "label", {"I1": "dense", "C26": "hex8"}, (), "criteo-x4"
    ),
    "DeepCTR's MovieLens": _Sample(
        _text("user_id,movie_id,rating,timestamp,title,genres,gender,age,occupation,zip", _movie_row),
        "rating",
        {"user_id": "integer", "genres": "list text", "zip": "text", "timestamp_hour": "hour"},
    ),
    "DeepCTR's census": _Sample(_text("", _census_row), None, {"field1": "integer", "field2": "text"}),
    "FuxiCTR's CSV": _Sample(
        _text(
            "user_id,time_stamp,adgroup_id,price,click_sequence,clk",
            lambda row: [row.user, row.seconds, row.item, row.decimal(), row.some("^"), row.label],
        ),
        "clk",
        {"user_id": "integer", "price": "float", "click_sequence": "list integer", "time_stamp_hour": "hour"},
    ),
    "FuxiCTR's Parquet": _Sample(
        _table(
            user=lambda row: float(row.user), item=lambda row: float(row.item), click=lambda row: row.label
        ),
        "click",
        {"user": "integer", "item": "integer"},
        name="train.parquet",
    ),
    "FuxiCTR's tasks": _Sample(
        _text(
            "user,item,click,conversion",
            lambda row: [row.user, row.item, row.label, int(row.label and row.item % 3 > 0)],
        ),
        "click",
        {"user": "integer"},
        ("conversion",),
    ),
    "FuxiCTR's embeddings": _Sample(
        _table(id=lambda row: row.number, vector=lambda row: [row.luck.random() for _ in range(4)]),
        None,
        {},
        refused="no column could be a category",
        name="train.parquet",
    ),
    "RecBole's ml-100k.inter": _Sample(
        _text(
            "user_id:token\titem_id:token\trating:float\ttimestamp:float",
            lambda row: [row.user, row.item, 1 + 3 * row.label + row.item % 2, 881_250_949 - 61 * row.number],
            "\t",
        ),
        "rating:float",
        {"user_id:token": "integer", "timestamp:float_hour": "hour"},
        name="ml-100k.inter",
    ),
    "RecBole's ml-100k.item": _Sample(
        _text(
            "item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq",
            lambda row: [row.number, f"Film {row.number}", 1990 + row.item % 9, row.some(" ", "genre{}")],
            "\t",
        ),
        None,
        {"release_year:token": "integer", "class:token_seq": "list text"},
        name="ml-100k.item",
    ),
    "RecBole's ml-100k.user": _Sample(
        _text(
            "user_id:token\tage:token\tgender:token\toccupation:token\tzip_code:token",
            lambda row: [
                row.number,
                18 + row.user,
                "FM"[row.user % 2],
                f"work{row.item % 7}",
                f"{row.item:05}",
            ],
            "\t",
        ),
        None,
        {"age:token": "integer", "occupation:token": "text", "zip_code:token": "text"},
        name="ml-100k.user",
    ),
    "torch-rechub's Ali-CCP": _Sample(
        _text(
            "click,purchase,101,121,122,853,D109_14,508",
            lambda row: [
                *(row.label, int(row.label and row.item % 5 == 0), row.user, row.integer(), row.integer()),
                *(row.item, row.decimal(), row.integer(99)),
            ],
        ),
        "click",
        {"101": "integer", "853": "integer", "D109_14": "float"},
        ("purchase",),
    ),
    "torch-rechub's AliExpress": _Sample(
        _text(
            "categorical_1,categorical_2,numerical_1,numerical_2,click,conversion",
            lambda row: [
                *(row.user, row.item, row.decimal(), row.decimal()),
                *(row.label, int(row.label and row.item % 3 == 0)),
            ],
        ),
        "click",
        {"categorical_1": "integer", "numerical_2": "float"},
        ("conversion",),
    ),
    "torch-rechub's Yidian": _Sample(
        _text(
            ",userId,itemId,showPos,network,label",
            lambda row: [row.number, row.user, row.item, row.integer(), row.integer(4), row.label],
        ),
        "label",
        {"userId": "integer", "network": "integer"},
        ("",),
    ),
    "torch-rechub's census": _Sample(
        _text(
            "age,class of worker,marital status,wage per hour,income",
            lambda row: [row.user + 20, row.item % 5, row.item % 2, row.integer(60), row.label],
        ),
        "income",
        {"marital status": "integer", "age": "integer"},
    ),
    "torch-rechub's Amazon": _Sample(
        _text(
            "user_id,item_id,time,cate_id",
            lambda row: [
                row.number // 3,
                1000 + row.number * 7919 % 1999,
                1_300_000_000 + 86_400 * row.number,
                row.item % 9,
            ],
        ),
        None,
        {"user_id": "integer", "item_id": "integer", "cate_id": "integer"},
    ),
    "torch-rechub's Diginetica": _Sample(
        _text(
            "sessionId;userId;itemId;timeframe;eventdate",
            lambda row: [
                *(row.number // 4, "NA" if row.user % 3 else row.user, row.item, row.integer(10**6)),
                f"2016-05-{1 + row.number // 8:02}",
            ],
            ";",
        ),
        None,
        {"userId": "integer", "itemId": "integer", "eventdate_weekday": "weekday"},
    ),
    "torch-rechub's Avazu": _Sample(
        _text(
            ",".join(["label", *(f"feat_{number}" for number in range(1, 23))]),
            lambda row: [row.label, row.user, row.item, *(row.integer(30) for _ in range(20))],
        ),
        "label",
        {"feat_1": "integer", "feat_22": "integer"},
        known="avazu-x1",
        name="train_sample.csv",
    ),
    "torch-rechub's MovieLens": _Sample(
        _text("user_id,movie_id,rating,timestamp,title,genres,gender,age,occupation,zip", _movie_row),
        "rating",
        {"movie_id": "integer", "gender": "text"},
    ),
}
_QUICK = ("FuxiCTR's CSV", "RecBole's ml-100k.inter", "torch-rechub's Ali-CCP")


def _written(sample: _Sample, folder: Path) -> Path:
    raw = folder / sample.name
    if isinstance(sample.content, bytes):
        raw.write_bytes(sample.content)
    else:
        pq.write_table(pa.table(sample.content), raw)
    return raw


@pytest.mark.parametrize("name", SAMPLES)
def test_the_proposal_for_a_public_form_is_right(name: str, tmp_path: Path) -> None:
    sample = SAMPLES[name]
    raw = _written(sample, tmp_path)
    if sample.refused:
        with pytest.raises(HotsetError, match=sample.refused):
            propose_schema(raw)
        return
    schema = propose_schema(raw).schema
    assert schema.label == sample.label
    lists = dict(schema.lists)
    found = {name: f"{'list ' if name in lists else ''}{kind}" for name, kind in schema.kind_of.items()}
    found |= {name: "float" if name in schema.floats else "dense" for name in schema.dense}
    assert {name: found.get(name) for name in sample.kinds} == sample.kinds
    assert not {*sample.left_out} & {*schema.column_of.values()}


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[] if each in _QUICK else pytest.mark.slow) for each in SAMPLES]
)
def test_a_public_form_goes_from_schema_to_predictions(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sample = SAMPLES[name]
    raw, schema, data, run = (
        _written(sample, tmp_path),
        tmp_path / "s.toml",
        tmp_path / "data",
        tmp_path / "run",
    )
    status = main(["schema", str(raw)])
    said = capsys.readouterr()
    assert status == int(bool(sample.refused)) and (sample.known in said.err) and "Traceback" not in said.err
    if sample.refused:
        assert sample.refused in said.err
        return
    schema.write_text(said.out)
    sizes = ["--hot-bytes", "16KiB", "--embedding-dim", "4", "--batch-size", "16"]
    words = ["preprocess", str(raw), "--schema", str(schema), "--out", str(data), *sizes, *sample.more, "-q"]
    assert main(words) == 0, capsys.readouterr().err
    status = main(["train", str(data), "--out", str(run), "-q"])
    said = capsys.readouterr()
    if sample.label is None:
        assert status == 1 and "label" in said.err and "hint: " in said.err
        return
    assert status == 0, said.err
    assert main(["predict", str(run), str(raw), "--out", str(tmp_path / "scores.parquet"), "-q"]) == 0
    scores = pq.read_table(tmp_path / "scores.parquet")
    assert scores.num_rows == _NUM_ROWS
