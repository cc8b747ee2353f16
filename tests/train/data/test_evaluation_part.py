"""Parts of the evaluation samples, whose batches begin with the first sample of the part.

Tests `joined_batches`, too.
"""

from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.train.data.batch import Batch
from hotset.train.data.evaluation_part import EvaluationPart, Part
from hotset.train.data.shards import Shards

PARTS: tuple[Part, ...] = ("validation", "test")


def samples_of(batch: Batch) -> list[Any]:
    """The samples of a batch, one by one."""
    assert batch.is_hot_B is not None and not batch.is_hot_only
    lists = [
        [bags.ids_N[first:stop].tolist() for first, stop in pairwise(bags.offsets_B1.tolist())]
        for bags in batch.bags
    ]
    columns = [
        batch.label_B.tolist(),
        batch.dense_BK.tolist(),
        batch.ids_BF.tolist(),
        batch.is_hot_B.tolist(),
    ]
    return list(zip(*columns, *lists, strict=True))


def stored_samples(shards: Shards) -> list[Any]:
    batches = (shards.evaluation_batch(number) for number in range(shards.num_evaluation_batches))
    return [sample for batch in batches for sample in samples_of(batch)]


@given(
    num_evaluation=st.integers(0, 23),
    share=st.floats(0, 1),
    batch_size=st.integers(1, 9),
    multi_hot=st.sampled_from([(), (0,), (0, 2)]),
    has_other_hot_rows=st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_each_part_is_cut_as_a_log_of_its_samples_alone(
    num_evaluation: int, share: float, batch_size: int, multi_hot: tuple[int, ...], has_other_hot_rows: bool
) -> None:
    num_validation = round(share * num_evaluation)
    spec = ShardSpec(
        num_hot_only=0,
        num_mixed=1,
        num_evaluation=num_evaluation,
        num_validation=num_validation,
        batch_size=batch_size,
        multi_hot=multi_hot,
    )
    with tempfile.TemporaryDirectory() as folder:
        shards = Shards.open(write_shards(Path(folder) / "shards", spec))
        if has_other_hot_rows:
            shards = shards.with_hot_rows([1 for _ in shards.tables])
        samples = stored_samples(shards)
        wanted = {"validation": samples[:num_validation], "test": samples[num_validation:]}
        for name in PARTS:
            part = EvaluationPart(shards, name)
            found = [samples_of(part.batch(number)) for number in part.numbers]
            log = wanted[name]
            assert found == [log[first : first + batch_size] for first in range(0, len(log), batch_size)]
            assert part.num_samples == len(log)
            # In any order, and from another reader.
            other = EvaluationPart(shards, name)
            assert [samples_of(other.batch(number)) for number in reversed(part.numbers)] == found[::-1]


def test_each_stored_batch_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = Shards.open(write_shards(tmp_path / "shards", num_validation=40))
    read: list[int] = []
    stored = shards.evaluation_batch

    def reading(number: int) -> Batch:
        read.append(number)
        return stored(number)

    monkeypatch.setattr(shards, "evaluation_batch", reading)
    part = EvaluationPart(shards, "test")
    assert [part.batch(number).num_samples for number in part.numbers] == [32, 18]
    assert read == [1, 2]


def test_a_part_of_whole_stored_batches_is_handed_out_without_a_copy(tmp_path: Path) -> None:
    shards = Shards.open(write_shards(tmp_path / "shards", num_validation=64))
    part = EvaluationPart(shards, "validation")
    assert part.batch(1) is part.batch(1)
