"""The one integer hash behind everything random on disk or in a table.

A 64-bit finaliser turns (seed, position) into bits, so that a value depends on where it stands and
not on what was drawn before it: any part can be computed alone, in any order, on any machine.

This file must never change what it returns: shuffles, initial values and generated logs depend on it. A test
pins its values.
"""

from __future__ import annotations

import numpy as np

from .kernel import inlined_kernel


@inlined_kernel
def mix64(bits: np.uint64) -> np.uint64:
    """Mix 64 bits: a bijection on integers whose every output bit depends on every input bit.

    Source:
        Steele, Lea and Flood, OOPSLA 2014 (SplitMix64), with the constants of Stafford's variant 13.
    """
    bits = np.uint64(bits) + np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


@inlined_kernel
def mix64_pair(seed: np.uint64, position: np.uint64) -> np.uint64:
    """Return 64 bits for ``position`` in the stream of ``seed``, in two rounds: near seeds share nothing."""
    return mix64(mix64(seed) ^ np.uint64(position))
