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

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any, Literal, NoReturn, Self, TypedDict, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ...pipeline.errors import MIB, ConfigError, require_at_least
from ...pipeline.folders.totals import by_feature
from ...pipeline.schema.schema import nearest
from ...pipeline.settings import Bytes, Real, Whole, refuse_unknown
from ...stats.row_bytes import state_width
from ..build import build_tools
from ..build_embeddings import attach_movers, build_embeddings, idle_settings, resolve, warn_of_idle
from ..config import EmbeddingOptimizer, PlacementName, TrainConfig
from ..config_parts import RecipeOptions
from ..data.batch import Batch, EmbeddingTable
from ..data.shards import ShardSet, with_hot_bytes
from ..model.shapes import ModelInputs
from ..placements.placements import StepSource, num_steps_ahead
from ..ranks.ranks import OneRank, raise_on_any_rank
from ..rows.backends import RowOptimizer
from ..rows.embeddings import Embeddings as Rows
from ..rows.embeddings import changed_of
from ..rows.step_plan import PlannedStep
from ..rows.tiers import HostMemory
from ..threads import BackgroundIterator, torch_as_before
from .lookups import Dictionary, Held, SharedBatches, check_equal_rows, is_same, loop_ranks, read_lookups
from .row_gradients import Lookup, RowGradients, RowsOfTable, RowsOptimizer, TableSettings, row_steps

