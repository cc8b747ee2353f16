"""Optimizers of embedding rows."""

from __future__ import annotations

import numpy as np
import pytest

from hotset.train.rows.optimizers import RowOptimizer


def test_the_learning_rate_is_a_float32() -> None:
    optimizer = RowOptimizer("sgd", 0.1)
    assert optimizer.lr == float(np.float32(0.1)) != 0.1


@pytest.mark.parametrize(
    ("name", "width"), [("sgd", 0), ("momentum", 16), ("adagrad", 16), ("rowwise-adagrad", 1), ("adam", 33)]
)
def test_state_counts_in_the_bytes_of_a_row(name: str, width: int) -> None:
    optimizer = RowOptimizer(name, 0.1)
    assert optimizer.state_width(16) == width
    assert optimizer.row_bytes(16) == 4 * (16 + width)


def test_an_unknown_optimizer_is_refused() -> None:
    with pytest.raises(ValueError, match="'adamax'"):
        RowOptimizer("adamax", 0.1)
