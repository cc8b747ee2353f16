"""``split``: vocabulary/ + samples/ -> plan/, hot rows and tags of samples.

The hot rows are a prefix of the order over all tables (by lookups per byte where rows differ in width), so
they are one number per table. A sample is hot when all of its lookups hit hot rows.

For comparison, FAE's hot rows come from a vocabulary by sampled counts, with what they lose against exact
counts; see `orders`.

Source: FAE (Adnan et al., PVLDB 15(1), section 4), with exact counts in place of its sampling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa

from ...stats.row_bytes import row_bytes
from ..errors import GIB, KIB, MIB, ByteSize, SizeOrAuto, check_fields, require_at_least, require_at_most
from ..folders.manifest import FileEntry, JsonRecord, Manifest, is_sealed
from ..folders.output import Output, input_of
from ..folders.resume import FolderState
from ..folders.totals import (
    MOST_FLOATS,
    CalibrationInfo,
    PlannedTable,
    PlanTotals,
    SamplesTotals,
    TaggedSamples,
    VocabularyTotals,
)
from ..formats.arrow_files import read_batch, write_batch
from ..formats.ids import PartIds
from ..runtime.tasks import DEFAULT_RESOURCES, Resources, check_cap, crew_size, run_tasks
from ..schema.schema import NO_SETTINGS, FeatureSettings, check_settings, numbers_of
from .row_order import HotOrder, read_tables

CALIBRATION_ROW_BYTES = 40
"""Bytes that FAE's modes take for each row of a vocabulary: the order of every table by exact counts or its
counters by first appearance, levels, and three arrays of the largest table."""
VERSION = 1
AUTO_PERCENT = 90
"""Lookups of the training part that hot rows serve where their bytes are ``auto``."""
MOST_AUTO_BYTES = ByteSize(4 * GIB)
"""Bound of ``auto``: a constant, so that the bytes of a folder do not depend on the machine."""
FAE_BYTES = ByteSize(256 * MIB)
"""What ``auto`` stands for in FAE's modes: the default of its code. They keep small tables whole, for which
the rows of 90% of the lookups may have no room."""
_TAG_BYTES = 2
"""Bytes of a sample's tag: as it is found, and as it is written."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitConfig:
    """The settings of the split stage; part of its fingerprint."""

    hot_bytes: SizeOrAuto = "auto"
    """Fast memory for the hot rows of all tables with their optimizer state. auto takes what the folder has
    already; for a new one the rows that serve 90% of the training lookups, at most 4GiB, or 256MiB with a
    mode of FAE."""

    mode: Literal["budget", "fae-paper", "fae-code"] = "budget"
    """How hot rows are chosen. budget fills --hot-bytes exactly, in the order of ids. fae-paper takes the
    rows above a threshold that it estimates to fit, and fae-code fills the budget, both from the counts of a
    sample (`rank --rank-by sampled`)."""

    embedding_dim: int = 16
    """Number of floats per row."""

    feature_dims: FeatureSettings = NO_SETTINGS
    """Another --embedding-dim for some features, such as C3=8,C5=32. Hot rows are then chosen by lookups per
    byte."""

    embedding_optimizer: Literal["sgd", "momentum", "adagrad", "rowwise-adagrad", "adam"] = "adagrad"
    """Optimizer of the embedding rows in training; its state counts as part of each row, and `hotset train`
    uses it by default."""

    def __post_init__(self) -> None:
        check_fields(self)
        # A manifest has lists.
        object.__setattr__(self, "feature_dims", FeatureSettings(self.feature_dims))
        if self.hot_bytes != "auto":
            require_at_least("hot_bytes", self.hot_bytes, 0)
        # Readers take rows that are wider for damage.
        require_at_least("embedding_dim", self.embedding_dim, 1)
        require_at_most("embedding_dim", self.embedding_dim, MOST_FLOATS)
        check_settings("feature_dims", self.feature_dims)
        for name, dim in self.feature_dims:
            require_at_most(f"feature_dims {name}", dim, MOST_FLOATS)


