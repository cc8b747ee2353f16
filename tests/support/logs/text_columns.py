"""Fields of text as a column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa


def texts_of(texts: Sequence[str | bytes]) -> Any:
    """The fields of a text column."""
    return pa.array([text.encode() if isinstance(text, str) else text for text in texts], pa.large_binary())
