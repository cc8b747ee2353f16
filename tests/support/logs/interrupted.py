"""A run of `ingest` that ends in the middle, as if killed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hotset.pipeline.formats.arrow_files import write_batch


def interrupt_after(num_files: int, error: type[BaseException]) -> Callable[..., None]:
    """A `write_batch` that fails half-way through a file once ``num_files`` were written."""
    left = num_files

    def failing(path: Path, columns: dict[str, Any]) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            path.write_bytes(b"half of it")
            raise error
        write_batch(path, columns)

    return failing
