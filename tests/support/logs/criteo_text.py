"""Small random logs in Criteo's text format, a slow, obvious parser of them, and trees to compare."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

import numpy as np

from hotset.pipeline.schema.schema_file import SCHEMAS, schema_named

SCHEMA = schema_named("criteo-kaggle")
NUM_DENSE, NUM_SPARSE = len(SCHEMA.dense), len(SCHEMA.sparse)
_LABEL, _INTEGER, _CATEGORY = (re.compile(p) for p in (rb"[01]", rb"-?[0-9]{1,10}", rb"[0-9a-fA-F]{8}"))


@contextmanager
def few_features() -> Iterator[None]:
    """Let Criteo's logs have the first 4 dense and 9 sparse features alone, in this process and in the block.

    A stage writes a file for each table, so that runs of little more than files take half of the time.
    """
    few = replace(SCHEMA, dense=SCHEMA.dense[:4], sparse=SCHEMA.sparse[:9])
    with mock.patch.dict(SCHEMAS, {"criteo-kaggle": few, "criteo-1tb": few}):
        yield


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of a log; None is a missing value."""

    label: int
    """0 in a log without labels."""
    dense: tuple[int | None, ...]
    categories: tuple[int | None, ...]

    def line(self, *, label: bool = True) -> bytes:
        """The line without its end."""
        fields = [b"%d" % self.label] if label else []
        fields += [b"" if value is None else b"%d" % value for value in self.dense]
        fields += [b"" if value is None else b"%08x" % value for value in self.categories]
        return b"\t".join(fields)


def draw_samples(num_samples: int, rng: np.random.Generator) -> list[Sample]:
    """Samples with skewed categories: a few cover most lookups, some are seen once, tables differ in size.

    The second table has one category, the third misses values only in the last quarter, every fourth often.
    """
    schema = schema_named("criteo-kaggle")
    num_dense, num_sparse = len(schema.dense), len(schema.sparse)
    hashes = rng.integers(0, 2**32, (num_sparse, 67), dtype=np.uint64)
    hashes[:, 5] = np.where(np.arange(num_sparse) % 2, 0, 2**32 - 1)
    steps = rng.zipf(1.5 + 0.1 * np.arange(num_sparse), (num_samples, num_sparse))
    steps = np.minimum(steps - 1, 3 + 7 * (np.arange(num_sparse) % 10)) * (np.arange(num_sparse) != 1)
    is_missing = rng.random((num_samples, num_sparse)) < np.where(np.arange(num_sparse) % 4 == 3, 0.3, 0)
    is_missing[num_samples - num_samples // 4 :, 2] = True
    dense = (rng.standard_cauchy((num_samples, num_dense)) * 50).clip(-(2**31), 2**31 - 1).astype(np.int64)
    has_dense = rng.random((num_samples, num_dense)) < 0.8
    labels = rng.integers(0, 2, num_samples)
    return [
        Sample(
            int(labels[i]),
            tuple(int(v) if there else None for v, there in zip(dense[i], has_dense[i], strict=True)),
            tuple(None if is_missing[i, f] else int(hashes[f, steps[i, f]]) for f in range(num_sparse)),
        )
        for i in range(num_samples)
    ]


def text_of(samples: Sequence[Sample], *, label: bool = True, line_end: bytes = b"\n") -> bytes:
    """The samples as lines, each with its end."""
    return b"".join(sample.line(label=label) + line_end for sample in samples)


def parse_naively(line: bytes, *, label: bool = True) -> Sample | None:
    """The sample of a line without its newline; None where the line is not good."""
    fields = line.removesuffix(b"\r").split(b"\t")
    if len(fields) != label + NUM_DENSE + NUM_SPARSE:
        return None
    first = fields.pop(0) if label else b"0"
    integers, categories = fields[:NUM_DENSE], fields[NUM_DENSE:]
    is_good = (
        _LABEL.fullmatch(first)
        and all(not f or (_INTEGER.fullmatch(f) and -(2**31) <= int(f) < 2**31) for f in integers)
        and all(not f or _CATEGORY.fullmatch(f) for f in categories)
    )
    if not is_good:
        return None
    return Sample(
        int(first),
        tuple(int(f) if f else None for f in integers),
        tuple(int(f, 16) if f else None for f in categories),
    )


def tree_of(folder: Path) -> dict[str, bytes]:
    """Every file below ``folder`` by its relative path, hidden ones too: what two equal runs must share."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def generate_chunk(
    profile: str, seed: int, start: int, num_samples: int, scale: float = 1, *, label: bool = True
) -> bytes:
    """Return the text of samples ``start`` ... ``start + num_samples - 1`` of a generated log."""
    from hotset.pipeline.generate.generate import GenerateConfig, world_of_config, write_chunk

    config = GenerateConfig(
        profile=profile, seed=seed, start=start, samples=num_samples, scale=scale, label=label
    )
    return bytes(write_chunk(config, world_of_config(config), start, num_samples, False).text)
