"""How Triton kernels are launched: as many programs as the device runs at once, each with every n-th part.

Grids are fixed then, whatever a batch holds, so that a recorded step fits any batch.
"""

from __future__ import annotations

from functools import cache

import torch

EXACT = {"enable_fp_fusion": False}
"""Options of kernels that promise bits: else a product and a sum are fused, which rounds once less."""
_PROGRAMS_OF_A_CORE = 16
_HOST_PROGRAMS = 3
"""In Triton's interpreter: few, so that each has several parts."""


def num_programs(num_parts: int, device: torch.device) -> int:
    """Return the programs that share so many parts of the work."""
    return max(1, min(num_parts, _most_programs(device)))


def floor_of(value: int, divisor: int) -> int:
    """Return how often ``divisor`` is in ``value``, at least once."""
    return max(1, value // divisor)


@cache
def _most_programs(device: torch.device) -> int:
    if device.type != "cuda":
        return _HOST_PROGRAMS
    return _PROGRAMS_OF_A_CORE * torch.cuda.get_device_properties(device).multi_processor_count
