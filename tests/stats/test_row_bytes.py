"""Bytes of a row with each optimizer."""

from __future__ import annotations

import pytest

from hotset.stats.row_bytes import OPTIMIZERS, row_bytes, state_width


@pytest.mark.parametrize(
    ("optimizer", "extra"),
    [("sgd", 0), ("momentum", 64), ("adagrad", 64), ("rowwise-adagrad", 4), ("adam", 132)],
)
def test_a_row_is_its_vector_and_its_state(optimizer: str, extra: int) -> None:
    assert row_bytes(16, optimizer) == 16 * 4 + extra


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_state_is_float32(optimizer: str) -> None:
    assert row_bytes(5, optimizer) == 4 * (5 + state_width(5, optimizer))


def test_an_unknown_optimizer_is_named() -> None:
    with pytest.raises(ValueError, match=r"'adamax'.*rowwise-adagrad"):
        row_bytes(16, "adamax")


def test_a_row_has_columns() -> None:
    with pytest.raises(ValueError, match="got 0"):
        row_bytes(0, "sgd")
