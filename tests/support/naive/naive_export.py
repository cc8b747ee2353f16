"""The rows of shards in the order in which other programs get them, slowly."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from hotset.pipeline.folders.manifest import Manifest


def stored(shards: Manifest, kind: str) -> list[tuple[Any, ...]]:
    """The record batches of a kind as Arrow reads them, each a row a sample: label, dense, ids, lists."""
    totals = shards.totals
    lists = [table["name"] for table in totals["tables"] if table.get("is_multi_hot")]
    batches = []
    for _, entry in shards.parts():
        if entry.facts["kind"] != kind:
            continue
        with pa.memory_map(str(shards.folder / entry.path)) as file:
            reader = pa.ipc.open_file(file)
            for number in range(reader.num_record_batches):
                batch = reader.get_batch(number).to_pydict()
                names = [name for name in ("label", "dense", "ids", *lists) if name in batch]
                batches.append(tuple(zip(*(batch[name] for name in names), strict=True)))
    return batches


def naive_rows(shards: Manifest) -> dict[str, list[tuple[Any, ...]]]:
    """The samples of each split in the order wanted, with one value for each column."""
    hot, mixed = stored(shards, "hot_only"), stored(shards, "mixed")
    middles = [((number + 0.5) / len(hot), 0, number) for number in range(len(hot))]
    middles += [((number + 0.5) / len(mixed), 1, number) for number in range(len(mixed))]
    train = [row for _, kind, number in sorted(middles) for row in (hot, mixed)[kind][number]]
    evaluation = [row for batch in stored(shards, "evaluation") for row in batch]
    num_valid = shards.totals.get("num_valid_samples", 0)
    return {"train": train, "valid": evaluation[:num_valid], "test": evaluation[num_valid:]}
