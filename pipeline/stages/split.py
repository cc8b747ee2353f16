"""``split``: vocabulary/ + samples/ -> plan/, hot rows and tags of samples.

The hot rows are a prefix of the order over all tables (by lookups per byte where rows differ in width), so
they are one number per table. A sample is hot when all of its lookups hit hot rows.

For comparison, FAE's hot rows come from a vocabulary by sampled counts, with what they lose against exact
counts. The counter array, whose chunks the paper samples, is in the order of first appearance in the log, as
FAE's preprocessing numbers categories. Frequent rows appear early and so are adjacent: a chunk has many of
them or none, and the intervals cover the truth less often than they claim.

Source: FAE (Adnan et al., PVLDB 15(1), section 4), with exact counts in place of its sampling.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...stats.ranking.fae_sampling import (
    LARGE_TABLE_BYTES,
    ProfiledTable,
    estimate_bytes,
    find_threshold,
    is_permutation,
)
from ...stats.ranking.ranking import num_hot_of_runs, runs_by_density, runs_of
from ...stats.ranking.row_bytes import OPTIMIZERS, row_bytes
from ..errors import (
    MIB,
    ByteSize,
    ConfigError,
    ManifestError,
    format_byte_size,
    hint_to_rewrite,
    require_at_least,
    require_at_most,
)
from ..folders.manifest import FileEntry, Manifest, TagsFacts, is_sealed
from ..folders.output import Output, input_of
from ..folders.totals import (
    MOST_FLOATS,
    CalibrationInfo,
    ExactHotRows,
    PlannedTable,
    PlanTotals,
    SamplesTotals,
    SamplingSettings,
    TaggedSamples,
    VocabularyTable,
    VocabularyTotals,
)
from ..formats.arrow_files import read_batch, write_batch
from ..formats.ids import PartIds
from ..runtime.memory import refuse_small_cap
from ..runtime.tasks import DEFAULT_RESOURCES, Resources, num_workers, run_tasks
from ..schema.schema import NO_SETTINGS, FeatureSettings, check_settings, numbers_of
from .hot_curve import Levels, hot_curves
from .row_order import HotOrder, read_tables

MODES = ("fae-paper", "fae-code")
CALIBRATION_ROW_BYTES = 40
"""Memory for each row of a vocabulary: the order of every table by exact counts or its counters by first
appearance, levels, and three arrays of the largest table (bytes)."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """The threshold of `fae-paper`, and how well its estimate fits."""

    share: float
    """Share of a table's lookups from which on a row is hot."""
    num_large_tables: int
    num_covered_tables: int
    """Large tables whose hot rows the estimate's interval covers."""
    estimated_bytes: tuple[int, int, int]
    """Low end, middle and high end of the estimate for all tables."""
    is_covered: bool
    """Whether that interval covers the bytes of the hot rows."""


@dataclass(frozen=True, slots=True)
class Calibrated:
    """Hot rows of each table, and how they were chosen."""

    num_hot: list[int]
    num_drawn_samples: int
    """Samples whose lookups were counted."""
    threshold: Threshold | None
    """Threshold that chose them; None for rows chosen until the budget was full."""
    num_unsampled_hot_rows: int
    """Hot rows that the sample never looked up."""

    def describe(self, hot_bytes: int, exact: ExactHotRows) -> CalibrationInfo:
        """The calibration as the manifest of a plan has it."""
        found = self.threshold
        return CalibrationInfo(
            num_drawn_samples=self.num_drawn_samples,
            threshold=None if found is None else found.share,
            num_large_tables=None if found is None else found.num_large_tables,
            num_covered_tables=None if found is None else found.num_covered_tables,
            estimated_bytes=None if found is None else found.estimated_bytes,
            is_covered=None if found is None else found.is_covered,
            num_unsampled_hot_rows=self.num_unsampled_hot_rows,
            hot_bytes=hot_bytes,
            exact=exact,
        )


