"""``split``: vocabulary/ + samples/ + a byte budget -> plan/, the hot rows and each sample's tag.

The hot rows are a prefix of the order over all tables (by look-ups per byte where rows differ in width), so
they are one number per table. A sample is
hot when all of its look-ups hit hot rows.

Source: FAE (Adnan et al., PVLDB 15(1), section 4), with exact counts in place of its sampling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from ...stats.ranking.row_bytes import OPTIMIZERS, row_bytes
from ..errors import ConfigError
from ..folders.manifest import MANIFEST, FileEntry, Manifest
from ..folders.output import Output, input_of
from ..formats.arrow_files import read_batch, write_batch
from ..formats.part_ids import PartIds
from ..hot_rows.fae_hot_rows import MODES, calibrate, with_exact_counts
from ..hot_rows.hot_order import HotOrder
from ..runtime.tasks import ProgressCallback, run_tasks, silent
from ..schema.feature_settings import NO_SETTINGS, FeatureSettings, checked_settings, numbers_of
from ..sizes import MIB, ByteSize
from .encode import iterate_parts

VERSION = 1
_HOT_BYTES = ByteSize(256 * MIB)
_KEPT = ("name", "num_rows", "oov_id", "missing_id", "is_multi_hot")


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitConfig:
    """What a run of the split stage may vary; part of its fingerprint."""

    hot_bytes: ByteSize = _HOT_BYTES
    """Fast memory for hot rows with their optimizer state, all tables together (bytes)."""

    mode: Literal["budget", "fae-paper", "fae-code"] = "budget"
    """How hot rows are chosen: budget fills it exactly, in the order of ids; fae-paper by a threshold whose
    estimated rows fit, fae-code until it is full, both by counts of a sample (`rank --rank-by sampled`)."""

    embedding_dim: int = 16
    """Floats of a row."""

    feature_dims: FeatureSettings = NO_SETTINGS
    """Features with an ``embedding_dim`` of their own, and that: C3=8,C5=32. Rows are then hot by look-ups
    per byte."""

    embedding_optimizer: Literal["sgd", "momentum", "adagrad", "rowwise-adagrad", "adam"] = "sgd"
    """Optimizer whose state a row carries."""

    def __post_init__(self) -> None:
        if self.hot_bytes < 0:
            raise ConfigError(f"hot_bytes must be 0 or more, got {self.hot_bytes}")
        if self.mode not in ("budget", *MODES):
            raise ConfigError(f"mode must be one of budget, {', '.join(MODES)}, got {self.mode!r}")
        if self.embedding_dim < 1:
            raise ConfigError(f"embedding_dim must be 1 or more, got {self.embedding_dim}")
        object.__setattr__(self, "feature_dims", checked_settings("feature_dims", self.feature_dims))
        if self.embedding_optimizer not in OPTIMIZERS:
            wanted = ", ".join(OPTIMIZERS)
            raise ConfigError(
                f"embedding_optimizer must be one of {wanted}, got {self.embedding_optimizer!r}"
            )


def split(
    config: SplitConfig,
    vocabulary: Manifest,
    samples: Manifest,
    out: Path,
    *,
    workers: int = 0,
    progress: ProgressCallback = silent,
) -> Manifest:
    """vocabulary, samples -> plan: hot rows of each table under the budget, hot or mixed for each sample.

    Reads:   ``{feature}.arrow`` of vocabulary, place; ``*.arrow`` of samples, ids
    Writes:  the same files as samples: is_hot uint8, 1 where all look-ups hit hot rows
    """
    widths = widths_of(config, [table["name"] for table in vocabulary.totals["tables"]])
    bytes_of_rows = [width["row_bytes"] for width in widths]
    calibrated = None
    if config.mode != "budget" and not (out / MANIFEST).exists():  # refused before the folder is begun
        calibrated = calibrate(config.mode, vocabulary, bytes_of_rows, config.hot_bytes)
    output = Output.begin("split", VERSION, config, [input_of(vocabulary), input_of(samples)], out)
    if isinstance(output, Manifest):
        return output
    if config.mode != "budget":
        calibrated = calibrated or calibrate(config.mode, vocabulary, bytes_of_rows, config.hot_bytes)
        num_hot = calibrated.num_hot
    else:
        num_hot, _ = HotOrder(vocabulary, bytes_of_rows).num_hot(config.hot_bytes)
    num_train, done = vocabulary.totals["num_train_samples"], 0
    tasks = ((entry, num_train - first, num_hot, samples, output) for first, entry in iterate_parts(samples))
    for num_samples in run_tasks(_tag_part, tasks, workers=workers):
        done += num_samples
        progress("split", done, samples.num_samples)
    tables = [
        {key: table[key] for key in _KEPT if key in table}
        | {"num_hot": hot}
        | (width if width["embedding_dim"] != config.embedding_dim else {})
        for table, hot, width in zip(vocabulary.totals["tables"], num_hot, widths, strict=True)
    ]
    facts: dict[str, Any] = {}
    if calibrated is not None:
        hot_bytes = sum(hot * width for hot, width in zip(num_hot, bytes_of_rows, strict=True))
        exact = with_exact_counts(vocabulary, samples, bytes_of_rows, hot_bytes, workers=workers)
        facts["calibration"] = calibrated.facts | {"hot_bytes": hot_bytes, "exact": exact}
    return output.seal(
        {
            "tables": tables,
            "row_bytes": row_bytes(config.embedding_dim, config.embedding_optimizer),
            "num_rows": vocabulary.totals["num_rows"],
            "num_hot_rows": sum(num_hot),
            "num_train_samples": num_train,
            "samples": _samples_by_tag(output, samples.num_samples, num_train),
        }
        | facts
    )


def widths_of(config: SplitConfig, features: Sequence[str]) -> list[dict[str, int]]:
    """Per feature ``embedding_dim`` and ``row_bytes``; raises ConfigError for a name that is none of them."""
    dims = numbers_of("feature_dims", config.feature_dims, features, config.embedding_dim)
    return [
        {"embedding_dim": dims[name], "row_bytes": row_bytes(dims[name], config.embedding_optimizer)}
        for name in features
    ]


def _tag_part(entry: FileEntry, num_train: int, num_hot: list[int], samples: Manifest, output: Output) -> int:
    """Tag one file, of which the first ``num_train`` samples are for training."""
    if output.has(entry.path):
        return entry.num_samples
    is_hot = PartIds.read(read_batch(samples, entry), samples.totals["tables"]).tags(num_hot)
    hot_train = int(np.count_nonzero(is_hot[: max(num_train, 0)]))
    hot_evaluation = int(np.count_nonzero(is_hot)) - hot_train
    tags = {"hot_train": hot_train, "hot_evaluation": hot_evaluation}
    with output.writing(entry.path, entry.num_samples, **tags) as path:
        write_batch(path, {"is_hot": pa.array(is_hot)})
    return entry.num_samples


def _samples_by_tag(output: Output, num_samples: int, num_train: int) -> dict[str, Any]:
    facts = [entry.facts for entry in output.finished.values()]
    hot_train, hot_evaluation = (sum(fact[key] for fact in facts) for key in ("hot_train", "hot_evaluation"))
    num_evaluation = num_samples - num_train
    return {
        "hot": hot_train,
        "mixed": num_train - hot_train,
        "evaluation": num_evaluation,
        "evaluation_hot": hot_evaluation,
    }
