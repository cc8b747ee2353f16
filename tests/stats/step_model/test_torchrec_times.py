"""TorchRec's estimate of a table, from its constants."""

from __future__ import annotations

import pytest

from hotset.stats.step_model.torchrec_times import TorchrecConstants, TorchrecTimes, table_wise


@pytest.mark.parametrize(
    ("dim", "penalty", "counted"), [(16, 1.75, 32), (63, 1.75, 63), (64, 1.15, 64), (128, 1.0, 128)]
)
def test_the_published_formula_is_reproduced_from_its_constants(
    dim: int, penalty: float, counted: int
) -> None:
    batch, ranks, pooling = 512, 8, 20
    hbm = 897 * 1024 * 1024 * 1024 / 1000
    intra = 600 * 1024 * 1024 * 1024 / 1000
    ids = batch * ranks * pooling
    forward = (ids * 8 + ids * counted * 4 + batch * ranks * dim * 4) * penalty / hbm
    link = batch * ranks * dim * 4 / intra
    found = table_wise(batch, ranks, pooling, dim, TorchrecConstants())
    assert found.forward_compute == pytest.approx(forward)
    assert found.backward_compute == pytest.approx(2 * forward)
    assert found.forward_link == found.backward_link == pytest.approx(link)
    assert found.total == pytest.approx(3 * forward + 2 * link)


def test_nothing_crosses_on_one_rank() -> None:
    found = table_wise(512, 1, 1, 16, TorchrecConstants())
    assert found.forward_link == found.backward_link == 0


def test_times_add_up() -> None:
    assert TorchrecTimes(1.0, 2.0, 3.0, 4.0).total == 10


def test_a_quicker_memory_or_link_shortens_its_own_times_alone() -> None:
    plain = table_wise(512, 4, 3, 16, TorchrecConstants())
    memory = table_wise(512, 4, 3, 16, TorchrecConstants(table_bandwidth=2 * 897 * 1024**3 / 1000))
    link = table_wise(512, 4, 3, 16, TorchrecConstants(link_bandwidth=2 * 600 * 1024**3 / 1000))
    assert memory.forward_compute == pytest.approx(plain.forward_compute / 2)
    assert memory.forward_link == plain.forward_link
    assert link.backward_link == pytest.approx(plain.backward_link / 2)
    assert link.backward_compute == plain.backward_compute


def test_half_floats_halve_what_crosses_and_not_the_ids() -> None:
    whole, half = (table_wise(512, 4, 3, 128, TorchrecConstants(), float_bytes=size) for size in (4, 2))
    assert half.forward_link == pytest.approx(whole.forward_link / 2)
    ids = 512 * 4 * 3 * 8 / TorchrecConstants().table_bandwidth
    assert half.forward_compute - ids == pytest.approx((whole.forward_compute - ids) / 2)