def calibrate(mode: str, vocabulary: Manifest, row_bytes: Sequence[int], budget_bytes: int) -> Calibrated:
    """FAE's hot rows.

    Args:
        mode: ``fae-paper``, a threshold whose upper estimate fits the budget, small tables whole; or
            ``fae-code``, the rows of most sampled lookups, all tables together, until the budget is full.
        vocabulary: by sampled counts.
        row_bytes: per table.
        budget_bytes: of all hot rows.

    Raises:
        ConfigError: the vocabulary is in another order, or the small tables exceed the budget.
    """
    totals = VocabularyTotals.of(vocabulary)
    if totals.rank_by != "sampled" or totals.sampling is None:
        raise ConfigError(
            f"mode {mode} needs ids by sampled counts, {vocabulary.folder} has them by {totals.rank_by}",
            hint=_rank_by_sample(vocabulary.folder.parent),
        )
    sampled = read_tables(vocabulary, "sampled")
    threshold: Threshold | None = None
    if mode == "fae-code":
        num_hot, _ = HotOrder(vocabulary, row_bytes).num_hot(budget_bytes)
    else:
        num_hot, threshold = _by_threshold(vocabulary, sampled, row_bytes, budget_bytes)
    # Rows that are hot though the sample never met them: small tables are hot as a whole.
    never_seen = sum(
        int(np.count_nonzero(counts[:hot] == 0)) for counts, hot in zip(sampled, num_hot, strict=True)
    )
    return Calibrated(num_hot, totals.sampling.num_drawn_samples, threshold, never_seen)


def _by_threshold(
    vocabulary: Manifest, sampled: list[NDArray[np.int64]], row_bytes: Sequence[int], budget_bytes: int
) -> tuple[list[int], Threshold]:
    # Small tables are hot as a whole and leave the rest of the budget to the large ones.
    sizes = [counts.shape[0] * width for counts, width in zip(sampled, row_bytes, strict=True)]
    small = sum(size for size in sizes if size < LARGE_TABLE_BYTES)
    if small > budget_bytes:
        raise ConfigError(
            f"mode fae-paper keeps small tables whole: they take {format_byte_size(small)}, "
            f"hot_bytes is {format_byte_size(budget_bytes)}",
            hint=f"give --hot-bytes {small} or more",
        )
    profiled = _profile(vocabulary, sampled, row_bytes, sizes)
    threshold = find_threshold(list(profiled.values()), budget_bytes - small)
    num_hot = []
    num_covered = 0
    for number, counts in enumerate(sampled):
        if number not in profiled:
            num_hot.append(counts.shape[0])
            continue
        # Sampled counts fall with ids: the hot rows are those down to the cut-off.
        cut_off = profiled[number].cut_off(threshold)
        num_hot.append(int(np.searchsorted(-counts, -cut_off, side="right")))
        estimate = profiled[number].estimate(threshold)
        num_covered += estimate.low <= num_hot[-1] <= estimate.high
    # The estimate is of the large tables alone; the small ones add their exact bytes.
    estimated = estimate_bytes(list(profiled.values()), threshold)
    measured = sum(hot * width for hot, width in zip(num_hot, row_bytes, strict=True))
    found = Threshold(
        threshold,
        len(profiled),
        num_covered,
        (round(small + estimated.low), round(small + estimated.middle), round(small + estimated.high)),
        small + estimated.low <= measured <= small + estimated.high,
    )
    return num_hot, found


def _profile(
    vocabulary: Manifest, sampled: list[NDArray[np.int64]], row_bytes: Sequence[int], sizes: Sequence[int]
) -> dict[int, ProfiledTable]:
    """The large tables by number."""
    # The paper profiles counters in the order of first appearance, and ids are in the order of counts.
    sampling = SamplingSettings.of(vocabulary)
    rate = sampling.sampling_rate
    seed = sampling.sampling_seed
    counts = read_tables(vocabulary, "count")
    appearances = read_tables(vocabulary, "appearance")
    profiled = {}
    for number, table in enumerate(VocabularyTotals.of(vocabulary).tables):
        if sizes[number] >= LARGE_TABLE_BYTES:
            counters = np.empty_like(sampled[number])
            counters[_appearances(vocabulary, table, appearances[number])] = sampled[number]
            accesses = rate * int(counts[number].sum())
            profiled[number] = ProfiledTable.of(counters, row_bytes[number], accesses, seed + number)
    return profiled


