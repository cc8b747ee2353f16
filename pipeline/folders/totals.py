"""The totals, settings and facts of files in the manifest of each stage.

``PlanTotals.of(manifest)`` reads and checks those of a plan. The keys and their order are the format of
manifest.json, see docs/formats.md. The tables of a log have a class for each kind of folder.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, Self, TypeVar

from ...stats.row_bytes import OPTIMIZERS
from ..schema.schema import GROUP, LABEL, WEIGHT, label_column
from .manifest import JsonRecord, Manifest, RecordError, require_range, stored_as

MOST_ROWS = 2**31 - 1
"""Rows of a table: ids are int32."""
MOST_FLOATS = 2**20
"""Floats of a row: far more than any model has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TableFeature(JsonRecord):
    """A feature that looks up in a table of several, or of another name."""

    name: str
    is_multi_hot: bool = False
    """Whether it is list-valued."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CountedTable(JsonRecord):
    """A table in counts/."""

    name: str
    """Name of the table: that of its feature, or of the first of them."""
    num_categories: int
    """Distinct categories, missing values not included."""
    num_missing: int
    """Lookups without a value."""
    num_lookups: int | None = None
    """Lookups of the samples that were counted; None where every sample has one."""
    is_multi_hot: bool = False
    """Whether samples may look it up other than once."""
    features: tuple[TableFeature, ...] = ()
    """Features that look up in it; empty where that is the one of its name alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _TableOfRows(JsonRecord):
    """A table whose categories have ids."""

    name: str
    """Name of the table: that of its feature, or of the first of them."""
    num_rows: int
    """Rows, those of missing and out-of-vocabulary values included."""
    oov_id: int
    """Id of the oov row, shared by all categories without a row."""
    missing_id: int
    """Id of the row of missing values; that of oov where they are too few for a row."""

    def check_values(self, where: str) -> None:
        require_range(f"{where}num_rows", self.num_rows, 1, MOST_ROWS)
        require_range(f"{where}oov_id", self.oov_id, 0, self.num_rows - 1)
        require_range(f"{where}missing_id", self.missing_id, 0, self.num_rows - 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class VocabularyTable(_TableOfRows):
    """A table in vocabulary/."""

    oov_count: int
    """Lookups of the out-of-vocabulary row."""
    num_lookups: int | None = None
    """Lookups of the samples that were counted; None where every sample has one."""
    is_multi_hot: bool = False
    """Whether samples may look it up other than once."""
    features: tuple[TableFeature, ...] = ()
    """Features that look up in it; empty where that is the one of its name alone."""

    def check_values(self, where: str) -> None:
        _TableOfRows.check_values(self, where)
        require_range(f"{where}oov_count", self.oov_count, 0)
        require_range(f"{where}num_lookups", self.num_lookups, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleTable(VocabularyTable):
    """A table in samples/: that of the vocabulary, and how the log looks it up."""

    oov_train: int
    """Lookups of the out-of-vocabulary row in the training part."""
    oov_evaluation: int
    """Lookups of that row in the evaluation part."""
    lookups_train: int | None = None
    """Lookups in the training part; None where every sample has one."""
    lookups_evaluation: int | None = None
    """Lookups in the evaluation part; None where every sample has one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedTable(_TableOfRows):
    """A table in plan/ and shards/."""

    is_multi_hot: bool = False
    """Whether samples may look it up other than once."""
    features: tuple[TableFeature, ...] = ()
    """Features that look up in it; empty where that is the one of its name alone."""
    num_hot: int
    """Rows kept in fast memory: those with a lower id."""
    embedding_dim: int | None = None
    """Floats of a row; None where it is the one of the config."""
    row_bytes: int | None = None
    """Bytes of a row with its optimizer state; None where they are those of all tables together."""

    def check_values(self, where: str) -> None:
        _TableOfRows.check_values(self, where)
        require_range(f"{where}num_hot", self.num_hot, 0, self.num_rows)
        require_range(f"{where}embedding_dim", self.embedding_dim, 1, MOST_FLOATS)
        require_range(f"{where}row_bytes", self.row_bytes, 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class MappedTable(JsonRecord):
    """A table of a map from old ids to new ones."""

    name: str
    """Name of the feature."""
    num_old_rows: int
    num_new_rows: int
    num_kept: int
    """Old rows that have a new id."""
    kept_lookups: int
    """Lookups of the new log in rows that are kept."""
    new_lookups: int
    """Lookups of the new log in all rows."""


TableInfo = VocabularyTable | PlannedTable
"""A table in a folder with ids."""
Order = Literal["frequency", "peel", "sampled"]
"""The order of importance of a vocabulary's rows."""


class StageTotals(JsonRecord):
    """Base of the totals of all stages."""

    __slots__ = ()

    @classmethod
    def of(cls, manifest: Manifest) -> Self:
        """The totals of ``manifest``; raises ManifestError where they are not those of such a stage."""
        # Checking totals of hundreds of tables takes time, and every task reads them.
        if cls not in manifest.totals_read:
            manifest.totals_read[cls] = manifest.read_record(manifest.totals, cls, "totals")
        found = manifest.totals_read[cls]
        assert isinstance(found, cls)
        return found


def require_sum(key: str, value: int, parts: Sequence[int]) -> None:
    """Raise RecordError where the value of ``key`` is not the sum over the tables."""
    if value != sum(parts):
        raise RecordError(f"{key} is {value}, want {sum(parts)}, the sum over the tables")


@dataclass(frozen=True, kw_only=True, slots=True)
class RawLog(JsonRecord):
    """A raw file that a log was read from."""

    name: str
    """Name of the file, without its folder."""
    num_bytes: int = stored_as("bytes")
    num_lines: int = stored_as("lines")
    num_samples: int = stored_as("samples")
    xxh3_128_of_blocks: str
    """Checksum of the checksums of its blocks, hex."""

    @property
    def identity(self) -> tuple[int, str]:
        """The size and checksum that two files of the same content have in common, whatever their names."""
        return self.num_bytes, self.xxh3_128_of_blocks


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingLog(RawLog):
    """A raw file with samples in the training part."""

    num_train_samples: int = stored_as("train_samples")
    """Samples of the file that are trained on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleTotals(StageTotals):
    """Totals that say which columns samples have besides features and the first label."""

    labels: tuple[str, ...] = ()
    """Labels that a sample may lack, named as in the log, the first one in the column ``label``; empty where
    there is one that all samples have."""
    number_labels: tuple[str, ...] = ()
    """Those of them that are any number, and not 0 or 1."""
    has_weight: bool = False
    has_group: bool = False

    @property
    def number_columns(self) -> tuple[str, ...]:
        """Names of the columns with labels that are any number."""
        names = zip((LABEL, *map(label_column, self.labels[1:])), self.labels, strict=False)
        return tuple(column for column, label in names if label in self.number_labels)

    @property
    def sample_columns(self) -> tuple[str, ...]:
        """Names of these columns."""
        labels = [label_column(name) for name in self.labels[1:]]
        return (*labels, *([WEIGHT] if self.has_weight else []), *([GROUP] if self.has_group else []))


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnsTotals(SampleTotals):
    """The totals of columns/."""

    num_samples: int = stored_as("samples")
    bad_lines: dict[str, int]
    """Skipped lines by reason."""
    has_label: bool
    dense: tuple[str, ...]
    """Names of the dense features."""
    sparse: tuple[str, ...]
    """Names of the categorical features, list-valued ones included."""
    raw: tuple[RawLog, ...]
    """Files of the log, in order."""
    lists: tuple[str, ...] = ()
    """Names of the list-valued features."""
    floats: tuple[str, ...] = ()
    """Names of the dense features that are floats instead of integers."""
    untransformed: tuple[str, ...] = ()
    """Names of the dense features that are used without a logarithm."""
    schema: str | None = None
    """The schema as text; None for Criteo's logs."""
    has_time: bool = False
    """Whether each sample has a time, which never goes back."""

    def training_logs(self, num_train: int) -> list[TrainingLog]:
        """The files with some of the first ``num_train`` samples, and how many each has."""
        found = []
        # Training samples are the first ones of the log, file after file.
        first = 0
        for log in self.raw:
            if first >= num_train:
                break
            num_own = min(log.num_samples, num_train - first)
            found.append(log.extended(TrainingLog, num_train_samples=num_own))
            first += log.num_samples
        return found


@dataclass(frozen=True, kw_only=True, slots=True)
class SpanInfo(JsonRecord):
    """Consecutive samples whose counts are kept together."""

    file: int | None
    """Number of the raw file; None where all samples are one span."""
    first_sample: int
    num_samples: int
    xxh3_128_of_parts: str
    """Checksum of the parts that were counted, hex."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CountsTotals(StageTotals):
    """The totals of counts/."""

    num_samples: int
    num_train_samples: int
    """Samples of the training part, the first ones of the log."""
    num_valid_samples: int = 0
    """Samples of the validation part, which follow those."""
    tables: tuple[CountedTable, ...]
    num_counted_samples: int | None = None
    """Samples of the window that was counted; None where it is the whole training part."""
    spans: tuple[SpanInfo, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class PeelInfo(JsonRecord):
    """Settings of the peeling of a vocabulary's rows."""

    floor: int
    """Rows that stay first, by frequency."""
    cuts: tuple[int, ...]
    """Numbers of rows whose hot set is that by frequency."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingInfo(JsonRecord):
    """The sample of the log that decided the order of a vocabulary."""

    num_drawn_samples: int
    sampling_rate: float | None = None
    """As in the settings of the vocabulary that this one was adopted from; None where it has its own."""
    sampling_seed: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class VocabularyTotals(StageTotals):
    """The totals of vocabulary/, counted from this log or adopted from a model's."""

    num_samples: int
    num_train_samples: int
    num_valid_samples: int = 0
    """Samples of the validation part, which follow those of the training part."""
    num_counted_samples: int | None = None
    """Samples of the window that was counted; None where it is the whole training part."""
    tables: tuple[VocabularyTable, ...]
    num_rows: int
    """Rows of all tables."""
    rank_by: Order = "frequency"
    peel: PeelInfo | None = None
    sampling: SamplingInfo | None = None
    num_model_samples: int | None = None
    """Training samples of the model whose ids were adopted."""
    model_raw: tuple[TrainingLog, ...] | None = None
    """Files that the model was trained on."""

    def check_values(self, where: str) -> None:
        require_range(f"{where}num_samples", self.num_samples, 0)
        require_range(f"{where}num_train_samples", self.num_train_samples, 0, self.num_samples)
        require_range(
            f"{where}num_valid_samples", self.num_valid_samples, 0, self.num_samples - self.num_train_samples
        )
        require_range(f"{where}num_counted_samples", self.num_counted_samples, 0)
        require_sum(f"{where}num_rows", self.num_rows, [table.num_rows for table in self.tables])


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplesTotals(VocabularyTotals):
    """The totals of samples/: those of the vocabulary, with more about each table."""

    tables: tuple[SampleTable, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class TaggedSamples(JsonRecord):
    """Samples of a log by tag."""

    hot: int
    """Training samples all of whose lookups hit hot rows."""
    mixed: int
    """All other training samples."""
    evaluation: int
    """Evaluation samples."""
    evaluation_hot: int
    """Evaluation samples all of whose lookups hit hot rows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExactHotRows(JsonRecord):
    """The hot rows that exact counts choose with as many bytes."""

    num_hot_rows: int
    hot_samples: int
    """Fully hot training samples."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CalibrationInfo(JsonRecord):
    """The calibration that chose FAE's hot rows."""

    num_drawn_samples: int
    """Samples whose lookups were counted."""
    threshold: float | None = None
    """Share of a table's lookups that makes a row hot; None where rows were taken until memory was full."""
    num_large_tables: int | None = None
    """Tables that the threshold decides about; small ones are hot as a whole."""
    num_covered_tables: int | None = None
    """Large tables whose hot rows the estimate's interval covers."""
    estimated_bytes: tuple[int, int, int] | None = None
    """Low end, middle and high end of the estimate for all tables."""
    is_covered: bool | None = None
    """Whether that interval covers the bytes of the hot rows."""
    num_unsampled_hot_rows: int
    """Hot rows that the sample never looked up."""
    hot_bytes: int
    """Bytes of the hot rows."""
    exact: ExactHotRows | None = None
    """What exact counts choose; None before it is known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanTotals(StageTotals):
    """The totals of plan/."""

    tables: tuple[PlannedTable, ...]
    row_bytes: int
    """Bytes of a row with its optimizer state, unless its table has another number."""
    num_rows: int
    num_hot_rows: int
    num_train_samples: int
    num_valid_samples: int = 0
    """Samples of the validation part, which follow those of the training part."""
    samples: TaggedSamples
    calibration: CalibrationInfo | None = None

    @property
    def bytes_of_rows(self) -> list[int]:
        """Bytes of a row of each table."""
        own = [table.row_bytes for table in self.tables]
        return [self.row_bytes if found is None else found for found in own]


@dataclass(frozen=True, kw_only=True, slots=True)
class KindCounts(JsonRecord):
    """Samples or batches of shards by kind."""

    hot_only: int
    mixed: int
    evaluation: int

    def check_values(self, where: str) -> None:
        for key in ("hot_only", "mixed", "evaluation"):
            require_range(f"{where}{key}", getattr(self, key), 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardsTotals(SampleTotals):
    """The totals of shards/: all that a trainer needs to know of the data."""

    tables: tuple[PlannedTable, ...]
    row_bytes: int
    num_rows: int
    num_hot_rows: int
    hot_bytes: int
    """Byte budget of the hot rows."""
    embedding_dim: int
    """Floats of a row, unless its table has another number."""
    embedding_optimizer: str
    has_label: bool
    dense: tuple[str, ...]
    """Names of the dense features."""
    num_valid_samples: int = 0
    """Evaluation samples of the validation part: the first ones. The others are the test part."""
    samples: KindCounts
    batches: KindCounts
    num_unlabeled: int = 0
    """Samples without the first label."""

    def check_values(self, where: str) -> None:
        require_range(f"{where}num_valid_samples", self.num_valid_samples, 0, self.samples.evaluation)
        if not self.tables:
            raise RecordError(f"{where}tables is empty, want one table or more")
        names = [feature.name for feature in by_feature(self.tables)]
        if len(set(names)) < len(names):
            raise RecordError(f"{where}tables names a feature twice")
        # Sizes a trainer allocates by: each is bounded here, because a manifest may come from anywhere.
        require_range(f"{where}embedding_dim", self.embedding_dim, 1, MOST_FLOATS)
        if self.embedding_optimizer not in OPTIMIZERS:
            known = ", ".join(OPTIMIZERS)
            raise RecordError(
                f"{where}embedding_optimizer is {self.embedding_optimizer!r}, want one of {known}"
            )
        require_sum(f"{where}num_rows", self.num_rows, [table.num_rows for table in self.tables])
        require_sum(f"{where}num_hot_rows", self.num_hot_rows, [table.num_hot for table in self.tables])

    @property
    def embedding_dims(self) -> list[int]:
        """Floats of a row of each table."""
        own = [table.embedding_dim for table in self.tables]
        return [self.embedding_dim if found is None else found for found in own]


@dataclass(frozen=True, kw_only=True, slots=True)
class IdMapTotals(StageTotals):
    """The totals of an id map: each table, and the sums over all of them."""

    tables: tuple[MappedTable, ...]
    num_old_rows: int
    num_new_rows: int
    num_kept: int
    kept_lookups: int
    new_lookups: int


class _OfFeatures(Protocol):
    """A table in a folder or in memory."""

    @property
    def name(self) -> str: ...
    @property
    def is_multi_hot(self) -> bool: ...
    @property
    def features(self) -> tuple[TableFeature, ...]: ...


Table = TypeVar("Table", bound=_OfFeatures)
Value = TypeVar("Value")


def by_feature(tables: Iterable[Table]) -> list[Table]:
    """Return the table of each feature, with the feature's name and whether that is multi-hot.

    The order is that of features everywhere: tables in theirs, and the features of each in the schema's.
    """
    found: list[Table] = []
    for table in tables:
        # A table of one feature is described as that feature already.
        own = [
            replace(table, name=each.name, is_multi_hot=each.is_multi_hot, features=())  # type: ignore[type-var]
            for each in table.features
        ]
        found += own or [table]
    return found


def for_features(tables: Iterable[Table], values: Iterable[Value]) -> list[Value]:
    """Return the value of each feature, which is that of its table."""
    pairs = zip(tables, values, strict=True)
    return [value for table, value in pairs for _ in range(max(1, len(table.features)))]


def one_hot(tables: Iterable[Table]) -> list[Table]:
    """Return the features whose ids are in the column ``ids``, in its order, as `by_feature` does."""
    return [feature for feature in by_feature(tables) if not feature.is_multi_hot]


def multi_hot(tables: Iterable[Table]) -> list[Table]:
    """Return the features that have a separate list column, as `by_feature` does."""
    return [feature for feature in by_feature(tables) if feature.is_multi_hot]


TOTALS_OF_STAGE: dict[str, type[StageTotals]] = {
    "ingest": ColumnsTotals,
    "count": CountsTotals,
    "rank": VocabularyTotals,
    "adopt": VocabularyTotals,
    "encode": SamplesTotals,
    "split": PlanTotals,
    "pack": ShardsTotals,
    "map-ids": IdMapTotals,
}
"""The totals that each stage writes, by the name in its manifest."""


class StageSettings(JsonRecord):
    """Base of the settings of all stages."""

    __slots__ = ()

    @classmethod
    def of(cls, manifest: Manifest) -> Self:
        """Return the settings of ``manifest``; raise ManifestError where one is missing."""
        return manifest.read_record(manifest.config, cls, "config")


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnsSettings(StageSettings):
    """The settings of columns/."""

    schema: str
    """Name of a schema that is built in, or ``toml:`` and a fingerprint."""
    block_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingSettings(StageSettings):
    """The settings of a vocabulary that was ordered by a sample of the log."""

    sampling_rate: float
    sampling_seed: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanSettings(StageSettings):
    """The settings of plan/."""

    hot_bytes: int
    mode: str = "budget"
    """The way to choose hot rows."""
    embedding_dim: int
    embedding_optimizer: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardSettings(StageSettings):
    """The settings of shards/."""

    batch_size: int
    """Samples of a batch; the last one of a kind may have fewer."""
    order: Literal["grouped", "original"]

    @property
    def is_grouped(self) -> bool:
        """Whether each training batch is hot-only or mixed by choice, and the order spreads them evenly."""
        return self.order == "grouped"

    def check_values(self, where: str) -> None:
        require_range(f"{where}batch_size", self.batch_size, 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnsFacts(JsonRecord):
    """A part of columns/."""

    num_lines: int = stored_as("lines")
    """Lines read, bad ones included."""
    num_raw_bytes: int = stored_as("raw_bytes")
    raw_xxh3_128: str = ""
    """Checksum of the raw block, hex; empty where the file is no text."""
    lookups: dict[str, int] = field(default_factory=dict)
    """Elements of each list-valued feature."""
    bad: dict[str, int] = field(default_factory=dict)
    """Skipped lines by reason."""
    num_other_lines: int | None = None
    """Lines that are no rows, or that go on with one; None where there are none."""
    first_time: int | None = None
    """Time of the first sample, seconds since 1970; None without times or samples."""
    last_time: int | None = None
    """Time of the last one."""
    file: int | None = None
    """Number of the file, where these are the facts of one of several."""
    files: tuple[ColumnsFacts, ...] = ()
    """Facts of each file of a part that has several small ones; empty where it is of one."""

    @property
    def by_file(self) -> tuple[ColumnsFacts, ...]:
        """Facts of each file."""
        return self.files or (self,)


@dataclass(frozen=True, kw_only=True, slots=True)
class CountsFacts(JsonRecord):
    """The counts of one table, in all spans or in one."""

    num_missing: int
    """Lookups without a value."""
    num_lookups: int | None = None
    """Lookups counted; None where every sample has one."""
    file: int | None = None
    """Number of the raw file whose counts these are; None for those of all spans."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplesFacts(JsonRecord):
    """A part of samples/."""

    oov_train: tuple[int, ...]
    """Lookups of the out-of-vocabulary row of each table in training samples."""
    oov_evaluation: tuple[int, ...]
    """The same in evaluation samples."""
    lookups: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Lookups of each multi-hot table, in training and in evaluation samples."""


ShardKind = Literal["hot_only", "mixed", "evaluation"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardFacts(JsonRecord):
    """A file of shards/."""

    kind: ShardKind
    num_batches: int = stored_as("batches")
    hot_only_batches: tuple[int, ...] | None = None
    """Numbers of the hot-only batches in a mixed file whose samples were not regrouped; None elsewhere."""
    lookups: dict[str, int] = field(default_factory=dict)
    """Lookups of each multi-hot table."""
    num_unlabeled: int = 0
    """Samples without the first label."""

    def check_values(self, where: str) -> None:
        require_range(f"{where}batches", self.num_batches, 0)
        hot_only = self.hot_only_batches or ()
        if any(not 0 <= number < self.num_batches for number in hot_only):
            raise RecordError(f"{where}hot_only_batches is not among its {self.num_batches} batches")
