"""A shard folder as tables and batches, with its log's schema.

A hot set is a prefix of the order over all tables, so shards whose batches were not grouped by it (order
`original`) can be trained with any other budget of hot rows: `with_hot_bytes`.

Training needs nothing but shards. Predicting the lines of a log also needs its schema and the vocabulary of
its ids, which are found where their folders are still next to the shards.

Shards hold the evaluation samples as one run of batches, of which one may have the last samples of the
validation part and the first of the test part. The batches of a part are cut anew, so that each part begins
with a whole batch, as a log of its lines alone does: products of matrices may differ in their last bits where
batches are cut at other samples.
"""

from __future__ import annotations

import copy
import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from ...pipeline.errors import (
    GIB,
    ConfigError,
    HotsetError,
    ShardError,
    first_line,
    hint_to_rewrite,
    raise_system_fault,
)
from ...pipeline.folders.manifest import MANIFEST, Manifest, hash_file, shards_in
from ...pipeline.folders.totals import (
    ColumnsTotals,
    ShardFacts,
    ShardSettings,
    ShardsTotals,
    VocabularyTotals,
    by_feature,
    for_features,
)
from ...pipeline.formats.arrow_files import DAMAGE, damage_named
from ...pipeline.formats.batch_checksums import StoredBatches
from ...pipeline.runtime.tasks import run_tasks
from ...pipeline.schema.schema import LABEL, check_name, label_column, nearest
from ...pipeline.settings import LastBatch
from ...stats.batch_rows import first_stray_lookup
from ...stats.ranking import tag_hot_samples
from ...stats.row_bytes import row_bytes
from ...stats.shuffle import tag_cold_bags
from .batch import Batch, EmbeddingTable, Lookups, LookupsOfBatch, join, join_lookups, with_histories
from .shard_file import Columns, ShardFile

_STAGE = "pack"
_VERSION = 1
_HASHED_FIRST_BYTES = 4 * GIB
"""Bytes of shards below which they are hashed before they are used, which takes seconds."""
Found = TypeVar("Found", bound=Lookups)
_KINDS = ("hot_only", "mixed", "evaluation")


_MOST_OPENED = 1024
"""Files that are opened with the shards; of more, each is opened when it is read."""


_POSITION = np.dtype([("file", "i4"), ("index", "i4"), ("num_samples", "i8"), ("is_hot_only", "?")])
"""The position of a batch in the files, and what is known of it; in arrays, as a log has millions."""


def _open_files(manifest: Manifest) -> list[ShardFile]:
    """Find the files of shards in the order of their manifest, with the checksums of their batches."""
    # Most files have equal facts, which are read once.
    known: dict[str, ShardFacts] = {}
    files = []
    for _, entry in manifest.parts():
        text = repr(entry.facts)
        if text not in known:
            known[text] = manifest.facts_of(ShardFacts, entry)
        files.append((entry, known[text]))
    stored = StoredBatches(manifest, files)
    found = [
        ShardFile(manifest.folder, entry, facts, manifest.checked_status(entry), stored, number)
        for number, (entry, facts) in enumerate(files)
    ]
    for file in found[:_MOST_OPENED]:
        with damage_named(file.path, ShardError, "cannot be read"):
            file.open()
    return found


def _tables_of(totals: ShardsTotals) -> tuple[EmbeddingTable, ...]:
    """Return the tables of a manifest; raise ConfigError for a name that is none."""
    tables = tuple(
        EmbeddingTable(
            table.name, table.num_rows, table.num_hot, dim, table.is_multi_hot, features=table.features
        )
        for table, dim in zip(totals.tables, totals.embedding_dims, strict=True)
    )
    # They name tensors of the weights, and their features columns of the shards.
    for named in (*tables, *by_feature(tables)):
        check_name(named.name)
    return tables