@dataclass(frozen=True, kw_only=True, slots=True)
class TagsFacts(JsonRecord):
    """A part of plan/."""

    hot_train: int
    """Fully hot training samples."""
    hot_evaluation: int
    """Fully hot evaluation samples."""


def split(
    config: SplitConfig,
    vocabulary: Manifest,
    samples: Manifest,
    out: Path,
    resources: Resources = DEFAULT_RESOURCES,
) -> Manifest:
    """vocabulary, samples -> plan: hot rows of each table under the budget, hot or mixed for each sample.

    Reads:   ``{feature}.arrow`` of vocabulary, place; ``*.arrow`` of samples, ids
    Writes:  the same files as samples: is_hot uint8, 1 where all lookups hit hot rows
    """
    ranked = VocabularyTotals.of(vocabulary)
    names = [table.name for table in ranked.tables]
    dims = dims_of(config, names)
    config = with_bytes(with_bytes_of(config, out), vocabulary)
    # What may be refused is tried before the folder is begun: the cap, and the budget by FAE's modes.
    chosen = None if is_sealed(out) else check_split(config, vocabulary, samples, resources)
    output = Output.begin("split", VERSION, config, [input_of(vocabulary), input_of(samples)], out)
    if output.sealed is not None:
        return output.sealed
    # How many rows of each table are hot: the first ones, so a number says it all.
    num_hot, calibration = chosen or check_split(config, vocabulary, samples, resources)
    # Hot rows are known: tag every sample, part by part.
    num_train = ranked.num_train_samples
    done = 0
    tasks = ((entry, num_train - first, num_hot, samples, output) for first, entry in samples.parts())
    for num_samples in run_tasks(_tag_part, tasks, workers=resources.workers):
        done += num_samples
        resources.progress("split", done, samples.num_samples)
    # Tables of another width than the default record it; for all others the settings say it.
    tables = tuple(
        PlannedTable(
            name=table.name,
            num_rows=table.num_rows,
            oov_id=table.oov_id,
            missing_id=table.missing_id,
            is_multi_hot=table.is_multi_hot,
            features=table.features,
            num_hot=hot,
            embedding_dim=None if dim == config.embedding_dim else dim,
            row_bytes=None if dim == config.embedding_dim else row_bytes(dim, config.embedding_optimizer),
        )
        for table, hot, dim in zip(ranked.tables, num_hot, dims, strict=True)
    )
    # For comparison, what exact counts would have made hot with as many bytes.
    if calibration is not None:
        from .orders import exact_hot_rows

        widths = bytes_of_rows(config, names)
        exact = exact_hot_rows(vocabulary, samples, widths, calibration.hot_bytes, workers=resources.workers)
        calibration = replace(calibration, exact=exact)
    totals = PlanTotals(
        tables=tables,
        row_bytes=row_bytes(config.embedding_dim, config.embedding_optimizer),
        num_rows=ranked.num_rows,
        num_hot_rows=sum(num_hot),
        num_train_samples=num_train,
        num_valid_samples=ranked.num_valid_samples,
        samples=_samples_by_tag(output, samples.num_samples, num_train),
        calibration=calibration,
    )
    return output.seal(totals)


def check_split(
    config: SplitConfig, vocabulary: Manifest, samples: Manifest, resources: Resources
) -> tuple[list[int], CalibrationInfo | None]:
    """Raise ConfigError where `split` would refuse, before it writes anything.

    Returns:
        The hot rows of each table, which are tried on the way; and the calibration of FAE's modes.
    """
    budget_bytes = with_bytes(config, vocabulary).hot_bytes
    assert budget_bytes != "auto"
    ranked = VocabularyTotals.of(vocabulary)
    needed = needed_bytes(config, ranked.num_rows, samples, resources.workers)
    check_cap("split", resources, needed)
    widths = bytes_of_rows(config, [table.name for table in ranked.tables])
    if config.mode == "budget":
        return HotOrder(vocabulary, widths).num_hot(budget_bytes)[0], None
    from .orders import calibrate

    return calibrate(config.mode, vocabulary, widths, budget_bytes)


