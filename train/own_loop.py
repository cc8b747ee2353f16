"""`hotset.nn.Embeddings`: the placements as a torch module for a custom training loop.

The module holds the rows and moves them; labels, dense layers and their optimizer belong to the caller. With
`Embeddings.read_ahead` around the batches, rows are planned and loaded before the batch that needs them, as
in ``hotset train``; without it the rows of each batch are loaded when it arrives. Neither changes a bit.

Batches are dictionaries from any source, so their ids are checked before a kernel reads them. Embeddings are
returned as copies, 3.4 MB for 2,048 samples of 26 features of dimension 16: lookups reuse their memory, and
callers may keep the copies.

The dense layers run in torch outside the device API, which only moves rows: a thread queues the moves ahead
of their batches. The host waits for them at each lookup, so the caller may read the embeddings from any
stream.

Shapes: B samples, F one-hot features, N lookups of a multi-hot feature.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import accumulate, count, islice
from pathlib import Path
from typing import Any, Generic, Literal, TypedDict, TypeVar, Unpack

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import nn

from ..pipeline.errors import MIB, ConfigError, require_at_least
from ..pipeline.folders.totals import by_feature
from ..pipeline.settings import Bytes, Real, Whole, refuse_unknown
from ..stats.batch_rows import first_stray_lookup
from .build import build_tools
from .build_embeddings import attach_movers, build_embeddings, resolve
from .config import EmbeddingOptimizer, PlacementName, TrainConfig, is_launched
from .data.batch import Batch, EmbeddingTable, FeatureBags, join
from .data.dataset import offsets_name
from .data.shards import Shards, with_hot_bytes
from .model.shapes import ModelInputs
from .placements.placements import num_steps_ahead
from .placements.step_source import StepSource
from .ranks.ranks import OneRank
from .rows.embeddings import Embeddings as Rows
from .rows.embeddings import changed_of
from .rows.step_plan import PlannedStep
from .rows.table_group import TableGroup
from .rows.tiers import HostMemory
from .threads import BackgroundIterator


def read_lookups(tables: Sequence[EmbeddingTable], features: Mapping[str, Any]) -> Batch:
    """Return the lookups of a dictionary of `ShardDataset`, without labels and dense features.

    Args:
        tables: all tables of the shards.
        features: for each table its ids by name, (B,) integers; of a multi-hot one the ids of all samples,
            (N,), and under ``NAME_offsets`` where those of each begin, (B + 1,).

    Raises:
        ConfigError: a feature is missing, has another shape or type, or an id that its table has not.
    """
    columns: list[NDArray[np.int32]] = []
    bags: list[FeatureBags] = []
    num_samples: dict[str, int] = {}
    is_hot_only = True
    features_of_log = by_feature(tables)
    names = {table.name for table in features_of_log}
    for table in features_of_log:
        # Ids are refused as they came, before a kernel reads them or they are cut to int32.
        found_N = _integers(features, table.name)
        _refuse_stray(found_N, table)
        ids_N = np.ascontiguousarray(found_N, np.int32)
        is_hot_only &= first_stray_lookup(ids_N[:, None], np.array([table.num_hot])) < 0
        name = offsets_name(table.name)
        if table.is_multi_hot:
            offsets_B1 = _integers(features, name)
            ends = offsets_B1[[0, -1]].tolist() if offsets_B1.size else []
            if ends != [0, ids_N.size] or (offsets_B1[1:] < offsets_B1[:-1]).any():
                raise ConfigError(f"{name!r} must ascend from 0 to {ids_N.size}, the number of its ids")
            bags.append(FeatureBags(offsets_B1.astype(np.int32), ids_N))
            num_samples[table.name] = offsets_B1.size - 1
            continue
        # Ids of lists resemble samples.
        if name in features and name not in names:
            raise ConfigError(
                f"the batch has {name!r}, and feature {table.name!r} has one id per sample, not lists"
            )
        columns.append(ids_N)
        num_samples[table.name] = ids_N.size
    # All features are of the same samples.
    first, *others = num_samples.items()
    for name, size in others:
        if size != first[1]:
            raise ConfigError(f"{name!r} has {size} samples, and {first[0]!r} has {first[1]}")
    ids_BF = np.stack(columns, axis=1) if columns else np.empty((first[1], 0), np.int32)
    no_values = torch.empty(0)
    return Batch(no_values, no_values, ids_BF, None, is_hot_only, tuple(bags))


def _integers(features: Mapping[str, Any], name: str) -> NDArray[Any]:
    """Return the integers under a name; raise ConfigError where there are none."""
    if name not in features:
        raise ConfigError(f"the batch has no {name!r}; it has {', '.join(map(repr, list(features)[:8]))}")
    value = features[name]
    found = value.cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise ConfigError(f"{name!r} is {found.dtype} of shape {found.shape}, want a vector of integers")
    return found


def _refuse_stray(ids_N: NDArray[Any], table: EmbeddingTable) -> None:
    """Raise ConfigError where an id is not in its table."""
    # Compared in their own type: a large int64 could be a good int32 once it is cut.
    is_stray_N = (ids_N < 0) | (ids_N >= table.num_rows)
    if is_stray_N.any():
        stray = int(ids_N[is_stray_N.argmax()])
        raise ConfigError(f"feature {table.name!r} has the id {stray}, and its table {table.num_rows} rows")


_WINDOW_BYTES = 64 * MIB
"""Memory for the cold rows of batches known ahead, which wait as a whole here: 10 to 25 times as much."""
_MANY_LOOKUPS = 100
"""Batches with gradients and without a step after which a warning is due."""
_WEIGHT = ".weight"
_STATE = ".state"
_Dictionary = TypeVar("_Dictionary", bound=Mapping[str, Any])


class RowSettings(TypedDict, total=False):
    """Settings of `hotset.nn.Embeddings`: the fields of `TrainConfig` that decide about rows alone."""

    hot_bytes: Bytes | None
    staging_bytes: Bytes | None
    prefetch: Whole | None
    cache_policy: Literal["lru", "lfu", "dataset"]
    cache_warmup: Real
    cache_batches: Whole
    seed: Whole
    embedding_optimizer: EmbeddingOptimizer | None
    embedding_lr: Real | None
    threads: Whole | None


class Embeddings(nn.Module):
    """The embedding tables of shards, wherever rows live, for custom training loops.

    Calling the module with a batch, as `hotset.ShardDataset` hands them out, returns the embeddings of each
    feature by name, (B, embedding_dim) float32; those of a feature with lists are the sum of its rows. After
    ``backward``, `step` updates the rows that were looked up, and `zero_grad` drops the gradients instead.
    Those of several batches add up, as in torch. Rows are no parameters of torch: your optimizer is for the
    other layers.

    In evaluation mode (``eval()``), or under ``torch.no_grad()``, a call reads the newest rows and needs no
    step. ``state_dict()`` holds every table, ``NAME.weight``, and its optimizer state, ``NAME.state``; it
    fits every placement and budget.

    All placements give the same bits for the same batches. With ``device="cuda"`` the fast tier is on a GPU,
    and so are the embeddings, for layers there; tables are saved and loaded on the host.

    Example:
        ``emb = hotset.nn.Embeddings("data", placement="lookahead", staging_bytes="64MiB")``
    """

    def __init__(
        self,
        data: str | Path,
        *,
        placement: PlacementName = "lookahead",
        device: str = "cpu",
        decay: float = 0.0,
        **settings: Unpack[RowSettings],
    ) -> None:
        """Open the shards of ``data`` and give every row its initial values.

        Args:
            data: folder that `hotset.preprocess` wrote, or its ``shards/`` alone.
            placement: where rows live, as in `hotset.fit`.
            device: of the fast tier, "cpu" or "cuda", on which embeddings are returned; "late" simulates
                one on the host.
            decay: weight decay of rows, per use.
            settings: fields of `TrainConfig` that are about rows: ``hot_bytes``, ``staging_bytes``,
                ``prefetch``, ``cache_policy``, ``cache_warmup``, ``cache_batches``,
                ``embedding_optimizer``, ``embedding_lr``, ``seed`` and ``threads``. Sizes are bytes, or
                text such as "64MiB".

        Raises:
            HotsetError: no shards, no such device, another setting, or more rows than memory.
            ConfigError: this process is one of several ranks.
        """
        super().__init__()
        _refuse_ranks()
        refuse_unknown(
            settings, RowSettings.__annotations__, {"fit": [own.name for own in fields(TrainConfig)]}
        )
        given: dict[str, Any] = dict(settings)
        config = TrainConfig(placement=placement, device=device, **given)
        config = replace(config, recipe=replace(config.recipe, embedding_decay=decay))
        shards = Shards.open(Path(data))
        optimizer = config.row_optimizer(shards.embedding_optimizer)
        shards = with_hot_bytes(shards, config.hot_bytes, optimizer)
        self._config = resolve(shards, config)
        self._tables = shards.tables
        self._batch_size = shards.batch_size
        self._inputs = ModelInputs.of(shards)
        # One rank computes the whole batch, and all rows are in memory.
        tools = build_tools(shards, self._config, OneRank(), None, None, marks_rows=True)
        self._tools = replace(tools, host=HostMemory(None, tools.folder, may_spill=False))
        self._rows = build_embeddings(shards, self._config, self._tools)
        self._current: _Current | None = None
        """Batches that are trained on now, or that `read_ahead` has yielded."""
        self._pending: list[_Lookup] = []
        """Lookups whose gradients no step has used."""
        self._num_lookups = 0
        self._is_reading = False
        self._is_written_back = False
        """Whether the slow tier has the newest values of staged rows too."""

    @property
    def inputs(self) -> ModelInputs:
        """Sizes of the dense features and of the tables, for building the other layers."""
        return self._inputs

    def read_ahead(
        self, batches: Iterable[_Dictionary], *, batches_per_step: int = 1
    ) -> Iterator[_Dictionary]:
        """Yield the batches of an epoch or a part, loading rows ahead.

        Batches are read and planned ahead of the loop, 64 of them or more: until the planner knows the next
        use of rows that leave the fast tier. The iterable is read in another thread. What is left of it when
        the loop ends early is forgotten.

        Args:
            batches: as `forward` takes them: a `hotset.ShardDataset`, a loader of it, or any others.
            batches_per_step: batches whose gradients one `step` adds up, after the last of them.

        Raises:
            ConfigError: another loop over `read_ahead` is not over, or gradients of the batches before have
                got neither `step` nor `zero_grad`.
        """
        require_at_least("batches_per_step", batches_per_step, 1)
        if self._is_reading:
            raise ConfigError("read_ahead is under way: end that loop first")
        self._refuse_pending()
        self._end_step()
        self._is_reading = True
        # Batches wait here until they run: the source reads them by number, some of them twice.
        held: dict[int, _Held[_Dictionary]] = {}

        def numbers() -> Iterator[int]:
            rest = iter(batches)
            for number in count():
                dictionaries = list(islice(rest, batches_per_step))
                if not dictionaries:
                    return
                held[number] = _Held.of(self._tables, dictionaries)
                self._refuse_large(held[number])
                yield number

        steps = self._source(held, is_fresh=True).steps([numbers()])
        # A copy of hot rows (fae) is planned with its batch, and must be made before the next one is planned.
        depth = num_steps_ahead(self._config)
        ahead = None if self._config.placement == "fae" else BackgroundIterator(steps, depth, "read ahead")
        try:
            for step in ahead or steps:
                self._current = current = _Current(step, own := held.pop(step.number))
                for part, dictionary in enumerate(own.dictionaries):
                    current.part = part
                    yield dictionary
                self._refuse_pending()
                self._end_step()
        finally:
            # This also runs where the loop ends early: planning stops before the rows are written back.
            if ahead is not None:
                ahead.close()
            self._end_step()
            self._bring_home()
            self._is_reading = False

    def forward(self, batch: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Return the embeddings of a batch, (B, embedding_dim) of each feature by its name.

        Args:
            batch: ids of each feature by name, (B,) integers; for a feature with lists those of all samples,
                (N,), and under ``NAME_offsets`` where those of each begin, (B + 1,). Other entries are left
                alone.

        Raises:
            ConfigError: a feature is missing or has an id that its table has not; or `read_ahead` has handed
                out another batch.
        """
        # Without gradients nothing is updated, so the batch needs no step.
        if not (self.training and torch.is_grad_enabled()):
            return self._by_name(self._evaluated(read_lookups(self._tables, batch)))
        current = self._current_of(batch)
        if not current.embeddings:
            self._load(current.step)
            with torch.no_grad():
                current.embeddings = [emb_BFd.clone() for emb_BFd in self._rows.look_up(current.step)]
        # A batch that is looked up twice has one place for its gradients.
        if current.part not in current.leaves:
            current.leaves[current.part] = self._leaves_of(current)
        return self._by_name(current.leaves[current.part])

    def _leaves_of(self, current: _Current) -> list[torch.Tensor]:
        """Return the embeddings of the batch that is trained on, whose gradients are noted."""
        part, own = current.part, current.held
        lookup = _Lookup(self._num_lookups, own.batches[part], [None] * len(current.embeddings))
        self._num_lookups += 1
        current.lookups[part] = lookup
        first, stop = own.places[part : part + 2]
        leaves = [emb_BFd[first:stop].requires_grad_() for emb_BFd in current.embeddings]
        for number, leaf in enumerate(leaves):
            # The hook refers to no leaf: what is looked up and never trained on is freed at once.
            note = partial(_note_gradient, self._pending, lookup, number)
            leaf.register_post_accumulate_grad_hook(note)  # type: ignore[no-untyped-call]
        return leaves

    def step(self, lr: float | None = None) -> None:
        """Update the rows of all batches that have gradients since the last step, by their sum.

        A batch without gradients changes no row.

        Args:
            lr: learning rate of this step; by default ``embedding_lr``.

        Raises:
            ConfigError: no batch was looked up, no loss was passed backward since, or a batch of this step
                is still to come.
        """
        current, pending = self._current, sorted(self._pending, key=lambda lookup: lookup.number)
        if not pending:
            raise ConfigError(
                "step() comes after a batch was looked up in training mode"
                if current is None or not current.leaves
                else "step() comes after backward(): the embeddings have no gradient"
            )
        if current is not None and self._is_reading:
            if current.part + 1 < len(current.held.dictionaries):
                raise ConfigError("step() comes after the last of the batches_per_step batches")
            found = [current.lookups.get(part) for part in range(current.part + 1)]
        elif current is not None and [current.lookups.get(0)] == pending:
            found = [*pending]
        else:
            # Rows of earlier batches are back in the slow tier: all batches together are a new one.
            found = [*pending]
            current = self._planned(_Held([{}], [join([lookup.batch for lookup in pending])]))
            self._load(current.step)
        batches = current.held.batches if self._is_reading else [lookup.batch for lookup in pending]
        groups = enumerate(self._rows.groups)
        gradients = [_gradients(group, batches, found, number) for number, group in groups]
        self._rows.update(current.step, gradients, None if lr is None else float(np.float32(lr)))
        for lookup in pending:
            lookup.is_over = True
        self._pending.clear()
        current.is_done = True
        self._is_written_back = False
        if not self._is_reading:
            self._end_step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients that no step has used."""
        super().zero_grad(set_to_none)
        for lookup in self._pending:
            for grad_BFd in lookup.grads:
                if grad_BFd is not None:
                    grad_BFd.zero_()
        self._pending.clear()

    def _refuse_pending(self) -> None:
        """Raise ConfigError where a batch that was read ahead has gradients, and its rows leave."""
        if self._pending:
            raise ConfigError(
                "a batch before has gradients that no step() has used",
                hint="call step() after each batch, or zero_grad() to drop them; to add the gradients of K "
                "batches, read_ahead(batches, batches_per_step=K)",
            )

    def _current_of(self, batch: Mapping[str, Any]) -> _Current:
        """Return the step of a batch, read ahead or new."""
        current = self._current
        if self._is_reading:
            if current is None or current.is_done:
                raise ConfigError("a batch of read_ahead is trained on once: take the next one")
            # The dictionary may be a copy: the same lookups make it the same batch.
            own = current.held
            if batch is not own.dictionaries[current.part] and not _is_same(
                read_lookups(self._tables, batch), own.batches[current.part]
            ):
                raise ConfigError("the batch is not the one that read_ahead handed out last")
            return current
        if current is not None and batch is current.held.dictionaries[0]:
            return current
        # The batches before and after are unknown: the rows are loaded for this step and written back after
        # it.
        return self._planned(_Held.of(self._tables, [batch]))

    def _refuse_large(self, held: _Held[Any]) -> None:
        """Raise ConfigError where the placement has no room for the rows of a step."""
        size = held.whole.num_samples
        if self._config.placement == "hybrid-uva" and size > self._batch_size:
            raise ConfigError(
                f"hybrid-uva has room for steps of {self._batch_size} samples, and this one has {size}",
                hint="another placement runs such a step in passes",
            )

    def _planned(self, held: _Held[Any]) -> _Current:
        """End the current step, and plan one of its own for other batches."""
        self._end_step()
        self._refuse_large(held)
        (step,) = islice(self._source({0: held}, is_fresh=False).steps([[0]]), 1)
        self._current = _Current(step, held)
        return self._current

    def _end_step(self) -> None:
        """Finish the current batch, whether or not a step was taken on it."""
        current, self._current = self._current, None
        if current is None:
            return
        if not current.is_done:
            # Its rows were loaded, and hot rows copied, for the batches that follow, too.
            if not current.embeddings:
                self._load(current.step)
            self._rows.mark_updated(current.step)
        if self._is_reading:
            for lookup in current.lookups.values():
                lookup.is_over = True
        else:
            self._bring_home()

    def _load(self, step: PlannedStep) -> None:
        """Return once the rows of a step are where it needs them."""
        if self._rows.hot_copies is not None:
            self._rows.hot_copies.before_step(step)
        self._rows.wait_for_rows(step)

    def _bring_home(self) -> None:
        """Write all rows back, and forget plans of batches that never come."""
        self._rows.stop()
        for group in self._rows.groups:
            group.staged.forget()
        # The same tiers with new transfers: those that were stopped stay so.
        self._rows = Rows(len(self._tables), self._rows.groups)
        attach_movers(self._rows, self._config, self._tools)

    def _source(self, held: Mapping[int, _Held[Any]], *, is_fresh: bool) -> StepSource:
        """Return a source of the steps of some batches.

        Args:
            is_fresh: whether rows that no step has changed are initialized at their first use.
        """
        # New planners know of no earlier batch; with ``is_fresh`` rows used before are marked for them.
        return StepSource(
            self._rows,
            lambda number: held[number].whole,
            lambda number: held[number].whole.is_hot_only,
            is_fresh=is_fresh,
            is_resumed=is_fresh,
            window_bytes=_WINDOW_BYTES,
        )

    @torch.no_grad()
    def _evaluated(self, batch: Batch) -> list[torch.Tensor]:
        """Return the embeddings of each table group by the newest rows."""
        # Rows written back stay the newest until an update, so only the first evaluation after it writes.
        paused = self._rows.transfers.paused if self._is_written_back else self._rows.rows_written_back
        with paused():
            self._is_written_back = True
            step = self._rows.plan_evaluation(0, batch)
            return [emb_BFd.clone() for emb_BFd in self._rows.look_up(step)]

    def _by_name(self, embeddings: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return those of each feature, in their order."""
        of_feature = {
            feature.name: emb_BFd[:, position]
            for group, emb_BFd in zip(self._rows.groups, embeddings, strict=True)
            for position, feature in enumerate(by_feature(self._tables[table] for table in group.tables))
        }
        return {feature.name: of_feature[feature.name] for feature in by_feature(self._tables)}

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """Put copies of all tables into a state dictionary of torch."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        with self._rows.rows_written_back():
            self._is_written_back = True
            for number, table in enumerate(self._tables):
                destination[f"{prefix}{table.name}{_WEIGHT}"] = self._rows.table(number).clone()
                state_NW = self._rows.table(number, state=True)
                if state_NW.shape[1]:
                    destination[f"{prefix}{table.name}{_STATE}"] = state_NW.clone()

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Set all rows from a torch state dictionary, collecting its errors."""
        if self._is_reading:
            raise ConfigError("read_ahead is under way: load rows before that loop or after it")
        self._end_step()
        # Names and shapes are compared first: a refusal leaves every row as it was.
        places = [
            (group, position, self._tables[number], group.optimizer.state_width(group.embedding_dim))
            for group in self._rows.groups
            for position, number in enumerate(group.tables)
        ]
        wanted = {}
        for _, _, table, state_width in places:
            wanted[f"{prefix}{table.name}{_WEIGHT}"] = (table.num_rows, table.embedding_dim)
            if state_width:
                wanted[f"{prefix}{table.name}{_STATE}"] = (table.num_rows, state_width)
        for name, shape in wanted.items():
            if name not in state_dict:
                missing_keys.append(name)
            elif tuple(state_dict[name].shape) != shape:
                error_msgs.append(f"{name} has the shape {tuple(state_dict[name].shape)}, want {shape}")
        unexpected_keys.extend(
            name for name in state_dict if strict and name.startswith(prefix) and name not in wanted
        )
        # All rows or none: half of a table would be of no run.
        if missing_keys or error_msgs:
            return
        for group, position, table, state_width in places:
            weights_ND = _floats(state_dict[f"{prefix}{table.name}{_WEIGHT}"])
            state_NW = np.empty((table.num_rows, 0), np.float32)
            if state_width:
                state_NW = _floats(state_dict[f"{prefix}{table.name}{_STATE}"])
            tables_N, ids_N = np.full(table.num_rows, position, np.int64), np.arange(table.num_rows)
            group.restore(tables_N, ids_N, weights_ND, state_NW)
            # None of these rows has its initial value any more.
            changed = changed_of(group)
            changed.mark_rows(changed.layout.slots_of_rows(tables_N, ids_N), is_saved=True)


