"""Fields of text as kernels read them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hotset.pipeline.raw.text_fields import Spans


def spans_of(texts: Sequence[str | bytes]) -> Spans:
    """The fields of a text column."""
    whole = [text.encode() if isinstance(text, str) else text for text in texts]
    stops = np.cumsum([len(text) for text in whole], dtype=np.int64)
    starts = stops - np.array([len(text) for text in whole], np.int64)
    return Spans(np.frombuffer(b"".join(whole) or b"x", np.uint8).copy(), starts, stops)