def with_bytes_of(config: SplitConfig, folder: Path) -> SplitConfig:
    """Return ``config`` with the bytes that a plan in ``folder`` names, where its own are ``auto``."""
    last = FolderState.read(folder).last
    found = last["config"].get("hot_bytes") if last is not None and last["stage"] == "split" else None
    return replace(config, hot_bytes=found) if config.hot_bytes == "auto" and found is not None else config


def with_bytes(config: SplitConfig, vocabulary: Manifest) -> SplitConfig:
    """Return ``config`` with the bytes that ``auto`` stands for with this vocabulary, in whole KiB."""
    if config.hot_bytes != "auto":
        return config
    if config.mode != "budget":
        return replace(config, hot_bytes=FAE_BYTES)
    widths = bytes_of_rows(config, [table.name for table in VocabularyTotals.of(vocabulary).tables])
    found = HotOrder(vocabulary, widths).bytes_serving(read_tables(vocabulary, "count"), AUTO_PERCENT)
    return replace(config, hot_bytes=min(MOST_AUTO_BYTES, ByteSize(-(-found // KIB) * KIB)))


def needed_bytes(config: SplitConfig, num_rows: int, samples: Manifest, workers: int) -> int:
    """Return the bytes that `split` needs: the tags of a part for each worker, and what FAE's modes hold."""
    largest = max((entry.num_samples for entry in samples.files), default=0)
    of_rows = 0 if config.mode == "budget" else CALIBRATION_ROW_BYTES * num_rows
    return crew_size(workers) * _TAG_BYTES * largest + of_rows


def dims_of(config: SplitConfig, features: Sequence[str]) -> list[int]:
    """Return the floats of each feature's rows; raise ConfigError for a name that is no feature."""
    dims = numbers_of("feature_dims", config.feature_dims, features, config.embedding_dim)
    return [dims[name] for name in features]


def bytes_of_rows(config: SplitConfig, features: Sequence[str]) -> list[int]:
    """Return the bytes of each feature's rows with their optimizer state; raise ConfigError as `dims_of`."""
    return [row_bytes(dim, config.embedding_optimizer) for dim in dims_of(config, features)]


def _tag_part(entry: FileEntry, num_train: int, num_hot: list[int], samples: Manifest, output: Output) -> int:
    """Tag one file, of which the first ``num_train`` samples are for training."""
    if output.has(entry.path):
        return entry.num_samples
    # Ids are checked before they are compared: a damaged one would only look cold.
    ids = PartIds.read(read_batch(samples, entry), SamplesTotals.of(samples).tables)
    ids.check_ids(samples.folder / entry.path)
    is_hot = ids.tags(num_hot)
    hot_train = int(np.count_nonzero(is_hot[: max(num_train, 0)]))
    hot_evaluation = int(np.count_nonzero(is_hot)) - hot_train
    facts = TagsFacts(hot_train=hot_train, hot_evaluation=hot_evaluation)
    with output.writing(entry.path, entry.num_samples, facts) as path:
        write_batch(path, {"is_hot": pa.array(is_hot)})
    return entry.num_samples


def _samples_by_tag(output: Output, num_samples: int, num_train: int) -> TaggedSamples:
    facts = [entry.read_facts(TagsFacts) for entry in output.finished.values()]
    num_hot = sum(found.hot_train for found in facts)
    return TaggedSamples(
        hot=num_hot,
        mixed=num_train - num_hot,
        evaluation=num_samples - num_train,
        evaluation_hot=sum(found.hot_evaluation for found in facts),
    )