def _appearances(vocabulary: Manifest, table: VocabularyTable, found: NDArray[np.int64]) -> NDArray[np.int64]:
    """(num_rows,), position of each row in the order of first appearance; checked, because it is an index."""
    if not is_permutation(found):
        raise ManifestError(
            f"{vocabulary.folder / table.name}.arrow: its positions in the order of first appearance are no "
            "order of its rows",
            hint=hint_to_rewrite(vocabulary.folder),
        )
    return found


def with_exact_counts(
    vocabulary: Manifest, samples: Manifest, row_bytes: Sequence[int], budget_bytes: int, *, workers: int
) -> ExactHotRows:
    """Find what exact counts make hot with as many bytes."""
    counts = read_tables(vocabulary, "count")
    # Ids are ranks by sampled counts here, so the order by exact counts is computed here.
    orders = [np.argsort(-each, kind="stable") for each in counts]
    runs = [runs_of(each[order]) for each, order in zip(counts, orders, strict=True)]
    # As many bytes as the sampling used, so that the two differ in the choice alone.
    num_hot, num_hot_rows = num_hot_of_runs(*runs_by_density(runs, row_bytes), row_bytes, budget_bytes)
    levels: Levels = []
    for order, hot in zip(orders, num_hot, strict=True):
        level = np.ones(order.shape[0], np.uint8)
        level[order[:hot]] = 0
        levels.append(level)
    num_train = VocabularyTotals.of(vocabulary).num_train_samples
    (curve,) = hot_curves(samples, [levels], 1, num_train, Resources(workers=workers))
    return ExactHotRows(num_hot_rows=num_hot_rows, hot_samples=int(curve.samples[0]))


def _rank_by_sample(directory: Path) -> str:
    """Return the commands that give ids by sampled counts, and the one that does all of it."""
    path = shlex.quote(str(directory))
    return (
        f"`hotset rank {path} --rank-by sampled --redo && hotset encode {path}` first; "
        "hotset preprocess does both by itself with --mode"
    )


