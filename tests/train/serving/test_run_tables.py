"""Rows in other types lose no more than their docstring says."""

from __future__ import annotations

import pytest
import torch

from hotset.train.config import ROW_TYPES, RowType
from hotset.train.serving.run_tables import pack_rows, unpack_rows


def drawn() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(200, 16, generator=generator) * torch.logspace(-20, 20, 200).unsqueeze(1)
    rows[3] = 7.5  # a row of one value
    rows[4] = 0
    rows[5, ::2], rows[5, 1::2] = 1.6e38, -1.6e38
    return rows


@pytest.mark.parametrize("row_type", ROW_TYPES)
def test_packed_rows_are_within_their_bound(row_type: RowType) -> None:
    rows = drawn()
    packed, scale = pack_rows(rows, row_type)
    found = unpack_rows(packed, scale)
    assert found.isfinite().all() and (scale is None) == (row_type != "int8")
    error = (found.double() - rows.double()).abs()
    if row_type == "fp32":
        assert torch.equal(found, rows)
    elif row_type == "int8":
        # Half a step, and the rounding of the step and of the sum in float32.
        reach = rows.double().amax(1) - rows.double().amin(1)
        bound = reach / 510 + 2e-5 * rows.double().abs().amax(1)
        assert (error <= bound.unsqueeze(1)).all()
        assert torch.equal(found[3], rows[3])
    elif row_type == "bf16":
        assert (error <= rows.double().abs() / 256).all()
    else:
        inside = rows.abs() <= 65504
        assert (error <= rows.double().abs() / 2048 + 2.0**-25)[inside].all()
        assert (found.abs()[~inside] == 65504).all()


def test_no_rows_are_no_rows() -> None:
    for row_type in ROW_TYPES:
        assert unpack_rows(*pack_rows(torch.empty(0, 4), row_type)).shape == (0, 4)
