"""Shards from Python: as arrays and frames, and as a torch dataset for custom training loops.

Batches of the dataset are those of the shards, in the order that ``hotset train`` takes them with the same
seed. Each rank and each worker of a loader reads different batches; a loader returns them in turn, so the
order does not depend on the number of workers. Where an epoch stands is a place in the order of all ranks, so
that it goes on with other numbers of ranks and workers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch.utils.data import IterableDataset, get_worker_info

from ...pipeline.errors import ConfigError, local_path, plain_value, require_at_least
from ...pipeline.folders.totals import by_feature
from ...pipeline.formats.user_data import CategoryIds, array_of
from ...pipeline.schema.schema import GROUP, nearest
from ...pipeline.schema.schema_file import schema_of
from ...pipeline.settings import LastBatch
from ...pipeline.stages.row_order import read_tables
from ...stats.batch_rows import part_of_rank
from ...stats.shuffle import epoch_order
from .batch import Batch, EmbeddingTable, at_cache_line, join
from .shard_file import HAS_GROUP
from .shards import EvaluationPart, Part, ShardOrigin, ShardSet

if TYPE_CHECKING:
    import polars as pl

_CATEGORY = "category"


def categories_of(found: CategoryIds, ids: Any) -> pl.Series:
    """Return the category of each id as a column; raises ConfigError for what is no id of the table."""
    import polars as pl

    numbers = array_of(ids)
    if not pa.types.is_integer(numbers.type) or numbers.null_count:
        raise ConfigError(f"ids must be whole numbers, got {numbers.type}")
    return pl.Series(_CATEGORY, found.categories(numbers.to_numpy(zero_copy_only=False)))


BatchKind = Literal["hot_only", "mixed", "training", "evaluation"]


class Shards:
    """The shards that `hotset.preprocess` wrote.

    Args:
        data: the folder of all stages, or its ``shards/`` alone.

    Raises:
        HotsetError: there are none, or they are damaged or without labels.

    Example:
        ``shards = hotset.Shards("data"); print(shards.tables); batch = next(shards.batches())``
    """

    def __init__(self, data: str | Path) -> None:
        self._shards = ShardSet.open(local_path(data))

    def __repr__(self) -> str:
        """Return folder, tables, rows and samples in one line."""
        tables = self._shards.tables
        samples = ", ".join(f"{count:,} {part} samples" for part, count in self.num_samples.items())
        num_rows = sum(table.num_rows for table in tables)
        return f"Shards({str(self.folder)!r}, {len(tables)} tables, {num_rows:,} rows, {samples})"

    def _repr_html_(self) -> str:
        """Return the line above and the tables, as a notebook shows them."""
        return f"<p>{escape(repr(self))}</p>{self.tables._repr_html_()}"

    @property
    def folder(self) -> Path:
        """Folder of the shards."""
        return self._shards.manifest.folder

    @property
    def batch_size(self) -> int:
        """Samples of a batch; the last one of each kind may have fewer."""
        return self._shards.batch_size

    @property
    def num_dense(self) -> int:
        """Number of dense features."""
        return self._shards.num_dense

    @property
    def num_samples(self) -> dict[str, int]:
        """Samples of the training part and of the evaluation part."""
        return {
            "training": self._shards.num_training_samples,
            "evaluation": self._shards.num_evaluation_samples,
        }

    @property
    def tables(self) -> pl.DataFrame:
        """A row for each table: `table`, `num_rows`, `num_hot`, `embedding_dim` and `is_multi_hot`."""
        import polars as pl

        tables = self._shards.tables
        return pl.DataFrame(
            {
                "table": [table.name for table in tables],
                "num_rows": [table.num_rows for table in tables],
                "num_hot": [table.num_hot for table in tables],
                "embedding_dim": [table.embedding_dim for table in tables],
                "is_multi_hot": [table.is_multi_hot for table in tables],
            }
        )

    def batches(self, kind: BatchKind = "training") -> Iterator[dict[str, Any]]:
        """Yield the batches of a kind in the order in which they are stored.

        Returns:
            Dictionaries of read-only arrays: ``label`` (B,) float32, ``dense`` (B, K) float32, and of each
            table its ids: (B,) int32, or for a multi-hot table a pair of offsets, (B + 1,) int32, and ids.
            ``is_hot``, (B,) bool, says of evaluation samples whether all of their rows are hot. Where the log
            has them: ``label_NAME`` and ``weight``, float32, ``group``, uint64, and ``has_group``, bool.

        Raises:
            ConfigError: there is no such kind.
            ShardError: a damaged file.
        """
        # Evaluation batches are numbered apart from those that are trained on.
        shards = self._shards
        if kind == "evaluation":
            for number in range(shards.num_evaluation_batches):
                yield self._arrays(shards.evaluation_batch(number))
            return
        wanted = {"hot_only": (True,), "mixed": (False,), "training": (True, False)}
        if kind not in wanted:
            raise ConfigError(f"there are no batches {kind!r}", hint=nearest(kind, [*wanted, "evaluation"]))
        for number, is_hot_only in enumerate(shards.is_hot_only.tolist()):
            if is_hot_only in wanted[kind]:
                yield self._arrays(shards.training_batch(number))

    def counts(self, table: str) -> NDArray[np.int64]:
        """Return how often the training part looked up each row of a table.

        The array is (num_rows,) in the order of ids.

        Raises:
            ConfigError: there is no such table, or the folder has no vocabulary.
        """
        names = [each.name for each in self._shards.tables]
        if table not in names:
            raise ConfigError(f"{self.folder} has no table {table!r}", hint=nearest(table, names))
        return read_tables(self._origin().vocabulary, "count")[names.index(table)]

    def ids(self, table: str, categories: Any) -> NDArray[np.int32]:
        """Return the id of each category of a table, (N,); see `FittedRun.vectors`."""
        return self._categories_of(table).ids(array_of(categories))

    def categories(self, table: str, ids: Any) -> pl.Series:
        """Return the category of each id of a table, as the log writes it; see `FittedRun.categories`."""
        return categories_of(self._categories_of(table), ids)

    def _categories_of(self, table: str) -> CategoryIds:
        origin = self._origin()
        return CategoryIds(origin.vocabulary, schema_of(origin.schema), table)

    def _origin(self) -> ShardOrigin:
        origin = ShardOrigin.of(self._shards)
        if origin is None:
            raise ConfigError(f"{self.folder} has no vocabulary next to it: open the folder of all stages")
        return origin

    def _arrays(self, batch: Batch) -> dict[str, Any]:
        arrays: dict[str, Any] = {"label": batch.label_B.numpy(), "dense": batch.dense_BK.numpy()}
        arrays |= batch.of_samples
        if batch.is_hot_B is not None:
            arrays["is_hot"] = batch.is_hot_B.astype(np.bool_)
        for name, ids, offsets in batch.features(self._shards.tables):
            arrays[name] = ids if offsets is None else (offsets, ids)
        return arrays


Split = Literal["train", "valid", "test"]
_PARTS: dict[Split, Part] = {"valid": "validation", "test": "test"}
_STATE_VERSION = 2
LABEL = "label"
DENSE = "dense"
KEYED_JAGGED = "sparse"
_Features = dict[str, tuple[torch.Tensor, torch.Tensor | None]]
"""Ids by feature in their order, and the offsets of lists."""
MLPERF_SIZES = (3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1)
"""Ids per sample of each of the 26 features, 214 in all."""


class MultiHotDraws:
    """Multi-hot ids made from one-hot ids, as MLPerf's DLRM benchmark draws them.

    Each row of a table has a list that begins with itself; the other ids are drawn uniformly from the table,
    once for all samples. MLPerf writes the lists of all samples to disk, 3.8 TB for the Terabyte log. Here
    only the lists of the rows are kept, in memory: 4 bytes for each drawn id, 23 GB for its 40 million rows a
    table.

    Args:
        tables: those of the features of a log.
        sizes: ids per sample of each feature; 1 leaves it as it is.
        seed: of the draws, 0 in MLPerf.

    Raises:
        ConfigError: not one size for each table, one below 1, or a feature that has lists already.

    Source:
        mlcommons/training, torchrec_dlrm/multi_hot.py, distribution "uniform": the draws are equal for equal
        numbers of rows and sizes.
    """

    def __init__(self, tables: Sequence[EmbeddingTable], sizes: Sequence[int], seed: int = 0) -> None:
        if len(sizes) != len(tables):
            raise ConfigError(f"multi_hot has {len(sizes)} sizes, and the log {len(tables)} features")
        # The generator of that program, whose stream runs through all tables.
        random = np.random.RandomState(seed)
        self._drawn: dict[str, NDArray[np.int32]] = {}
        for table, size in zip(tables, sizes, strict=True):
            if size < 1:
                raise ConfigError(f"multi_hot must be 1 or more for each table, got {size}")
            if size > 1 and table.is_multi_hot:
                raise ConfigError(f"feature {table.name!r} has lists already, so multi_hot must be 1 for it")
            if size > 1:
                drawn_RM = random.randint(0, table.num_rows, size=(table.num_rows, size - 1))
                self._drawn[table.name] = drawn_RM.astype(np.int32)

    def expand(self, name: str, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return ids of all samples, (N,) int32, and offsets, (B + 1,) int64.

        Args:
            name: of a feature; one of size 1 has no offsets.
            ids: (B,) int32.
        """
        if name not in self._drawn:
            return ids, None
        drawn_BM = self._drawn[name][ids.numpy()]
        lists = np.concatenate([ids.numpy()[:, None], drawn_BM], axis=1)
        offsets = torch.arange(0, lists.size + 1, lists.shape[1], dtype=torch.int64, device="cpu")
        return torch.from_numpy(lists.reshape(-1)), offsets


