"""Ids that anybody may have made reach no kernel unchecked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from hotset.pipeline.errors import ConfigError
from hotset.train.data.batch import EmbeddingTable
from hotset.train.own_loop.lookups import read_lookups

ONE_HOT = EmbeddingTable("a", 10, 4, 2)
LISTS = EmbeddingTable("b", 20, 5, 2, is_multi_hot=True)
GOOD: dict[str, Any] = {"a": [3, 0], "b": [4, 1, 2], "b_offsets": [0, 1, 3], "label": "anything"}


@pytest.mark.parametrize("kind", [np.array, torch.tensor, list])
def test_lookups_are_those_of_the_dictionary(kind: Any) -> None:
    features = {name: kind(value) if name != "label" else value for name, value in GOOD.items()}
    batch = read_lookups([ONE_HOT, LISTS], features)
    assert batch.ids_BF.tolist() == [[3], [0]] and batch.num_samples == 2
    assert batch.bags[0].ids_N.tolist() == [4, 1, 2] and batch.bags[0].offsets_B1.tolist() == [0, 1, 3]
    assert batch.is_hot_only
    assert not read_lookups([ONE_HOT, LISTS], features | {"a": [4, 0]}).is_hot_only
    assert not read_lookups([ONE_HOT, LISTS], features | {"b": [4, 5, 0]}).is_hot_only
    assert read_lookups([LISTS], features).num_samples == 2


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"a": [3, 10]}, "feature 'a' has the id 10, and its table 10 rows"),
        ({"a": [-1, 0]}, "feature 'a' has the id -1"),
        ({"a": np.array([2**32, 0])}, "feature 'a' has the id 4294967296"),
        ({"a": [[1, 2]]}, r"'a' is int64 of shape \(1, 2\), want a vector of integers"),
        ({"a": [1.0, 2.0]}, "'a' is float64"),
        ({"a": [1]}, "'b' has 2 samples, and 'a' has 1"),
        ({"b_offsets": [0, 2]}, "'b_offsets' must ascend from 0 to 3"),
        ({"b_offsets": [0, 4, 3]}, "'b_offsets' must ascend"),
        ({"b_offsets": [1, 1, 3]}, "'b_offsets' must ascend"),
        ({"b_offsets": np.array([], np.int64)}, "'b_offsets' must ascend"),
        (
            {"a": [1, 2, 3, 4], "a_offsets": [0, 2, 4]},
            "the batch has 'a_offsets', and feature 'a' has one id",
        ),
        ({"a": np.array([True, False])}, "'a' is bool"),
        ({"b": np.array([2**63, 0, 0], np.uint64)}, "feature 'b' has the id 9223372036854775808"),
        ({"b": 4}, r"'b' is int64 of shape \(\)"),
    ],
)
def test_other_ids_and_shapes_are_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_lookups([ONE_HOT, LISTS], GOOD | changed)


def test_a_missing_feature_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^the batch has no 'b_offsets'; it has 'a', 'b'$"):
        read_lookups([ONE_HOT, LISTS], {"a": [1], "b": [1]})


def test_a_feature_may_be_called_like_the_offsets_of_another() -> None:
    """It is a feature of its own where the other one has no lists."""
    tables = [ONE_HOT, EmbeddingTable("a_offsets", 5, 1, 2)]
    assert read_lookups(tables, {"a": [9], "a_offsets": [4]}).ids_BF.tolist() == [[9, 4]]


def test_no_samples_are_a_batch_too() -> None:
    batch = read_lookups(
        [ONE_HOT, LISTS],
        {"a": torch.empty(0, dtype=torch.int32), "b": np.empty(0, np.int64), "b_offsets": [0]},
    )
    assert (
        batch.num_samples == 0 and batch.ids_BF.shape == (0, 1) and batch.bags[0].offsets_B1.tolist() == [0]
    )
