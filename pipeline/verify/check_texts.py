"""What `verify` looks for in files of texts: an order, ids that are there, texts of the right hash."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import xxhash

from ..folders.manifest import FileEntry, Manifest
from ..formats.arrow_files import read_batch, values_of
from ..formats.category_texts import CUT_MARK, read_texts

_REPLACED = "\ufffd"


def check_texts(entry: FileEntry, manifest: Manifest, _: dict[str, Manifest]) -> Iterator[str]:
    """Faults of one file of texts."""
    batch = read_texts(manifest, entry)
    texts = batch.column("text").to_pylist()
    if manifest.stage in ("rank", "adopt"):
        ids = values_of(batch.column("id"), np.int32)
        table = manifest.entry(f"{entry.path.removesuffix('.texts.arrow')}.arrow")
        categories = read_batch(manifest, table).column("category")
        if (ids[1:] <= ids[:-1]).any() or ids[0] < 0 or ids[-1] >= len(categories):
            yield "its ids are not ascending, or outside the table"
            return
        found = values_of(categories, np.uint64)[ids]
    else:
        found = values_of(batch.column("category"), np.uint64)
        if manifest.stage == "count" and (found[1:] <= found[:-1]).any():
            yield "its categories are not ascending"
    wrong = [text for text, category in zip(texts, found.tolist(), strict=True) if not _fits(text, category)]
    if wrong:
        yield f"the text {wrong[0]!r} is not its category's"


def _fits(text: str, category: int) -> bool:
    """Whether a text has the hash of its category; one that was cut or mended may have any."""
    is_whole = not text.endswith(CUT_MARK) and _REPLACED not in text
    return not is_whole or xxhash.xxh3_64_intdigest(text.encode()) == category