def _refuse_ranks() -> None:
    """Raise ConfigError in one of several ranks, whose rows would differ."""
    if is_launched() or (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        raise ConfigError(
            "hotset.nn.Embeddings trains in one process, and this one is a rank among others",
            hint="hotset.fit trains your module on ranks; or start this program by itself, without torchrun",
        )


class _Held(Generic[_Dictionary]):
    """The batches of one step.

    Args:
        dictionaries: as the caller has them.
        batches: their lookups.
    """

    def __init__(self, dictionaries: Sequence[_Dictionary], batches: Sequence[Batch]) -> None:
        self.dictionaries = dictionaries
        self.batches = batches
        self.whole = join(batches)
        self.places = [0, *accumulate(batch.num_samples for batch in batches)]
        """Sample at which each batch begins, and the number of all."""

    @classmethod
    def of(cls, tables: Sequence[EmbeddingTable], dictionaries: Sequence[_Dictionary]) -> _Held[_Dictionary]:
        """Read the lookups of dictionaries; see `read_lookups`."""
        return cls(dictionaries, [read_lookups(tables, each) for each in dictionaries])


@dataclass(slots=True, eq=False)
class _Lookup:
    """A batch that was looked up in training mode."""

    number: int
    """Of lookups before it."""
    batch: Batch
    grads: list[torch.Tensor | None]
    """(B, F, d) gradients of each table group, once they are computed."""
    is_over: bool = False
    """Whether its step was taken, or its rows are gone."""


@dataclass(slots=True)
class _Current:
    """A step on its way."""

    step: PlannedStep
    held: _Held[Any]
    part: int = 0
    """Number of the batch that is trained on, among those of the step."""
    embeddings: list[torch.Tensor] = field(default_factory=list)
    """(B, F, d) of each table group and all batches, once they are looked up."""
    leaves: dict[int, list[torch.Tensor]] = field(default_factory=dict)
    """Those of each batch that was looked up."""
    lookups: dict[int, _Lookup] = field(default_factory=dict)
    is_done: bool = False
    """Whether its rows are updated."""


def _note_gradient(pending: list[_Lookup], lookup: _Lookup, group: int, leaf: torch.Tensor) -> None:
    """Keep the gradient of a lookup for the next step; raise ConfigError where that comes too late."""
    if lookup.is_over:
        raise ConfigError("backward() comes after the step() of the batch: look the batch up again")
    lookup.grads[group] = leaf.grad
    if lookup not in pending:
        pending.append(lookup)
        if len(pending) == _MANY_LOOKUPS:
            warnings.warn(
                f"gradients of {_MANY_LOOKUPS} batches wait for hotset.nn.Embeddings.step(); "
                "zero_grad() drops them",
                stacklevel=2,
            )


def _gradients(
    group: TableGroup, batches: Sequence[Batch], found: Sequence[_Lookup | None], number: int
) -> torch.Tensor:
    """Return a tensor with the gradients of all samples of a step, zero where no loss depends on them."""
    shape = (group.reader.num_bags, group.embedding_dim)
    parts = []
    for batch, lookup in zip(batches, found, strict=True):
        grad_BFd = lookup.grads[number] if lookup is not None else None
        if grad_BFd is None:
            grad_BFd = torch.zeros(batch.num_samples, *shape, dtype=torch.float32, device=group.fast.device)
        parts.append(grad_BFd)
    grads_BFd = parts[0] if len(parts) == 1 else torch.cat(parts)
    vectors = torch.empty_like(grads_BFd)
    vectors.grad = grads_BFd
    return vectors


def _is_same(batch: Batch, other: Batch) -> bool:
    """Return whether two batches have the same lookups."""
    if not np.array_equal(batch.ids_BF, other.ids_BF):
        return False
    return all(
        np.array_equal(bags.offsets_B1, others.offsets_B1) and np.array_equal(bags.ids_N, others.ids_N)
        for bags, others in zip(batch.bags, other.bags, strict=True)
    )


def _floats(tensor: torch.Tensor) -> NDArray[np.float32]:
    found: NDArray[np.float32] = tensor.detach().to("cpu", torch.float32).contiguous().numpy()
    return found