class ShardSet:
    """A sealed shard folder: its tables, and its batches by number.

    Training batches are numbered in the order of the manifest: those of the hot-only files, then those
    of the mixed ones. The number does not say when a batch is trained on.
    """

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        totals = ShardsTotals.of(manifest)
        try:
            # Tables first, since all other sizes are checked against them.
            self.tables = _tables_of(totals)
            self.num_dense = len(totals.dense)
            # The table of each feature, for those in the matrix of ids and those with bags.
            numbers = for_features(self.tables, range(len(self.tables)))
            pairs = list(zip(numbers, by_feature(self.tables), strict=True))
            self._one_hot = [number for number, feature in pairs if not feature.is_multi_hot]
            self._multi_hot = [number for number, feature in pairs if feature.is_multi_hot]
            names = tuple(feature.name for _, feature in pairs if feature.is_multi_hot)
            self.sample_columns = totals.sample_columns
            """Names of the columns of samples besides the label."""
            self.labels = totals.labels
            """Names of the labels that a sample may lack; empty where there is one that all samples have."""
            self.num_unlabeled = totals.num_unlabeled
            """Samples without the first of them."""
            self.number_labels = totals.number_labels
            """Those of them that are any number, and not 0 or 1."""
            of_samples = (self.sample_columns, bool(totals.labels), totals.number_columns)
            self._columns = Columns(self.num_dense, len(self._one_hot), names, *of_samples)
            # A log without labels can be preprocessed, but neither trained on nor evaluated.
            if not totals.has_label:
                raise ShardError(
                    f"{manifest.folder} has no labels: its log was read without them",
                    hint='preprocess again without --no-label, and with label = "COLUMN" in your schema',
                )
            self.embedding_dim = totals.embedding_dim
            self.embedding_optimizer = totals.embedding_optimizer
            row_bytes(self.embedding_dim, self.embedding_optimizer)  # refuses an unknown one
            settings = ShardSettings.of(manifest)
            self.batch_size = settings.batch_size
            self.has_packed_budget = True
            self.is_grouped = settings.is_grouped
            self._num_rows_F = np.array([table.num_rows for table in self.tables], np.int64)
            self._num_hot_F = np.array([table.num_hot for table in self.tables], np.int64)
            self._oov_F = np.array([table.oov_id for table in totals.tables], np.int32)
            # Sizes that a damaged manifest could have, and that arrays would be made of.
            widths = [table.embedding_dim for table in self.tables]
            if min(self.embedding_dim, self.batch_size, *widths) < 1:
                raise ValueError("embedding_dim or batch_size below 1")
            self._files = _open_files(manifest)
            self._training, self._evaluation = self._positions_by_kind()
            self._merged: dict[int, Any] = {}
            """Short batches that are a part of another, by the number of that one."""
            self.num_validation_samples = totals.num_valid_samples
            self.evaluation_starts = [0, *self._evaluation.num_samples.cumsum().tolist()]
            """First sample of each evaluation batch among those of all, and the end of the last one."""
            # Scores are of all samples of a part, so a number that the files do not have is never reached.
            if totals.samples.evaluation != self.evaluation_starts[-1]:
                raise ValueError(
                    f"{totals.samples.evaluation} evaluation samples, want {self.evaluation_starts[-1]}, "
                    f"those of its files"
                )
        except HotsetError:
            raise
        except DAMAGE as error:
            raise_system_fault(manifest.folder, error)
            raise ShardError(
                f"the manifest of {manifest.folder} is damaged or lacks {first_line(error)}",
                hint=hint_to_rewrite(manifest.folder),
            ) from error

    @classmethod
    def open(cls, folder: Path) -> ShardSet:
        """Open ``folder``, or its ``shards/``.

        Raises:
            ManifestError: missing, unfinished or damaged.
            ShardError: another stage or version, or files that do not match the manifest.
        """
        # The folder that preprocess wrote, or the shards alone.
        manifest = shards_in(folder)
        if manifest.stage != _STAGE:
            raise ShardError(
                f"{manifest.folder} holds the stage {manifest.stage!r}, want {_STAGE!r}",
                hint="give the folder that preprocess wrote (its --out), or its shards/",
            )
        if manifest.version != _VERSION:
            raise ShardError(
                f"{manifest.folder} has shards of version {manifest.version}, want {_VERSION}",
                hint=hint_to_rewrite(manifest.folder),
            )
        return cls(manifest)

    def with_hot_rows(self, num_hot: Sequence[int]) -> ShardSet:
        """Return the same batches with other hot prefixes; all count as mixed."""
        other = copy.copy(self)
        other.tables = tuple(
            replace(table, num_hot=count) for table, count in zip(self.tables, num_hot, strict=True)
        )
        # What was derived from the old hot rows is dropped or derived again.
        other._num_hot_F = np.array(num_hot, np.int64)
        other._training, other._merged = copy.deepcopy((self._training, self._merged))
        for each in (other._training, *other._merged.values()):
            each["is_hot_only"] = False
        other.__dict__.pop("is_hot_only", None)
        other.has_packed_budget = False
        return other

    def with_frozen(self, names: Collection[str]) -> ShardSet:
        """Return the same batches, with tables whose rows no step changes."""
        other = copy.copy(self)
        other.tables = tuple(replace(table, is_frozen=table.name in names) for table in self.tables)
        return other

    def with_last_batch(self, last_batch: LastBatch) -> ShardSet:
        """Return shards whose short training batches are dropped, or merged into the one before.

        A batch is merged into one of its kind; where it is the only one, it stays as it is.
        """
        training = self._training.copy()
        short = set(np.flatnonzero(training.num_samples < self.batch_size).tolist())
        if last_batch == "keep" or not short:
            return self
        other = copy.copy(self)
        other._merged = {}
        kept: list[int] = []
        kinds = [self._files[file].facts.kind for file in training.file.tolist()]
        for number in range(len(kinds)):
            if number not in short:
                kept.append(number)
            elif last_batch == "merge":
                if kept and kinds[kept[-1]] == kinds[number]:
                    training.is_hot_only[kept[-1]] &= training.is_hot_only[number]
                    other._merged[len(kept) - 1] = training[number]
                else:
                    kept.append(number)
        other._training = training[kept]
        other.__dict__.pop("is_hot_only", None)
        other.__dict__["num_training_samples"] = sum(other.training_sizes)
        return other

    def with_histories(self, histories: Mapping[str, int]) -> ShardSet:
        """Return shards with the same batches, whose lists of these features are histories."""
        other = copy.copy(self)
        other.tables = with_histories(self.tables, histories)
        return other

    def column_of(self, label: str) -> str:
        """Return the column of a label in batches; raises ConfigError where there is no such label."""
        if label not in self.labels:
            known = ", ".join(map(repr, self.labels)) or "a single one without a name"
            raise ConfigError(
                f"{self.manifest.folder} has no label {label!r}, but {known}",
                hint=nearest(label, self.labels) or 'its schema says labels = ["click", "buy"]',
            )
        return LABEL if label == self.labels[0] else label_column(label)

    def labels_of(self, batch: Batch, names: Sequence[str]) -> NDArray[np.float32]:
        """Return the labels of a batch, (B, L), NaN where missing; without names those of the first label."""
        columns = [self.column_of(name) for name in names] or [LABEL]
        found = [batch.label_B.numpy() if name == LABEL else batch.of_samples[name] for name in columns]
        return np.stack(found, axis=1)

    def verify(self, kinds: Collection[str] = _KINDS, *, is_first: bool = False) -> bool:
        """Hash the files of these kinds now, unless they are large and verified as they are read.

        Args:
            kinds: of the files.
            is_first: hash them now in any case.

        Returns:
            Whether they were hashed.

        Raises:
            ShardError: as by `refuse_damage`.
        """
        files = [file for file in self._files if file.facts.kind in kinds]
        is_large = sum(file.entry.num_bytes for file in files) >= _HASHED_FIRST_BYTES
        if is_large and not is_first and all(file.verifies_reads for file in files):
            return False
        self.refuse_damage(kinds)
        return True

    def refuse_damage(self, kinds: Collection[str] = _KINDS) -> None:
        """Hash the files of these kinds.

        A flipped byte may well be a valid number. Runs at the speed of memory, and the bytes it reads stay in
        the page cache for training.

        Raises:
            ShardError: the first file whose bytes are not those that were sealed.
        """
        for _ in self.hashing(kinds):
            pass

    def hashing(self, kinds: Collection[str], part: slice = slice(None), workers: int = 0) -> Iterator[None]:
        """Hash a part of the files of these kinds; yields after each. Raises as `refuse_damage`."""
        files = [file for file in self._files if file.facts.kind in kinds][part]
        # Closed at a damaged file: an error keeps the variables of this function, and with them threads.
        tasks = ((file.path,) for file in files)
        with closing(run_tasks(hash_file, tasks, workers=workers)) as found:
            for file in files:
                with damage_named(file.path, ShardError, "cannot be read"):
                    _, checksum = next(found)
                if checksum != file.entry.xxh3_128:
                    raise ShardError(
                        f"{file.path} is damaged: its checksum is {checksum}, want {file.entry.xxh3_128}",
                        hint=hint_to_rewrite(self.manifest.folder),
                    )
                # What was written to since the file was opened would be named at the next read.
                file.is_hashed = True
                yield

    def file_states(self, kinds: Collection[str] = _KINDS) -> tuple[tuple[int, int, int], ...]:
        """Return inode, bytes and change time (ns) of the files of these kinds.

        Where they are what they were, the files are those that were hashed.
        """
        found = [os.stat(file.path) for file in self._files if file.facts.kind in kinds]
        return tuple((each.st_ino, each.st_size, each.st_mtime_ns) for each in found)

    def _positions_by_kind(self) -> tuple[Any, Any]:
        """Return the positions of training and evaluation batches, as records of ``_POSITION``."""
        all_facts = [file.facts for file in self._files]
        counts = np.array([facts.num_batches for facts in all_facts], np.int64)
        first = np.cumsum(counts) - counts
        file = np.repeat(np.arange(counts.size, dtype=np.int32), counts)
        found = np.recarray(file.size, _POSITION)
        found["file"] = file
        found["index"] = np.arange(file.size) - first[file]
        left = np.array([file.entry.num_samples for file in self._files], np.int64)[file]
        found["num_samples"] = np.minimum(left - found.index * np.int64(self.batch_size), self.batch_size)
        kind = np.array([_KINDS.index(facts.kind) for facts in all_facts], np.int8)[file]
        found["is_hot_only"] = kind == _KINDS.index("hot_only")
        # Files of order original mark those of their batches that happen to look up hot rows alone.
        for number, facts in enumerate(all_facts):
            if facts.hot_only_batches:
                found.is_hot_only[first[number] + np.array(facts.hot_only_batches)] = True
        hot_only, mixed, evaluation = (np.flatnonzero(kind == each) for each in range(len(_KINDS)))
        return found[np.concatenate([hot_only, mixed])], found[evaluation]

    @cached_property
    def is_hot_only(self) -> NDArray[np.bool_]:
        """(num_training_batches,); whether each training batch looks up hot rows only."""
        return np.ascontiguousarray(self._training.is_hot_only)

    @property
    def training_sizes(self) -> list[int]:
        """Samples of each training batch."""
        sizes: list[int] = self._training.num_samples.tolist()
        for number, position in self._merged.items():
            sizes[number] += int(position.num_samples)
        return sizes

    @property
    def least_batch_samples(self) -> int:
        """Samples of the smallest training batch; 0 where there is none."""
        return min(self.training_sizes, default=0)

    @property
    def most_batch_samples(self) -> int:
        """Samples that a training batch may have."""
        return max([self.batch_size, *self.training_sizes])

    @property
    def num_training_batches(self) -> int:
        return len(self._training)

    @property
    def mixed_share(self) -> float:
        """Share of the training batches that is mixed; 0 where there is none."""
        return np.count_nonzero(~self.is_hot_only) / max(self.num_training_batches, 1)

    @property
    def num_evaluation_batches(self) -> int:
        return len(self._evaluation)

    @cached_property
    def num_training_samples(self) -> int:
        samples = ShardsTotals.of(self.manifest).samples
        return samples.hot_only + samples.mixed

    @property
    def num_evaluation_samples(self) -> int:
        return ShardsTotals.of(self.manifest).samples.evaluation

    def training_batch(self, number: int) -> Batch:
        """The training batch ``number``."""
        batch = self._read(self._training[number], ShardFile.read)
        if number in self._merged:
            return join([batch, self._read(self._merged[number], ShardFile.read)])
        return batch

    def training_lookups(self, number: int) -> LookupsOfBatch:
        """The lookups of training batch ``number``, whose other columns are not read."""
        lookups = self._read(self._training[number], ShardFile.read_lookups)
        if number in self._merged:
            merged = self._read(self._merged[number], ShardFile.read_lookups)
            return join_lookups([lookups, merged])
        return lookups

    def training_samples(self, number: int, lookups: LookupsOfBatch, part: tuple[int, int]) -> Batch:
        """Some samples of training batch ``number``, whose lookups were read.

        Args:
            number: of the batch.
            lookups: those of the whole batch.
            part: the first and the last-plus-one sample; blocks with other samples are not read.

        Raises:
            ShardError: as by `training_batch`.
        """
        positions = [self._training[number], *([self._merged[number]] if number in self._merged else [])]
        starts = accumulate((int(each.num_samples) for each in positions), initial=0)
        found = []
        # Of a merged batch, each of the two that it was made of has a range of the samples.
        for (start, stop), position in zip(pairwise(starts), positions, strict=True):
            low, high = (min(max(each, start), stop) for each in part)
            found.append(self._read_part(position, lookups.cut(low, high), (low - start, high - start)))
        return join(found)

    def evaluation_batch(self, number: int) -> Batch:
        """The evaluation batch ``number``, in log order."""
        lookups = self.evaluation_lookups(number)
        return self.evaluation_samples(number, lookups, (0, lookups.num_samples))

    def evaluation_lookups(self, number: int) -> LookupsOfBatch:
        """The lookups of evaluation batch ``number``, whose other columns are not read."""
        return self._read(self._evaluation[number], ShardFile.read_lookups)

    def evaluation_samples(self, number: int, lookups: LookupsOfBatch, part: tuple[int, int]) -> Batch:
        """Some samples of evaluation batch ``number``; see `training_samples`.

        Args:
            number: of the batch.
            lookups: those of the samples.
            part: the first and the last-plus-one sample.
        """
        position = self._evaluation[number]
        batch = self._read_part(position, lookups, part)
        return batch if self.has_packed_budget else replace(batch, is_hot_B=self._tag(batch))

    def has_oov(self, batch: Batch) -> NDArray[np.bool_]:
        """Return which samples, (num_samples,), look up rows of oov or rare categories."""
        has_oov_B: NDArray[np.bool_] = (batch.ids_BF == self._oov_F[self._one_hot]).any(axis=1)
        for bags, oov in zip(batch.bags, self._oov_F[self._multi_hot].tolist(), strict=True):
            # The sample of a lookup is the last one whose first lookup is not after it.
            places_N = np.flatnonzero(bags.ids_N == oov)
            has_oov_B[np.searchsorted(bags.offsets_B1, places_N, side="right") - 1] = True
        return has_oov_B

    def _tag(self, batch: Batch) -> NDArray[np.uint8]:
        """(num_samples,); 1 where all lookups of a sample are hot."""
        is_hot_B = np.empty(batch.num_samples, np.uint8)
        # Every sample starts as its one-hot lookups decide; bags may only take the tag away.
        tag_hot_samples(batch.ids_BF, self._num_hot_F[self._one_hot], is_hot_B)
        for bags, num_hot in zip(batch.bags, self._num_hot_F[self._multi_hot].tolist(), strict=True):
            tag_cold_bags(bags.offsets_B1, bags.ids_N, num_hot, is_hot_B)
        return is_hot_B

    def _read(self, position: Any, read: Callable[[ShardFile, int, Columns, bool], Found]) -> Found:
        """Read a batch, or its lookups; check them against the manifest, as the file is not trusted."""
        found = self._read_file(position, read)
        limit_F = self._num_hot_F if position.is_hot_only else self._num_rows_F
        stray = first_stray_lookup(found.ids_BF, limit_F[self._one_hot])
        if stray >= 0:
            number = self._one_hot[stray % len(self._one_hot)]
            self._refuse_stray(number, int(found.ids_BF.flat[stray]), position)
        for number, bags in zip(self._multi_hot, found.bags, strict=True):
            stray = first_stray_lookup(bags.ids_N[:, None], limit_F[number : number + 1])
            if stray >= 0:
                self._refuse_stray(number, bags.ids_N[stray], position)
        return found

    def _read_part(self, position: Any, lookups: LookupsOfBatch, part: tuple[int, int]) -> Batch:
        """Read some samples, whose lookups were read."""
        return self._read_file(position, partial(ShardFile.read, lookups=lookups, part=part))

    def _read_file(self, position: Any, read: Callable[[ShardFile, int, Columns, bool], Found]) -> Found:
        """Read a batch, a part of it or its lookups, not checked against the manifest."""
        file = self._files[position.file]
        try:
            return read(file, int(position.index), self._columns, bool(position.is_hot_only))
        except DAMAGE:
            with damage_named(file.path, ShardError, "cannot be read"):
                raise

    def _where(self, position: Any) -> str:
        return f"{self._files[position.file].path}: batch {position.index}"

    def _refuse_stray(self, number: int, found: int, position: Any) -> NoReturn:
        table = self.tables[number]
        wanted = f"{table.num_hot} hot rows" if position.is_hot_only else f"{table.num_rows} rows"
        raise ShardError(
            f"{self._where(position)}: id {found} in table {table.name} of {wanted}",
            hint=hint_to_rewrite(self.manifest.folder),
        )


