"""Number types of exported rows: as trained, half as wide, or 8 bits under a scale of each row.

A row of 16 floats takes 64 bytes in fp32, 32 in fp16 and bf16, and 24 in int8.
"""

from __future__ import annotations

import torch

from ..options.export_config import RowType

_TORCH = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
_MOST_CODE = 255
_MOST = {"fp16": 65504.0, "int8": 1.7e38}
"""Largest values of a type: a code of int8 times its step is to stay within float32."""


def pack_rows(rows_ND: torch.Tensor, row_type: RowType) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return rows in another type.

    Args:
        rows_ND: (N, D) float32, finite.
        row_type: the type to store.

    Returns:
        (N, D) of that type, uint8 for int8; and for int8 (N, 2) float32, the least value of each row and the
        step between two codes, else None.

    Error:
        fp16 and bf16 round to the nearest; int8 is off by at most half a step, a 510th of the range of the
        row. Values beyond 65504 in fp16, and 1.7e38 in int8, are cut to these.
    """
    if row_type in _MOST:
        rows_ND = rows_ND.clamp(-_MOST[row_type], _MOST[row_type])
    if row_type != "int8":
        return rows_ND.to(_TORCH[row_type]), None
    low_N1 = rows_ND.amin(1, keepdim=True)
    step_N1 = (rows_ND.amax(1, keepdim=True) - low_N1) / _MOST_CODE
    # Rows of one value have a step of 0, and all their codes are 0.
    divisor_N1 = torch.where(step_N1 > 0, step_N1, torch.ones_like(step_N1))
    codes_ND = ((rows_ND - low_N1) / divisor_N1).round().clamp(0, _MOST_CODE).to(torch.uint8)
    return codes_ND, torch.cat([low_N1, step_N1], dim=1)


def unpack_rows(packed_ND: torch.Tensor, scale_N2: torch.Tensor | None) -> torch.Tensor:
    """Return rows that `pack_rows` packed as float32; exact but for what packing lost."""
    rows_ND = packed_ND.to(torch.float32)
    return rows_ND if scale_N2 is None else scale_N2[:, :1] + rows_ND * scale_N2[:, 1:]