@dataclass(frozen=True, slots=True)
class RankSteps:
    """Which batches a rank reads in each step of an epoch, or of the rest of one.

    Ranks take whole batches in turn. What is left for less than a batch each is shared: joined, and cut into
    one part for each rank, so that all ranks take as many steps and no sample is lost.
    """

    sizes: Sequence[int]
    """Samples of each batch, of all ranks."""
    rank: int
    world_size: int
    last_batch: LastBatch
    is_even: bool
    """Whether all ranks take as many steps; otherwise each reads whole batches alone."""

    @property
    def num_steps(self) -> int:
        if not self.is_even:
            return len(range(self.rank, len(self.sizes), self.world_size))
        has_rest = self._num_whole * self.world_size < len(self.sizes)
        return self._num_whole + (has_rest and self.last_batch != "drop" and not self._joins_rest)

    @property
    def _num_whole(self) -> int:
        """Steps in which each rank reads a batch of its own."""
        return len(self.sizes) // self.world_size

    @property
    def _joins_rest(self) -> bool:
        """Whether the rest joins the last step with whole batches, because it is too small for one."""
        few = sum(self.sizes[self._num_whole * self.world_size :]) < self.world_size
        return self._num_whole > 0 and (few or self.last_batch == "merge")

    def own(self, step: int) -> range:
        """Return the place in the order of the batch that is this rank's alone, if there is one."""
        place = step * self.world_size + self.rank
        return range(place, place + (step < self._num_whole or not self.is_even))

    def shared(self, step: int) -> range:
        """Return the places of the batches of which each rank has a part."""
        first, stop = self._num_whole * self.world_size, len(self.sizes)
        is_last = self.is_even and step == self.num_steps - 1 and self.last_batch != "drop"
        return range(first, stop if is_last else first)

    def part(self, num_samples: int) -> tuple[int, int]:
        """Return the first and the last-plus-one of this rank's samples among shared ones.

        Raises:
            ConfigError: not one for each rank, and none has a batch of its own.
        """
        if num_samples < self.world_size and not self._num_whole:
            raise ConfigError(f"{num_samples} samples are too few for {self.world_size} ranks")
        return part_of_rank(num_samples, self.rank, self.world_size)