def with_hot_bytes(shards: ShardSet, hot_bytes: int | None, embedding_optimizer: str) -> ShardSet:
    """Return the same shards with the hot rows that fit in ``hot_bytes``; None leaves them as they are.

    A row counts with its optimizer state.

    Raises:
        ConfigError: the shards are grouped by the budget they were made with, or their folder has no
            vocabulary.
    """
    if hot_bytes is None:
        return shards
    if shards.is_grouped:
        raise ConfigError(
            f"the batches of {shards.manifest.folder} are grouped by the budget they were packed with",
            hint="leave --hot-bytes out, or pack with --order original",
        )
    folder = shards.manifest.folder.parent / "vocabulary"
    if not (folder / "manifest.json").exists():
        raise ConfigError(
            f"--hot-bytes needs the order of the rows, and there is no {folder}",
            hint="give the folder that preprocess wrote (its --out)",
        )
    # Ids of another vocabulary would make other rows hot than it says.
    vocabulary = Manifest.read(folder)
    found = [(table.name, table.num_rows) for table in VocabularyTotals.of(vocabulary).tables]
    if found != [(table.name, table.num_rows) for table in shards.tables]:
        raise ConfigError(f"{folder} is not the vocabulary of {shards.manifest.folder}")
    # Hot rows are prefixes: the same order cut at another budget.
    sizes = [row_bytes(table.embedding_dim, embedding_optimizer) for table in shards.tables]
    from ...pipeline.stages.row_order import HotOrder

    num_hot, _ = HotOrder(vocabulary, sizes).num_hot(hot_bytes)
    return shards.with_hot_rows(num_hot)


