"""A mark for tests that take long where kernels are plain Python, and find nothing more there."""

from __future__ import annotations

import numba
import pytest

compiled_only = pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="takes long uncompiled")