_WINDOW_BYTES = 64 * MIB
"""Memory for the cold rows of batches known ahead, which wait as a whole here: 10 to 25 times as much."""
_WEIGHT = ".weight"
_STATE = ".state"


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
    Those of several batches add up, as in torch. Rows are no parameters of the module: `rows` and `optimizer`
    show them to clipping, `GradScaler`, schedules of learning rates, and ``requires_grad_``.

    In evaluation mode (``eval()``), or under ``torch.no_grad()``, a call reads the newest rows and needs no
    step. ``state_dict()`` holds every table, ``NAME.weight``, and its optimizer state, ``NAME.state``; it
    fits every placement and budget.

    All placements give the same bits for the same batches. With ``device="cuda"`` the fast tier is on a GPU,
    and so are the embeddings, for layers there; tables are saved and loaded on the host.

    Example:
        ``emb = hotset.nn.Embeddings("data", placement="lookahead", staging_bytes="64MiB")``
    """

    @torch_as_before()
    def __init__(
        self,
        data: str | Path,
        *,
        placement: PlacementName = "lookahead",
        device: str = "cpu",
        decay: float = 0.0,
        tables: Mapping[str, TableSettings] | None = None,
        **settings: Unpack[RowSettings],
    ) -> None:
        """Open the shards of ``data`` and give every row its initial values.

        Args:
            data: folder that `hotset.preprocess` wrote, or its ``shards/`` alone.
            placement: where rows live, as in `hotset.fit`.
            device: of the fast tier, "cpu" or "cuda", on which embeddings are returned; "late" simulates
                one on the host.
            decay: weight decay of rows, per use.
            tables: what some tables have otherwise, by name: ``embedding_optimizer``, ``embedding_lr`` and
                ``decay``. Rows of all tables take the memory of the largest state.
            settings: fields of `TrainConfig` that are about rows: ``hot_bytes``, ``staging_bytes``,
                ``prefetch``, ``cache_policy``, ``cache_warmup``, ``cache_batches``,
                ``embedding_optimizer``, ``embedding_lr``, ``seed`` and ``threads``. Sizes are bytes, or
                text such as "64MiB".

        Raises:
            HotsetError: no shards, no such device, another setting, or more rows than memory.
            ConfigError: this process is one of several ranks and has joined no process group.
        """
        super().__init__()
        self._ranks = loop_ranks()
        refuse_unknown(
            settings, RowSettings.__annotations__, {"fit": [own.name for own in fields(TrainConfig)]}
        )
        given: dict[str, Any] = dict(settings)
        config = TrainConfig(placement=placement, device=device, **given)
        shards = ShardSet.open(Path(data))
        self._optimizers = _row_optimizers(shards, config, decay, tables or {})
        check_equal_rows(self._ranks.steps, shards, config, self._optimizers)
        # Tiers have room for the largest state of all tables.
        names = [config.row_optimizer(shards.embedding_optimizer)]
        names += [each.name for each in self._optimizers.values()]
        widest: Any = max(names, key=partial(state_width, 2))
        config = replace(config, embedding_optimizer=widest)
        shards = with_hot_bytes(shards, config.hot_bytes, config.row_optimizer(""))
        self._config = resolve(shards, config)
        warn_of_idle(idle_settings(shards, self._config, config))
        self._tables = shards.tables
        self._batch_size = shards.batch_size
        self._inputs = ModelInputs.of(shards)
        # One rank computes the whole batch, and all rows are in memory.
        tools = build_tools(shards, self._config, OneRank(), None, None, marks_rows=True)
        self._tools = replace(tools, host=HostMemory(None, tools.folder, may_spill=False))
        self._rows = build_embeddings(shards, self._config, self._tools)
        self._places = {
            feature.name: _Place(number, position, self._tables[table].name)
            for number, group in enumerate(self._rows.groups)
            for position, (feature, table) in enumerate(_features_of(self._tables, group.tables))
        }
        self._current: _Current | None = None
        """Batches that are trained on now, or that `read_ahead` has yielded."""
        self._gradients = RowGradients(self._tables, self._rows.groups, self._ranks)
        update = weakref.WeakMethod(self._update)
        self._optimizer = RowsOptimizer(self.rows, self._optimizers, update, self._gradients.drop)
        self._lr: float | None = None
        self._numbers = count()
        self._loop: ExitStack | None = None
        """What ends the loop over `read_ahead` that is under way."""
        self._is_written_back = False
        """Whether the slow tier has the newest values of staged rows too."""

    @property
    def rows(self) -> dict[str, RowsOfTable]:
        """The rows of each table by its name, as parameters without values.

        ``torch.nn.utils.clip_grad_norm_([*net.parameters(), *emb.rows.values()], 1.0)`` clips their gradients
        too, and ``emb.rows["C3"].requires_grad_(False)`` freezes a table.
        """
        return self._gradients.rows

    @property
    def optimizer(self) -> RowsOptimizer:
        """The optimizer of the rows, with a group of parameters for each table.

        Schedules of learning rates and `GradScaler` take it as another one. Its ``step()`` is that of the
        module.
        """
        return self._optimizer

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Freeze all tables, or train them again."""
        for each in self.rows.values():
            each.requires_grad_(requires_grad)
        return super().requires_grad_(requires_grad)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuse copies, which would take the memory of all rows again."""
        raise ConfigError(
            "hotset.nn.Embeddings cannot be copied or pickled",
            hint="build another one, and load_state_dict(emb.state_dict())",
        )

    @property
    def inputs(self) -> ModelInputs:
        """Sizes of the dense features and of the tables, for building the other layers."""
        return self._inputs

    def read_ahead(self, batches: Iterable[Dictionary], *, batches_per_step: int = 1) -> Iterator[Dictionary]:
        """Yield the batches of an epoch or a part, loading rows ahead.

        Batches are read and planned ahead of the loop, 64 of them or more: until the planner knows the next
        use of rows that leave the fast tier. The iterable is read in another thread. What is left of it when
        the loop ends early is forgotten. Only the newest loop goes on: it ends one before that broke off, as
        in a notebook, and so does `load_state_dict`.

        Args:
            batches: as `forward` takes them: a `hotset.ShardDataset`, a loader of it, or any others. They
                wait, so each has memory of its own.
            batches_per_step: batches whose gradients one `step` adds up, after the last of them.

        Raises:
            ConfigError: the loop goes on after another one began or rows were loaded, or gradients of the
                batches before have got neither `step` nor `zero_grad`.
        """
        require_at_least("batches_per_step", batches_per_step, 1)
        self._end_loop()
        self._refuse_pending()
        self._end_step()
        # Batches wait here until they run: the source reads them by number, some of them twice.
        held: dict[int, Held[Dictionary]] = {}
        shared = SharedBatches(self._ranks.ahead)

        def numbers() -> Iterator[int]:
            rest = iter(batches)
            for number in count():
                dictionaries = list(islice(rest, batches_per_step))
                if not dictionaries:
                    shared.end()
                    return
                own = [read_lookups(self._tables, each) for each in dictionaries]
                held[number] = shared.held(dictionaries, own)
                self._refuse_large(held[number])
                yield number

        steps = self._source(held, is_fresh=True).steps([numbers()])
        # A copy of hot rows (fae) is planned with its batch, and must be made before the next one is planned.
        depth = num_steps_ahead(self._config)
        ahead = None if self._config.placement == "fae" else BackgroundIterator(steps, depth, "read ahead")
        # An iterator that broke off may never be closed: a notebook keeps it with the traceback.
        with ExitStack() as loop:
            self._loop = loop
            loop.callback(self._finish_loop)
            # This comes first: planning stops before the rows are written back.
            loop.callback(shared.end)
            if ahead is not None:
                loop.callback(ahead.close)
            for step in ahead or steps:
                own = held.pop(step.number)
                self._current = current = _Current(step, own)
                self._gradients.begin(own, current.lookups)
                for part, dictionary in enumerate(own.dictionaries):
                    current.part = part
                    yield dictionary
                    if self._loop is not loop:
                        raise ConfigError(
                            "this loop over read_ahead is over: rows were loaded, or another loop began",
                            hint="evaluate on batches as they are, without read_ahead",
                        )
                self._refuse_pending()
                self._end_step()

    def _end_loop(self) -> None:
        """End a loop over `read_ahead` that is under way, or broke off."""
        if self._loop is not None:
            self._loop.close()

    def _finish_loop(self) -> None:
        """Write the rows of a loop back, once it reads nothing ahead any more."""
        self._end_step()
        self._bring_home()
        self._loop = None
        self._gradients.begin(None, {})

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
        return dict(current.leaves[current.part])

    def _leaves_of(self, current: _Current) -> dict[str, torch.Tensor]:
        """Return the embeddings of the batch that is trained on, whose gradients are noted."""
        part, own = current.part, current.held
        lookup = Lookup(next(self._numbers), own.batches[part])
        current.lookups[part] = lookup
        first, stop = own.places[part : part + 2]
        leaves = {}
        for feature in by_feature(self._tables):
            place = self._places[feature.name]
            leaf = current.embeddings[place.group][first:stop, place.position].detach()
            leaves[feature.name] = leaf
            if self.rows[place.table].requires_grad:
                # The hook refers to no leaf: what is looked up and never trained on is freed at once.
                note = partial(self._gradients.note, lookup, feature.name)
                leaf.requires_grad_().register_post_accumulate_grad_hook(note)  # type: ignore[no-untyped-call]
        return leaves

    def step(self, lr: float | None = None) -> None:
        """Update the rows of all batches that have gradients since the last step, by their sum.

        Rows that no loss depends on stay as they are. On several ranks, all call it, and rows get the mean of
        their gradients.

        Args:
            lr: learning rate of this step; by default each table has its own.

        Raises:
            ConfigError: no batch was looked up, no loss was passed backward since, or a batch of this step
                is still to come.
            HotsetError: a gradient is an infinity or a NaN; no row has changed.
        """
        self._lr = lr
        try:
            self.optimizer.step()
        finally:
            self._lr = None

    @torch.inference_mode(False)
    @torch.no_grad()
    def _update(self) -> None:
        """Take the step of all rows."""
        if not any(each.requires_grad for each in self.rows.values()):
            return
        with raise_on_any_rank(self._ranks.steps):
            self._check_step()
        sums = self._gradients.sums()
        self._gradients.check_finite()
        current = self._current_of_step()
        choices = self.optimizer.choices(self._lr)
        for group, part, of_group in zip(self._rows.groups, current.step.parts, sums, strict=True):
            of_tables = [choices[self._tables[table].name] for table in group.tables]
            group.apply(part, of_group.sums_UD, row_steps(of_group, of_tables))
        self._rows.mark_updated(current.step)
        self._gradients.finish()
        current.is_done = True
        self._is_written_back = False
        if self._loop is None:
            self._end_step()

    def _check_step(self) -> None:
        """Raise ConfigError where there is nothing to take a step with."""
        current = self._current
        if not self._gradients.lookups:
            raise ConfigError(
                "step() comes after a batch was looked up in training mode"
                if current is None or not current.leaves
                else "step() comes after backward(): the embeddings have no gradient"
            )
        if (
            self._loop is not None
            and current is not None
            and current.part + 1 < len(current.held.dictionaries)
        ):
            raise ConfigError("step() comes after the last of the batches_per_step batches")

    def _current_of_step(self) -> _Current:
        """Return the step of all batches with gradients, whose rows are loaded."""
        current, lookups = self._current, self._gradients.lookups
        is_alone = self._ranks.num_ranks == 1 and len(lookups) == 1
        if current is not None and (
            self._loop is not None or (is_alone and current.lookups.get(0) is lookups[0])
        ):
            return current
        # Rows of earlier batches are back in the slow tier: all batches together are a new one.
        assert self._gradients.whole is not None
        current = self._planned(Held([{}], [self._gradients.whole]))
        self._load(current.step)
        return current

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients that no step has used."""
        super().zero_grad(set_to_none)
        self._gradients.drop()

    def _refuse_pending(self) -> None:
        """Raise ConfigError where a batch that was read ahead has gradients, and its rows leave."""
        if not self._gradients.is_finite:
            # A step was left out because of them, as `GradScaler` does.
            self._gradients.drop()
        if self._gradients.lookups:
            raise ConfigError(
                "a batch before has gradients that no step() has used",
                hint="call step() after each batch, or zero_grad() to drop them; to add the gradients of K "
                "batches, read_ahead(batches, batches_per_step=K)",
            )

    def _current_of(self, batch: Mapping[str, Any]) -> _Current:
        """Return the step of a batch, read ahead or new."""
        current = self._current
        if self._loop is not None:
            if current is None or current.is_done:
                raise ConfigError("a batch of read_ahead is trained on once: take the next one")
            # The dictionary may be a copy: the same lookups make it the same batch.
            own = current.held
            if batch is not own.dictionaries[current.part] and not is_same(
                read_lookups(self._tables, batch), own.batches[current.part]
            ):
                raise ConfigError(
                    "the batch is not the one that read_ahead handed out last",
                    hint="the loop is under way, or broke off: a new one over read_ahead ends it",
                )
            return current
        if current is not None and batch is current.held.dictionaries[0]:
            return current
        # The batches before and after are unknown: the rows are loaded for this step and written back after
        # it.
        return self._planned(Held([batch], [read_lookups(self._tables, batch)]))

    def _refuse_large(self, held: Held[Any]) -> None:
        """Raise ConfigError where the placement has no room for the rows of a step."""
        size = held.whole.num_samples
        if self._config.placement == "hybrid-uva" and size > self._batch_size:
            raise ConfigError(
                f"hybrid-uva has room for steps of {self._batch_size} samples, and this one has {size}",
                hint="another placement runs such a step in passes",
            )

    def _planned(self, held: Held[Any]) -> _Current:
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
        if self._loop is not None:
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

    def _source(self, held: Mapping[int, Held[Any]], *, is_fresh: bool) -> StepSource:
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

    @torch.inference_mode(False)
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
        places = {feature.name: self._places[feature.name] for feature in by_feature(self._tables)}
        return {name: embeddings[place.group][:, place.position] for name, place in places.items()}

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """Put copies of all tables into a state dictionary of torch."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        with self._rows.rows_written_back():
            self._is_written_back = True
            for number, table in enumerate(self._tables):
                destination[f"{prefix}{table.name}{_WEIGHT}"] = self._rows.table(number).clone()
                if width := self._state_width(table):
                    state_NW = self._rows.table(number, state=True)[:, :width]
                    destination[f"{prefix}{table.name}{_STATE}"] = state_NW.clone()

    def _state_width(self, table: EmbeddingTable) -> int:
        return self._optimizers[table.name].state_width(table.embedding_dim)

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
        # Names and shapes are compared first: a refusal leaves every row as it was.
        places = [
            (group, position, self._tables[number], self._state_width(self._tables[number]))
            for group in self._rows.groups
            for position, number in enumerate(group.tables)
        ]
        wanted = {}
        for _, _, table, width in places:
            wanted[f"{prefix}{table.name}{_WEIGHT}"] = (table.num_rows, table.embedding_dim)
            if width:
                wanted[f"{prefix}{table.name}{_STATE}"] = (table.num_rows, width)
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
        self._end_loop()
        self._end_step()
        for group, position, table, width in places:
            weights_ND = _floats(state_dict[f"{prefix}{table.name}{_WEIGHT}"])
            state_NW = np.zeros((table.num_rows, group.slow.state_SW.shape[1]), np.float32)
            if width:
                state_NW[:, :width] = _floats(state_dict[f"{prefix}{table.name}{_STATE}"])
            tables_N, ids_N = np.full(table.num_rows, position, np.int64), np.arange(table.num_rows)
            group.restore(tables_N, ids_N, weights_ND, state_NW)
            # None of these rows has its initial value any more.
            changed = changed_of(group)
            changed.mark_rows(changed.layout.slots_of_rows(tables_N, ids_N), is_saved=True)


def _row_optimizers(
    shards: ShardSet, config: TrainConfig, decay: float, settings: Mapping[str, TableSettings]
) -> dict[str, RowOptimizer]:
    """Return the optimizer of each table; raise ConfigError for tables and settings that there are not."""
    names = [table.name for table in shards.tables]
    for name, own in settings.items():
        if name not in names:
            raise ConfigError(f"{shards.manifest.folder} has no table {name!r}", hint=nearest(name, names))
        refuse_unknown(own, TableSettings.__annotations__)
    default = config.row_optimizer(shards.embedding_optimizer)
    found = {}
    for name in names:
        given: dict[str, Any] = dict(settings.get(name, {}))
        options = RecipeOptions(embedding_decay=given.pop("decay", decay))
        # A rate is for the optimizer that it was given with.
        if given.get("embedding_optimizer", default) != default:
            given.setdefault("embedding_lr", None)
        chosen = replace(config, **given).optimizers(shards.embedding_optimizer)
        found[name] = RowOptimizer(chosen.embedding_optimizer, chosen.embedding_lr, options.embedding_decay)
    return found


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the embeddings of a feature are."""

    group: int
    """Number of the table group."""
    position: int
    """Among the features of the group."""
    table: str


def _features_of(tables: Sequence[EmbeddingTable], chosen: Sequence[int]) -> list[tuple[EmbeddingTable, int]]:
    """Return the features of some tables, in their order, each with the number of its table."""
    return [(feature, table) for table in chosen for feature in by_feature([tables[table]])]


@dataclass(slots=True)
class _Current:
    """A step on its way."""

    step: PlannedStep
    held: Held[Any]
    part: int = 0
    """Number of the batch that is trained on, among those of the step."""
    embeddings: list[torch.Tensor] = field(default_factory=list)
    """(B, F, d) of each table group and all batches, once they are looked up."""
    leaves: dict[int, dict[str, torch.Tensor]] = field(default_factory=dict)
    """Those of each batch that was looked up."""
    lookups: dict[int, Lookup] = field(default_factory=dict)
    is_done: bool = False
    """Whether its rows are updated."""


def _floats(tensor: torch.Tensor) -> NDArray[np.float32]:
    found: NDArray[np.float32] = tensor.detach().to("cpu", torch.float32).contiguous().numpy()
    return found