class ShardDataset(IterableDataset[dict[str, Any]]):
    """The batches of a folder of shards, one epoch each time it is iterated.

    A batch is a dictionary: ``label`` (B,) float32, ``dense`` (B, K) float32, and for each categorical
    feature its ids, (B,) int32, by its name; for one with lists the ids of all samples, (N,) int32, and under
    ``NAME_offsets``, (B + 1,) int64, where those of each sample begin, as `torch.nn.EmbeddingBag` takes them
    with ``include_last_offset``. With ``keyed_jagged`` all ids are one KeyedJaggedTensor of TorchRec,
    ``sparse``. A log with such keys in its schema adds other labels, ``label_NAME`` (B,) float32, ``weight``
    (B,) float32, ``group`` (B,) int64, the bits of its number, and ``has_group`` (B,) bool. A label that is
    missing is NaN.

    Give it to a loader with ``batch_size=None``, because samples are batched already::

        dataset = ShardDataset("DIR", seed=1)
        for epoch in range(3):
            dataset.set_epoch(epoch)
            for batch in DataLoader(dataset, batch_size=None, num_workers=2):
                ...

    With several ranks all take as many steps, and every sample is read: batches that are too few for one each
    are joined, and each rank gets a part of the samples as its last batch.

    Torchdata's StatefulDataLoader resumes it in the middle of an epoch. With another number of ranks or
    workers, give the loader's state, of any rank, to `load_state_dict` instead, and make a new loader.
    Without states, `set_epoch` takes the number of batches that were trained on already.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        split: Split = "train",
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        keyed_jagged: bool = False,
        multi_hot: Sequence[int] | None = None,
        last_batch: LastBatch = "keep",
        equal_parts: bool = False,
    ) -> None:
        """Open the shards of ``folder``, which `preprocess` wrote, and hash those of ``split``.

        Args:
            folder: DIR or its ``shards/``.
            split: training batches, or those of the validation or the test part, in the order of the log.
            seed: seed of the order of training batches.
            rank: number of this process; it reads every ``world_size``-th batch.
            world_size: number of processes. Each reads as many training batches; what is left at the end is
                cut into a part for each.
            keyed_jagged: give ids as a KeyedJaggedTensor.
            multi_hot: ids per sample that each feature gets, in their order: the one in the log
                and those that MLPerf's benchmark draws for it; `MLPERF_SIZES` are the 26
                sizes of that benchmark. By default features are as the log has them.
            last_batch: whether a training batch with fewer samples than the others stays ("keep"), is left
                out ("drop"), or joined to the one before ("merge"), as in `hotset.fit`; also the batches
                that are too few for one at each rank.
            equal_parts: of an evaluation part, whether all ranks read as many batches, as those of training;
                otherwise one may have a batch more than another.

        Raises:
            ConfigError: an unknown split, a rank that is not below ``world_size``, a feature whose name is
                that of another entry of a batch, or sizes that do not fit the features.
            HotsetError: no shards, or damaged ones.
        """
        check_split(split)
        plain_value("last_batch", (LastBatch,), last_batch)
        seed, rank, world_size = (
            plain_value(name, (int,), value)
            for name, value in (("seed", seed), ("rank", rank), ("world_size", world_size))
        )
        require_at_least("world_size", world_size, 1)
        if not 0 <= rank < world_size:
            raise ConfigError(f"rank must be in [0, {world_size}), got {rank}")
        self._folder = local_path(folder)
        self._split = split
        self._seed = seed
        self._rank = rank
        self._world_size = world_size
        self._keyed_jagged = keyed_jagged
        self._multi_hot = multi_hot
        self._last_batch = last_batch
        self._is_even = split == "train" or equal_parts
        self._draws: MultiHotDraws | None = None
        self._epoch = 0
        self._first = 0
        """Batches of the epoch, of all ranks, that are left out."""
        self._later_first = 0
        """The same of later iterations: a loaded state is in the middle of one only."""
        self._chosen = torch.zeros(3, dtype=torch.int64, device="cpu")
        """What `set_epoch` said last, in memory that workers share: number of its calls, epoch, batches that
        all ranks skip."""
        self._chosen.share_memory_()  # type: ignore[no-untyped-call]
        self._num_chosen = 0
        """Calls that this process or worker has followed."""
        self._position = 0
        """Batches of the epoch that this process or worker has returned."""
        self._start = 0
        """Batches that the next iteration leaves out, because a state was loaded."""
        self._opened: tuple[int, ShardSet] | None = None
        # Files are hashed once, here, and not again by each worker that opens them, unless it finds others.
        self._kinds = ("hot_only", "mixed") if split == "train" else ("evaluation",)
        self._hashed: tuple[tuple[int, int, int], ...] | None = None
        shards = self._shards()
        states = shards.file_states(self._kinds)
        self._hashed = states if shards.verify(self._kinds) else None
        if multi_hot is not None:
            self._draws = MultiHotDraws(by_feature(shards.tables), multi_hot)
        _refuse_equal_names(shards, multi_hot)

    def __len__(self) -> int:
        """Return the number of batches of an epoch, of this rank."""
        return self._steps(self._numbers()).num_steps

    def set_epoch(self, epoch: int, first_batch: int = 0) -> None:
        """Choose the next epoch, from 0, and how many batches of this rank to skip.

        Call it in the process that makes the loader, before each epoch. Workers follow it when the loader is
        iterated next, persistent ones too.
        """
        require_at_least("epoch", epoch, 0)
        require_at_least("first_batch", first_batch, 0)
        self._choose(epoch, first_batch * self._world_size)

    def _choose(self, epoch: int, first: int) -> None:
        # A worker's own state, as a loader restores it, is no choice for the others.
        if get_worker_info() is None:
            self._chosen.copy_(
                torch.tensor([int(self._chosen[0]) + 1, epoch, first], dtype=torch.int64, device="cpu")
            )
        self._follow(epoch, first)

    def _follow(self, epoch: int, first: int) -> None:
        self._epoch = epoch
        self._first = self._later_first = first
        self._position = 0
        self._start = 0
        self._num_chosen = int(self._chosen[0])

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the batches of the epoch that belong to this rank and worker."""
        # A persistent worker has its copy from before the last `set_epoch`.
        num_chosen, epoch, first = self._chosen.tolist()
        if num_chosen != self._num_chosen:
            self._follow(epoch, first)
        shards = self._shards()
        read, _ = batches_of(shards, self._split)
        numbers = self._numbers()[self._first :]
        steps = self._steps(numbers)
        # The steps of this worker among those of its rank.
        worker, count = _worker()
        own = range(steps.num_steps)[worker :: max(count, 1)]
        # A loaded state is in the middle of the first epoch only.
        start, self._start = self._start, 0
        self._position = start
        for position, step in enumerate(own[start:], start + 1):
            batch = self._read(read, numbers, steps, step)
            # Set before the batch is returned: a loader reads the state that follows it.
            self._position = position
            yield self._as_dictionary(shards, batch)
        self._position = 0
        self._first = self._later_first

    @staticmethod
    def _read(read: Callable[[int], Batch], numbers: Sequence[int], steps: RankSteps, step: int) -> Batch:
        """Return what this rank reads in a step."""
        parts = [read(numbers[place]) for place in steps.own(step)]
        if shared := steps.shared(step):
            rest = join([read(numbers[place]) for place in shared])
            parts.append(rest.cut(*steps.part(rest.num_samples)))
        return join(parts)

    def state_dict(self) -> dict[str, Any]:
        """Return where iteration stands, in this process or worker; plain numbers and texts."""
        return {
            "version": _STATE_VERSION,
            "shards": self._shards().manifest.fingerprint,
            "split": self._split,
            "seed": self._seed,
            "last_batch": self._last_batch,
            "world_size": self._world_size,
            "workers": _worker()[1],
            "epoch": self._epoch,
            "first": self._first,
            "position": self._position,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state`` was taken, in the next iteration.

        Args:
            state: of a dataset, or the whole one of torchdata's StatefulDataLoader, taken at any rank. That
                of a loader may be of other numbers of ranks and workers; all ranks must have taken as many
                steps, and must be given it.

        Raises:
            ConfigError: the state is of other shards, or of another split or seed, or a loader gives it to
                one of another number of ranks or workers.
        """
        found = [dict(each) for each in _states_in(state)]
        if not found:
            raise ConfigError("there is no state of a ShardDataset in it")
        own = self.state_dict()
        if found[0].get("version") == 1:  # of before an epoch could go on with other ranks
            ranks = _count(found[0], "world_size")
            found = [each | {"first": _count(each, "first_batch") * ranks} for each in found]
            found[0] = {"last_batch": "keep"} | found[0] | {"version": _STATE_VERSION}
        # The place means nothing in another order of batches, so what decides the order must be equal.
        keys = ["version", "shards", "split", "seed", "last_batch"]
        is_of_worker = _worker()[1] > 0
        if is_of_worker:
            keys += ["world_size", "workers"]
        for key in keys:
            if found[0].get(key) != own[key]:
                raise ConfigError(
                    f"the state is of {key} {found[0].get(key)!r}, want {own[key]!r}",
                    hint="dataset.load_state_dict(loader.state_dict()), then a new loader, takes any number"
                    if key in ("world_size", "workers")
                    else None,
                )
        num_steps = sum(_count(each, "position") for each in found) + _count(state, _SINCE_SNAPSHOT)
        first = _count(found[0], "first")
        if is_of_worker:
            self._choose(_count(found[0], "epoch"), first)
            self._position = self._start = num_steps
            return
        if found[0].get("workers", 0) not in (0, len(found)):
            raise ConfigError(f"the state is of {len(found)} of {found[0]['workers']} workers, want all")
        self._choose(_count(found[0], "epoch"), first + num_steps * _count(found[0], "world_size"))
        self._later_first = first

    def _shards(self) -> ShardSet:
        """Return the shards as opened by this process, which shares no files."""
        if self._opened is None or self._opened[0] != os.getpid():
            shards = ShardSet.open(self._folder)
            # On another machine the folder may be another copy, whose bytes nobody has hashed.
            if self._hashed is not None and shards.file_states(self._kinds) != self._hashed:
                shards.verify(self._kinds)
            if self._last_batch != "keep":
                shards = shards.with_last_batch(self._last_batch)
            self._opened = (os.getpid(), shards)
        return self._opened[1]

    def __getstate__(self) -> dict[str, Any]:
        """Drop open files and drawn lists for pickling.

        A worker that is spawned opens and draws its own. It may run in another folder, as those of Ray do,
        and so gets the whole path.
        """
        return self.__dict__ | {"_opened": None, "_draws": None, "_folder": self._folder.absolute()}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """Share memory with own workers where the copy came without it, as from Ray or `copy.deepcopy`."""
        self.__dict__.update(state)
        self._chosen.share_memory_()  # type: ignore[no-untyped-call]

    def _numbers(self) -> Sequence[int]:
        """Return the batch numbers of all ranks, in the order of the epoch."""
        shards = self._shards()
        if self._split != "train":
            return EvaluationPart(shards, _PARTS[self._split]).numbers
        order: list[int] = epoch_order(
            shards.is_hot_only, self._seed, self._epoch, spread=shards.is_grouped
        ).tolist()
        return order

    def _steps(self, numbers: Sequence[int]) -> RankSteps:
        """Return how ranks share the batches ``numbers``."""
        shards = self._shards()
        if self._split == "train":
            sizes = shards.training_sizes
        else:
            part = EvaluationPart(shards, _PARTS[self._split])
            size = shards.batch_size
            sizes = [min(size, part.num_samples - number * size) for number in part.numbers]
        found = [sizes[number] for number in numbers]
        return RankSteps(found, self._rank, self._world_size, self._last_batch, self._is_even)

    def _as_dictionary(self, shards: ShardSet, batch: Batch) -> dict[str, Any]:
        found: dict[str, Any] = {LABEL: batch.label_B, DENSE: at_cache_line(batch.dense_BK)}
        # One copy that turns the matrix: a worker then sends its columns as views of one piece of memory.
        batch = replace(batch, ids_BF=np.ascontiguousarray(batch.ids_BF.T).T)
        features: _Features = {}
        for name, ids_N, offsets_B1 in batch.features(shards.tables):
            if offsets_B1 is None:
                features[name] = (torch.from_numpy(ids_N), None)
            else:
                lists = (torch.from_numpy(ids_N.copy()), torch.from_numpy(offsets_B1.astype(np.int64)))
                features[name] = lists
        if self._multi_hot is not None:
            self._draws = self._draws or MultiHotDraws(by_feature(shards.tables), self._multi_hot)
            for name, (ids, offsets) in features.items():
                features[name] = self._draws.expand(name, ids) if offsets is None else (ids, offsets)
        for name, values in batch.of_samples.items():
            # Torch hardly knows unsigned numbers; groups are only compared.
            found[name] = torch.from_numpy(values.view(np.int64) if name == GROUP else values)
        if self._keyed_jagged:
            return found | {KEYED_JAGGED: _keyed_jagged(features)}
        for name, (ids, offsets) in features.items():
            found[name] = ids
            if offsets is not None:
                found[offsets_name(name)] = offsets
        return found


def check_split(split: str) -> None:
    """Raise ConfigError for an unknown split."""
    if split not in ("train", *_PARTS):
        raise ConfigError(f"split must be train, valid or test, got {split!r}")


def batches_of(shards: ShardSet, split: Split) -> tuple[Callable[[int], Batch], range]:
    """Return the reader of the batches of a split, and their numbers in the order of the files.

    Raises:
        ConfigError: an unknown split.
    """
    check_split(split)
    if split == "train":
        return shards.training_batch, range(shards.num_training_batches)
    part = EvaluationPart(shards, _PARTS[split])
    return part.batch, part.numbers


def _keyed_jagged(features: _Features) -> Any:
    """Return ids as TorchRec has them: by feature, with bag lengths."""
    try:
        from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
    except ImportError as error:
        raise ConfigError(
            "keyed_jagged needs torchrec, which is not installed",
            hint="scripts/install-torchrec installs it",
        ) from error
    lengths = [
        torch.ones(len(ids), dtype=torch.int32, device="cpu")
        if offsets is None
        else offsets.diff().to(torch.int32)
        for ids, offsets in features.values()
    ]
    values = torch.cat([ids for ids, _ in features.values()])
    return KeyedJaggedTensor(keys=list(features), values=values, lengths=torch.cat(lengths))


def offsets_name(name: str) -> str:
    return f"{name}_offsets"


def _refuse_equal_names(shards: ShardSet, multi_hot: Sequence[int] | None) -> None:
    """Raise ConfigError where two entries of a batch would have one name."""
    features = by_feature(shards.tables)
    names = [LABEL, DENSE, *shards.sample_columns, *(feature.name for feature in features)]
    names += [HAS_GROUP] if GROUP in shards.sample_columns else []
    # Drawn lists have offsets, as those of the log have.
    sizes = multi_hot or [1] * len(features)
    names += [
        offsets_name(feature.name)
        for feature, size in zip(features, sizes, strict=True)
        if feature.is_multi_hot or size > 1
    ]
    equal = sorted({name for name in names if names.count(name) > 1})
    if equal:
        raise ConfigError(
            f"a feature is called {equal[0]!r}, which a batch holds under that name already",
            hint="give the feature another name in the schema: `name`",
        )


_SINCE_SNAPSHOT = "_steps_since_snapshot"
"""Batches that torchdata's loader has returned since it asked its workers for their states."""


def _states_in(state: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the states of datasets in that of a loader: one for each worker."""
    if isinstance(state, Mapping):
        if "shards" in state and "position" in state:
            yield state
        else:
            for each in state.values():
                yield from _states_in(each)


def _count(state: Mapping[str, Any], key: str) -> int:
    """Return a count of a state, which may come from a file."""
    found = state.get(key, 0)
    require_at_least(key, plain_value(key, (int,), found), 0)
    return int(found)


def _worker() -> tuple[int, int]:
    """Return this loader worker's number and their number; without any 0, 0."""
    info = get_worker_info()
    return (0, 0) if info is None else (info.id, info.num_workers)