VERSION = 1
_HOT_BYTES = ByteSize(256 * MIB)
_TAG_BYTES = 2
"""Bytes of a sample's tag: as it is found, and as it is written."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitConfig:
    """The settings of the split stage; part of its fingerprint."""

    hot_bytes: ByteSize = _HOT_BYTES
    """Fast memory for the hot rows of all tables with their optimizer state."""

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
        require_at_least("hot_bytes", self.hot_bytes, 0)
        if self.mode not in ("budget", *MODES):
            raise ConfigError(f"mode must be one of budget, {', '.join(MODES)}, got {self.mode!r}")
        # Readers take rows that are wider for damage.
        require_at_least("embedding_dim", self.embedding_dim, 1)
        require_at_most("embedding_dim", self.embedding_dim, MOST_FLOATS)
        check_settings("feature_dims", self.feature_dims)
        for name, dim in self.feature_dims:
            require_at_most(f"feature_dims {name}", dim, MOST_FLOATS)
        if self.embedding_optimizer not in OPTIMIZERS:
            wanted = ", ".join(OPTIMIZERS)
            raise ConfigError(
                f"embedding_optimizer must be one of {wanted}, got {self.embedding_optimizer!r}"
            )

    @classmethod
    def of(cls, plan: Manifest) -> SplitConfig:
        """Return the config that a plan was split with; raise ManifestError where it is damaged."""

        def build(config: dict[str, Any]) -> SplitConfig:
            config["hot_bytes"] = ByteSize(config["hot_bytes"])
            config["feature_dims"] = FeatureSettings(config["feature_dims"])
            return cls(**config)

        return plan.read_config(build)


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
    widths = row_widths(config, [table.name for table in ranked.tables])
    bytes_of_rows = [width.row_bytes for width in widths]
    # What may be refused is tried before the folder is begun: the cap, and the budget by FAE's modes.
    calibrated = None if is_sealed(out) else refuse_split(config, vocabulary, samples, resources)
    output = Output.begin("split", VERSION, config, [input_of(vocabulary), input_of(samples)], out)
    if output.sealed is not None:
        return output.sealed
    # How many rows of each table are hot: the first ones, so a number says it all.
    if config.mode != "budget":
        calibrated = calibrated or calibrate(config.mode, vocabulary, bytes_of_rows, config.hot_bytes)
        num_hot = calibrated.num_hot
    else:
        num_hot, _ = HotOrder(vocabulary, bytes_of_rows).num_hot(config.hot_bytes)
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
            num_hot=hot,
            embedding_dim=None if width.embedding_dim == config.embedding_dim else width.embedding_dim,
            row_bytes=None if width.embedding_dim == config.embedding_dim else width.row_bytes,
        )
        for table, hot, width in zip(ranked.tables, num_hot, widths, strict=True)
    )
    # For comparison, what exact counts would have made hot with as many bytes.
    calibration = None
    if calibrated is not None:
        hot_bytes = sum(hot * width for hot, width in zip(num_hot, bytes_of_rows, strict=True))
        exact = with_exact_counts(vocabulary, samples, bytes_of_rows, hot_bytes, workers=resources.workers)
        calibration = calibrated.describe(hot_bytes, exact)
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


def refuse_split(
    config: SplitConfig, vocabulary: Manifest, samples: Manifest, resources: Resources
) -> Calibrated | None:
    """Raise ConfigError where `split` would refuse, before it writes anything.

    Returns:
        The hot rows of FAE's modes, which are tried on the way.
    """
    ranked = VocabularyTotals.of(vocabulary)
    needed = needed_bytes(config, ranked.num_rows, samples, resources.workers)
    refuse_small_cap("split", resources, needed)
    widths = row_widths(config, [table.name for table in ranked.tables])
    if config.mode == "budget":
        return None
    return calibrate(config.mode, vocabulary, [width.row_bytes for width in widths], config.hot_bytes)


def needed_bytes(config: SplitConfig, num_rows: int, samples: Manifest, workers: int) -> int:
    """Return the bytes that `split` needs: the tags of a part for each worker, and what FAE's modes hold."""
    largest = max((entry.num_samples for entry in samples.files), default=0)
    of_rows = 0 if config.mode == "budget" else CALIBRATION_ROW_BYTES * num_rows
    return num_workers(workers) * _TAG_BYTES * largest + of_rows


@dataclass(frozen=True, slots=True)
class RowWidth:
    """The width of one table's rows."""

    embedding_dim: int
    """Floats of a row."""
    row_bytes: int
    """Bytes of a row with its optimizer state."""


def row_widths(config: SplitConfig, features: Sequence[str]) -> list[RowWidth]:
    """Return the width of each feature's rows; raise ConfigError for a name that is no feature."""
    dims = numbers_of("feature_dims", config.feature_dims, features, config.embedding_dim)
    return [RowWidth(dims[name], row_bytes(dims[name], config.embedding_optimizer)) for name in features]


def _tag_part(entry: FileEntry, num_train: int, num_hot: list[int], samples: Manifest, output: Output) -> int:
    """Tag one file, of which the first ``num_train`` samples are for training."""
    if output.has(entry.path):
        return entry.num_samples
    # Ids are checked before they are compared: a damaged one would only look cold.
    ids = PartIds.read(read_batch(samples, entry), SamplesTotals.of(samples).tables)
    ids.refuse_strays(samples.folder / entry.path)
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