CRITEO = "criteo-kaggle"
"""The built-in schema of all logs in Criteo's format."""


@dataclass(frozen=True, slots=True)
class ShardOrigin:
    """The schema and vocabulary by which the lines of a log become samples."""

    schema: str
    """The schema as a setting: the name of a built-in one, or TOML."""
    vocabulary: Manifest

    @classmethod
    def of(cls, shards: ShardSet) -> ShardOrigin | None:
        """Find shards' origin; None where a folder is missing, or another log's."""
        wanted = vocabulary_of(shards)
        vocabulary = _sibling(shards, "vocabulary")
        columns = _sibling(shards, "columns")
        if vocabulary is None or columns is None or vocabulary.fingerprint != wanted:
            return None
        if columns.fingerprint != _inputs_of(shards.manifest).get("columns"):
            return None
        return cls(ColumnsTotals.of(columns).schema or CRITEO, vocabulary)


def vocabulary_of(shards: ShardSet) -> str | None:
    """Return the fingerprint of the vocabulary of shards; None without its folder."""
    plan = _sibling(shards, "plan")
    # A plan that was written since has perhaps other ids.
    if plan is None or plan.fingerprint != _inputs_of(shards.manifest).get("plan"):
        return None
    return _inputs_of(plan).get("vocabulary")


