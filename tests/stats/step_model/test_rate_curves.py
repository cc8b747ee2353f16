"""Curves through made-up times: known constants come back."""

from __future__ import annotations

import numpy as np
import pytest

from hotset.stats.step_model.rate_curves import ProductCurve, RowCurve


def test_the_constants_of_products_come_back_from_noisy_times() -> None:
    rng = np.random.default_rng(0)
    wanted = ProductCurve(3e-6, 8e10, 24.0, 2e-10)
    batch = np.tile([8.0, 32.0, 128.0, 512.0], 12)
    size = np.repeat([32, 64, 256, 1024], 12)
    seconds = np.array([wanted.seconds(b, int(n), 128) for b, n in zip(batch, size, strict=True)])
    found = ProductCurve.fit(
        batch, size.astype(float), np.full(48, 128.0), seconds * rng.lognormal(0, 0.02, 48)
    )
    assert found.fixed_seconds == pytest.approx(wanted.fixed_seconds, rel=0.1)
    assert found.flops == pytest.approx(wanted.flops, rel=0.1)
    assert found.half_batch == pytest.approx(wanted.half_batch, rel=0.25)
    assert found.number_seconds == pytest.approx(wanted.number_seconds, rel=0.25)


def test_a_product_at_the_half_batch_reaches_half_of_the_operations() -> None:
    curve = ProductCurve(0.0, 1e10, 50.0)
    assert 2 * 50 * 10 * 10 / curve.seconds(50, 10, 10) == pytest.approx(5e9)


def test_narrow_layers_take_longer_for_each_operation() -> None:
    curve = ProductCurve(0.0, 1e10, 0.0, 1e-9)
    assert curve.seconds(10, 4, 6) == pytest.approx(2 * 240 / 1e10 + 10 * (4 + 6) * 1e-9)
    narrow, wide = (curve.seconds(10, width, width) / width**2 for width in (8, 512))
    assert narrow > 2 * wide


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


def test_rows_outside_the_measured_working_sets_take_as_long_as_at_their_edges() -> None:
    curve = RowCurve((1e5, 1e7, 1e9), (1e-8, 3e-8, 1e-7), (1e-10, 2e-10, 4e-10))
    for row_bytes in (4.0, 512.0):
        for outside, edge in ((0.0, 1e5), (1.0, 1e5), (1e13, 1e9)):
            assert curve.seconds(row_bytes, outside) == curve.seconds(row_bytes, edge)
        inside = [curve.seconds(row_bytes, working) for working in np.geomspace(1e5, 1e9, 9)]
        assert inside == sorted(inside) and inside[4] == pytest.approx(3e-8 + 2e-10 * row_bytes)


def test_series_of_one_working_set_are_fitted_in_any_order() -> None:
    rng = np.random.default_rng(0)
    row_bytes = np.tile([64.0, 128.0, 256.0, 512.0], 3)
    working = np.repeat([1e9, 1e5, 1e7], 4)
    seconds = 1e-8 * np.log10(working) + 1e-10 * row_bytes
    order = rng.permutation(12)
    curve = RowCurve.fit(row_bytes[order], working[order], seconds[order])
    assert curve.working_bytes == (1e5, 1e7, 1e9)
    assert curve.seconds_per_row == pytest.approx((5e-8, 7e-8, 9e-8), rel=1e-3)
    assert curve.seconds_per_byte == pytest.approx((1e-10,) * 3, rel=1e-3)


def test_layers_that_are_none_take_no_time() -> None:
    curve = ProductCurve(1e-6, 1e10, 20.0)
    for widths in ((), (16,)):
        assert curve.forward_seconds(8, widths) == curve.backward_seconds(8, widths, to_inputs=True) == 0
