"""Logs with columns of lists, and the settings they are preprocessed with."""

from __future__ import annotations

from typing import Any

from hotset.pipeline.errors import ByteSize
from hotset.pipeline.preprocess import PreprocessConfig
from hotset.pipeline.stages.count import CountConfig
from hotset.pipeline.stages.ingest import IngestConfig
from hotset.pipeline.stages.pack import PackConfig
from hotset.pipeline.stages.split import SplitConfig
from hotset.tests.support.logs.other_logs import Log, schema_text

KINDS = {
    "y": "label",
    "tags": "list text",
    "age": "dense",
    "site": "hex8",
    "price": "float",
    "seen": "list integer",
    "user": "text",
    "depth": "raw",
    "year": "whole",
    "codes": "list hex8",
}


def recipe(log: Log, format: str, **pack: Any) -> PreprocessConfig:
    return PreprocessConfig(
        ingest=IngestConfig(schema=schema_text(log, format=format), block_bytes=ByteSize(3000)),
        count=CountConfig(eval_fraction=1 / 3),
        split=SplitConfig(embedding_optimizer="sgd", hot_bytes=ByteSize(64 * 36)),
        pack=PackConfig(**({"batch_size": 8} | pack)),
    )