def _sibling(shards: ShardSet, name: str) -> Manifest | None:
    folder = shards.manifest.folder.parent / name
    return Manifest.read(folder) if (folder / MANIFEST).exists() else None


def _inputs_of(manifest: Manifest) -> dict[str, str]:
    return {source["name"]: str(source.get("fingerprint")) for source in manifest.inputs}


Part = Literal["validation", "test"]
"""A part of the evaluation samples: the first ones, where the log has such a part, or the others."""


class EvaluationPart:
    """The batches of one part by number, in the order of the log.

    The last one may be short, and those after it are empty. Of a batch only its own samples are read, by
    blocks, and the lookups of the stored batches that have them.

    Args:
        num_ranks: batches whose lookups are read before the first of them is.
        read_lookups: returns the lookups of a stored batch; None: they are read here.
    """

    def __init__(
        self,
        shards: ShardSet,
        part: Part,
        num_ranks: int = 1,
        read_lookups: Callable[[int], LookupsOfBatch] | None = None,
    ) -> None:
        num_validation = shards.num_validation_samples
        self._shards = shards
        self._first = 0 if part == "validation" else num_validation
        self._stop = num_validation if part == "validation" else shards.num_evaluation_samples
        # A batch may begin in the last stored one of the batch before.
        self._read_lookups = lru_cache(num_ranks + 1)(read_lookups or shards.evaluation_lookups)

    @property
    def num_samples(self) -> int:
        return self._stop - self._first

    @property
    def numbers(self) -> range:
        """Numbers of the batches."""
        return range(-(-self.num_samples // self._shards.batch_size))

    def batch(self, number: int) -> Batch:
        """Return the batch ``number`` of the part.

        Raises:
            ShardError: a damaged file.
        """
        return join(
            [
                self._shards.evaluation_samples(stored, self._read_lookups(stored).cut(*part), part)
                for stored, part in self._pieces(number)
            ]
        )

    def lookups(self, number: int) -> LookupsOfBatch:
        """Return the lookups of the batch ``number``; raises as `batch`."""
        return join_lookups([self._read_lookups(stored).cut(*part) for stored, part in self._pieces(number)])

    def _pieces(self, number: int) -> Iterator[tuple[int, tuple[int, int]]]:
        """Yield the stored batches with samples of a batch, and the first and the last-plus-one of these."""
        size, starts = self._shards.batch_size, self._shards.evaluation_starts
        first, stop = (min(self._first + each * size, self._stop) for each in (number, number + 1))
        # An empty batch is an empty part of a stored one.
        low = min(bisect_right(starts, first), len(starts) - 1) - 1
        for stored in range(low, bisect_left(starts, stop, low + 1)):
            start, end = starts[stored : stored + 2]
            yield stored, (max(first - start, 0), min(stop, end) - start)
