"""Records are written as they are declared, and refused where a key is missing or of another type.

Tests `table_info`, `stage_totals` and `file_facts`, too.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import pytest

from hotset.pipeline.errors import ManifestError
from hotset.pipeline.folders.file_facts import ShardFacts
from hotset.pipeline.folders.json_record import JsonRecord, RecordError, stored_as
from hotset.pipeline.folders.manifest import FileEntry, Manifest
from hotset.pipeline.folders.stage_totals import CountsTotals, SpanInfo, VocabularyTotals
from hotset.pipeline.folders.table_info import CountedTable, PlannedTable, SampleTable, VocabularyTable


@dataclass(frozen=True, kw_only=True, slots=True)
class Inner(JsonRecord):
    name: str
    is_odd: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Outer(JsonRecord):
    num_bytes: int = stored_as("bytes")
    share: float
    kind: Literal["a", "b"]
    file: int | None
    parts: tuple[Inner, ...]
    pair: tuple[int, int] | None = None
    counts: dict[str, int] = field(default_factory=dict)
    others: dict[str, dict] = field(default_factory=dict)  # type: ignore[type-arg]


FULL = {
    "bytes": 7,
    "share": 0.5,
    "kind": "b",
    "file": None,
    "parts": [{"name": "x"}, {"name": "y", "is_odd": True}],
    "pair": [1, 2],
    "counts": {"z": 3},
    "others": {"scheduler": {"rate": 1}},
}


def test_a_record_is_read_and_written_key_by_key_in_order() -> None:
    record = Outer.from_json(FULL)
    assert record.parts == (Inner(name="x"), Inner(name="y", is_odd=True)) and record.pair == (1, 2)
    assert json.dumps(record.to_json()) == json.dumps(FULL)


def test_values_that_are_the_default_are_left_out() -> None:
    record = replace(Outer.from_json(FULL), pair=None, counts={}, file=None, others={})
    assert record.to_json() == {key: FULL[key] for key in ("bytes", "share", "kind", "file", "parts")}
    assert Outer.from_json(record.to_json()) == record


def test_keys_that_are_no_fields_are_left_alone() -> None:
    assert Outer.from_json(FULL | {"of a later version": 1}) == Outer.from_json(FULL)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bytes": "7"}, "totals.bytes is '7', want a whole number"),
        ({"bytes": True}, "totals.bytes is True, want a whole number"),
        ({"bytes": 7.0}, "totals.bytes is 7.0, want a whole number"),
        ({"bytes": None}, "totals.bytes is None, want a whole number"),
        ({"bytes": -1}, "totals.bytes is -1, want 0 or more"),
        ({"bytes": 2**63}, f"totals.bytes is {2**63}, want 0 to {2**63 - 1}"),
        ({"pair": [1, -2]}, "totals.pair[1] is -2, want 0 or more"),
        ({"counts": {"z": -3}}, "totals.counts.z is -3, want 0 or more"),
        ({"share": float("nan")}, "totals.share is nan, want a finite number"),
        ({"share": float("-inf")}, "totals.share is -inf, want a finite number"),
        ({"share": "much"}, "totals.share is 'much', want a number"),
        ({"kind": "c"}, "totals.kind is 'c', want one of a, b"),
        ({"parts": {}}, "totals.parts is {}, want an array"),
        ({"parts": [{"name": 1}]}, "totals.parts[0].name is 1, want a string"),
        ({"parts": [{}]}, "totals.parts[0].name is missing"),
        ({"parts": [3]}, "totals.parts[0] is 3, want an object"),
        ({"parts": [{"name": "x", "is_odd": 1}]}, "totals.parts[0].is_odd is 1, want true or false"),
        ({"pair": [1]}, "totals.pair has 1 values, want 2"),
        ({"counts": []}, "totals.counts is [], want an object"),
        ({"others": {"scheduler": [1]}}, "totals.others.scheduler is [1], want an object"),
        ({"counts": {"z": "x" * 99}}, f"totals.counts.z is '{'x' * 38}…, want a whole number"),
    ],
)
def test_other_values_are_refused_by_key(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RecordError) as error:
        Outer.from_json(FULL | changes, "totals")
    assert str(error.value) == message


def test_a_missing_key_is_named() -> None:
    with pytest.raises(RecordError, match=r"^totals\.share is missing$"):
        Outer.from_json({key: value for key, value in FULL.items() if key != "share"}, "totals")


def manifest_of(totals: dict[str, Any], facts: dict[str, Any]) -> Manifest:
    entry = FileEntry("a.arrow", 1, 2, "00" * 16, facts)
    return Manifest(Path("dir"), "any", 1, {}, [], [entry], totals, "00" * 16)


def test_a_manifest_names_the_file_and_the_key_at_fault() -> None:
    totals = {"num_samples": 1, "num_train_samples": 1, "tables": [], "num_rows": "many"}
    manifest = manifest_of(totals, {"kind": "mixed"})
    with pytest.raises(ManifestError, match=r"^dir/manifest\.json is damaged: totals\.num_rows is 'many'"):
        VocabularyTotals.of(manifest)
    with pytest.raises(ManifestError, match=r"files\.a\.arrow\.batches is missing$"):
        ShardFacts.of(manifest, manifest.files[0])


def test_totals_are_read_once() -> None:
    manifest = manifest_of({"num_samples": 1, "num_train_samples": 1, "tables": [], "num_rows": 0}, {})
    assert VocabularyTotals.of(manifest) is VocabularyTotals.of(manifest)


def test_what_a_log_does_not_have_is_not_in_its_manifest() -> None:
    table = CountedTable(name="C1", num_categories=3, num_missing=0)
    span = SpanInfo(file=None, first_sample=0, num_samples=4, xxh3_128_of_parts="00")
    totals = CountsTotals(num_samples=5, num_train_samples=4, tables=(table,), spans=(span,))
    assert totals.to_json() == {
        "num_samples": 5,
        "num_train_samples": 4,
        "tables": [{"name": "C1", "num_categories": 3, "num_missing": 0}],
        "spans": [{"file": None, "first_sample": 0, "num_samples": 4, "xxh3_128_of_parts": "00"}],
    }


def test_a_record_is_extended_by_more_fields() -> None:
    ranked = VocabularyTable(name="C1", num_rows=5, oov_id=4, missing_id=3, oov_count=2, is_multi_hot=True)
    table = ranked.extended(SampleTable, oov_train=1, oov_evaluation=0, lookups_train=9, lookups_evaluation=0)
    assert list(table.to_json()) == [
        *("name", "num_rows", "oov_id", "missing_id", "oov_count", "is_multi_hot"),
        *("oov_train", "oov_evaluation", "lookups_train", "lookups_evaluation"),
    ]
    planned = PlannedTable(name="C1", num_rows=5, oov_id=4, missing_id=3, num_hot=2)
    assert list(planned.to_json()) == ["name", "num_rows", "oov_id", "missing_id", "num_hot"]
