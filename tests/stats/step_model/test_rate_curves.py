"""Curves through made-up times: known constants come back."""

from __future__ import annotations

import numpy as np
import pytest

from hotset.stats.step_model.rate_curves import ProductCurve, RowCurve


def test_the_constants_of_products_come_back_from_noisy_times() -> None:
    rng = np.random.default_rng(0)
    wanted = ProductCurve(3e-6, 8e10, 24.0)
    batch = np.tile([8.0, 32.0, 128.0, 512.0], 12)
    size = np.repeat([32, 64, 256, 1024], 12)
    seconds = np.array([wanted.seconds(b, int(n), 128) for b, n in zip(batch, size, strict=True)])
    found = ProductCurve.fit(batch, 2 * batch * size * 128, seconds * rng.lognormal(0, 0.02, 48))
    assert found.fixed_seconds == pytest.approx(wanted.fixed_seconds, rel=0.1)
    assert found.flops == pytest.approx(wanted.flops, rel=0.1)
    assert found.half_batch == pytest.approx(wanted.half_batch, rel=0.25)


def test_a_product_at_the_half_batch_reaches_half_of_the_operations() -> None:
    curve = ProductCurve(0.0, 1e10, 50.0)
    assert 2 * 50 * 10 * 10 / curve.seconds(50, 10, 10) == pytest.approx(5e9)


def test_a_backward_pass_has_two_products_a_layer_but_for_inputs_that_are_data() -> None:
    curve = ProductCurve(1.0, 1e30, 0.0)
    assert curve.forward_seconds(4, (3, 2, 1)) == pytest.approx(2)
    assert curve.backward_seconds(4, (3, 2, 1), to_inputs=True) == pytest.approx(4)
    assert curve.backward_seconds(4, (3, 2, 1), to_inputs=False) == pytest.approx(3)


def test_rows_are_interpolated_over_the_working_set() -> None:
    row_bytes = np.tile([64.0, 256.0, 512.0], 2)
    working = np.repeat([1e5, 1e9], 3)
    seconds = np.where(working == 1e5, 1e-8 + 1e-10 * row_bytes, 1e-7 + 3e-10 * row_bytes)
    curve = RowCurve.fit(row_bytes, working, seconds)
    assert curve.seconds(100, 1e5) == pytest.approx(2e-8, rel=1e-3)
    assert curve.seconds(100, 1e12) == pytest.approx(1.3e-7, rel=1e-3)
    # Half-way in the logarithm.
    assert curve.seconds(100, 1e7) == pytest.approx((2e-8 + 1.3e-7) / 2, rel=1e-3)
