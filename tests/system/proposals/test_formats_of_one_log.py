"""A run trained on one format of a log predicts the others, by the schema proposed for the first."""

from __future__ import annotations

import datetime
import json
import random
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hotset.workflows.cli import main

_NUM_ROWS = 240
_START = datetime.datetime(2023, 11, 14, 22, 13, 20)
_TYPES = {
    "user": pa.uint32(),
    "price": pa.float64(),
    "cost": pa.decimal128(9, 2),
    "at": pa.timestamp("us"),
    "tags": pa.list_(pa.int32()),
    "words": pa.large_list(pa.string()),
}


def _rows() -> list[dict[str, Any]]:
    luck = random.Random(3)
    return [
        {
            "clicked": luck.random() < 0.4,
            "user": luck.randrange(30),
            "member": luck.choice([True, False, None]),
            "new": luck.random() < 0.3,
            "price": luck.choice([None, 0.5, 12.25, 1e-3]),
            "cost": Decimal(luck.randrange(1, 10_000)) / 100,
            "at": _START + datetime.timedelta(seconds=977 * row),
            "ts": 1_700_000_000 + 977 * row,
            "day": (_START + datetime.timedelta(hours=row)).date(),
            "tags": luck.choice([None, [luck.randrange(9) for _ in range(luck.randrange(1, 4))]]),
            "words": [f"w{luck.randrange(9)}" for _ in range(luck.randrange(1, 4))],
            "city": luck.choice([None, "São Paulo", 'the "C"', "a, b"]),
            "code": f"{luck.randrange(90):05}",
            "site": f"{luck.randrange(9) * 2654435761 % 2**32:08x}",
        }
        for row in range(_NUM_ROWS)
    ]


def _table(rows: list[dict[str, Any]]) -> Any:
    return pa.table({name: pa.array([row[name] for row in rows], _TYPES.get(name)) for name in rows[0]})


def _text_of(value: Any) -> str:
    if isinstance(value, list):
        return "|".join(map(str, value))
    return "" if value is None else str(value)


def _separated(rows: list[dict[str, Any]], separator: str) -> bytes:
    def field(value: Any) -> str:
        text = _text_of(value)
        return '"' + text.replace('"', '""') + '"' if '"' in text or separator in text else text

    lines = [separator.join(rows[0]), *(separator.join(map(field, row.values())) for row in rows)]
    return ("\n".join(lines) + "\n").encode()


def _json_value(value: Any) -> Any:
    if isinstance(value, Decimal):
        return float(value)
    return str(value) if isinstance(value, datetime.date) else value


def _write_arrow(path: Path, rows: list[dict[str, Any]]) -> None:
    table = _table(rows)
    with pa.ipc.new_file(path, table.schema) as file:
        file.write_table(table)


WRITERS: dict[str, Callable[[Path, list[dict[str, Any]]], Any]] = {
    "csv": lambda path, rows: path.write_bytes(_separated(rows, ",")),
    "tsv": lambda path, rows: path.write_bytes(_separated(rows, "\t")),
    "json": lambda path, rows: path.write_text(
        "".join(json.dumps({name: _json_value(row[name]) for name in row}) + "\n" for row in rows)
    ),
    "parquet": lambda path, rows: pq.write_table(_table(rows), path),
    "arrow": _write_arrow,
}


@pytest.mark.parametrize(
    "trained", [pytest.param(each, marks=[] if each == "csv" else pytest.mark.slow) for each in WRITERS]
)
def test_a_run_predicts_every_format_of_its_log(
    trained: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, write in WRITERS.items():
        write(tmp_path / f"log.{name}", _rows())
    log, data, run = str(tmp_path / f"log.{trained}"), str(tmp_path / "data"), str(tmp_path / "run")
    assert main(["schema", log]) == 0
    (tmp_path / "schema.toml").write_text(capsys.readouterr().out)
    words = ["preprocess", log, "--schema", str(tmp_path / "schema.toml"), "--out", data, "-q"]
    assert main([*words, "--hot-bytes", "64KiB", "--embedding-dim", "4", "--batch-size", "16"]) == 0
    assert main(["train", data, "--out", run, "-q"]) == 0, capsys.readouterr().err
    scores = {}
    for name in WRITERS:
        out = tmp_path / f"{name}-scores.parquet"
        status = main(["predict", run, str(tmp_path / f"log.{name}"), "--out", str(out), "-q"])
        assert status == 0, f"{name}: {capsys.readouterr().err}"
        scores[name] = pq.read_table(out).to_pydict()
    assert len(next(iter(scores[trained].values()))) == _NUM_ROWS
    assert [name for name, found in scores.items() if found != scores[trained]] == []
