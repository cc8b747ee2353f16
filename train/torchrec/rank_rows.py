"""The rows of a rank under TorchRec, by table and id.

TorchRec keeps a table in shards, ranges of its rows or columns at some rank; replicated rows are at every
rank. Here both are parts of tables in id order: they get initial or restored values, are read for
evaluations, and gathered at rank 0 for the weights of the run. `RankRows` offers what the trainer asks of its
embeddings.

`TorchRecCheckpoints` has each rank write its own rows, and rank 0 the rest. Tables that are cut by columns
are among the rest, since a file has whole rows. The files are those of every run (`checkpoints.files`): rows
by table and id with the states that hotset's own optimizers have. So any number of ranks goes on from them,
and a run of either engine starts from them. A row that still has its initial value and no state is left out.
All ranks write to the folder of the run, which they share, and training waits for them.

Shapes: N rows of a part, D floats of a row, W floats of its state.
"""
# ruff: noqa: N815  (tensors carry shape suffixes)

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...pipeline.errors import MIB, HotsetError, SaidElsewhereError, first_line
from ..checkpoints.files import (
    RECORD_VERSION,
    CheckpointRecord,
    FileRecord,
    RunState,
    join_parts,
    remove_others,
    write_part,
    write_record,
)
from ..checkpoints.resume import RunCheckpoints, capture, optimizer_states
from ..checkpoints.writer import NotFiniteError
from ..data.batch import Batch, EmbeddingTable, LookupsOfBatch
from ..ranks.ranks import (
    TorchRanks,
    arrays_to_first,
    first_says,
    gather_texts,
    raise_on_any_rank,
    wait_for_all,
    wait_for_first,
)
from ..rows.backends import RowOptimizer
from ..rows.embeddings import Embeddings, RowsPart, RowsSource
from ..rows.step_plan import GroupStep, PlannedStep, StepPlan
from ..rows.tiers import WAYS, InitialValues, Way
from ..run_folder.files import ReservedRoom
from ..run_folder.weights import write_tensors
from .batches import ReplicatedRows, rank_batch
from .embeddings import HotColdEmbeddings, ReplicatedOptimizer, table_name

_log = logging.getLogger(__name__)

_SLICE_BYTES = 64 * MIB
"""Bytes of a table that are gathered at a time."""
_PART_BYTES = 16 * MIB
"""Bytes of a file of a checkpoint, or more."""
_STATES: dict[str, tuple[str, ...]] = {
    "sgd": (),
    "adagrad": ("momentum1",),
    "rowwise-adagrad": ("momentum1",),
    "adam": ("momentum1", "exp_avg_sq", "row_counter"),
}
"""What TorchRec calls the states of rows, in the order in which hotset's own optimizers keep them."""


@dataclass(frozen=True, slots=True)
class HeldPart:
    """A range of rows and columns of a table."""

    rank: int
    """The rank that has it; rank 0 speaks for replicated rows."""
    first_id: int
    num_rows: int
    first_column: int
    num_columns: int
    weights_ND: torch.Tensor | None
    """What is trained, no copy; None at other ranks."""
    states: tuple[torch.Tensor, ...]
    """What the state of a row consists of, one after the other, no copies; nothing at other ranks."""

    def rows(self, first: int, stop: int, *, state: bool) -> torch.Tensor:
        """Return those of its rows whose ids are in a range."""
        own = slice(max(first - self.first_id, 0), max(stop - self.first_id, 0))
        if state:
            return torch.cat([each[own] for each in self.states], dim=1)
        assert self.weights_ND is not None, "another rank has them"
        return self.weights_ND[own]

    def columns(self, width: int, dim: int) -> slice | NDArray[np.int64]:
        """Return its columns among those of weights or states of a table with rows of ``dim`` floats."""
        if self.num_columns == dim:
            return slice(width)
        # Of each state it has the numbers of its columns. One number a row, which may come last, is of all
        # parts.
        every = np.arange(width)
        place = every % dim - self.first_column
        return every[(every >= width // dim * dim) | (place >= 0) & (place < self.num_columns)]

    def num_rows_in(self, first: int, stop: int) -> int:
        """Return how many of its ids are in a range."""
        return max(min(stop, self.first_id + self.num_rows) - max(first, self.first_id), 0)


class RankRows(Embeddings):
    """The rows of a run on TorchRec, seen from one rank.

    Args:
        model: the sharded model, one part of which is `HotColdEmbeddings`.
        hot: optimizer of the replicated rows.
        optimizer: that of all rows.
    """

    def __init__(
        self,
        model: Any,
        rows: ReplicatedRows,
        hot: ReplicatedOptimizer,
        optimizer: RowOptimizer,
        ranks: TorchRanks,
        device: torch.device,
    ) -> None:
        super().__init__(0, ())
        self._model = model
        self._rows = rows
        self._hot = hot
        self._optimizer = optimizer
        self._ranks = ranks
        self._device = device
        self.before_reading: Callable[[], None] = lambda: None
        """Called before the sharded tables are read outside a step."""

    @property
    def _module(self) -> HotColdEmbeddings:
        return tables_in(self._model)[1]

    def state_width(self, table: int) -> int:
        """Return the floats of state of a row of a table."""
        return self._optimizer.state_width(self._rows.tables[table].embedding_dim)

    @torch.no_grad()
    def parts(self) -> list[list[HeldPart]]:
        """Return the parts of each table, those of all ranks, in the order of their first rows."""
        self.before_reading()
        # Asked anew each time: rows in a cache are written back where TorchRec is asked for its state.
        state = self._model.state_dict()
        of_optimizer = self._model.fused_optimizer.state_dict()["state"]
        name, module = tables_in(self._model)
        found: list[list[HeldPart]] = [[] for _ in self._rows.tables]
        for group in self._rows.groups:
            dim = str(group.embedding_dim)
            for table, first in zip(group.tables, group.first_hot_T, strict=True):
                num_hot = self._rows.num_replicated[table]
                if num_hot:
                    own = slice(first, first + num_hot)
                    weights_ND = module.hot[dim].data[own]
                    states = (self._hot.states[dim][own],)
                    found[table].append(HeldPart(0, 0, num_hot, 0, group.embedding_dim, weights_ND, states))
                if num_hot < self._rows.tables[table].num_rows:
                    key = f"{name}cold.{dim}.embeddings.{table_name(table)}.weight"
                    found[table] += self._cold_parts(table, state[key], of_optimizer.get(key, {}))
        return found

    def _cold_parts(self, table: int, weights: Any, states: Mapping[str, Any]) -> list[HeldPart]:
        """Return the shards of a table."""
        own = {}
        by_name = {name.rsplit(".", 1)[-1]: each.local_shards() for name, each in states.items()}
        for number, shard in enumerate(weights.local_shards()):
            num_rows = shard.tensor.shape[0]
            kept = [by_name[name][number].tensor.view(num_rows, -1) for name in _STATES[self._optimizer.name]]
            none = torch.zeros(num_rows, 0, dtype=torch.float32, device=shard.tensor.device)
            own[tuple(shard.metadata.shard_offsets)] = (shard.tensor, tuple(kept or [none]))
        parts = []
        for each in weights.metadata().shards_metadata:
            offsets = tuple(each.shard_offsets)
            first_id = self._rows.num_replicated[table] + offsets[0]
            held = own.get(offsets, (None, ()))
            num_rows, num_columns = each.shard_sizes
            parts.append(HeldPart(each.placement.rank(), first_id, num_rows, offsets[1], num_columns, *held))
        return sorted(parts, key=lambda part: (part.first_id, part.first_column))

    def initialize_rows(self, seed: int) -> None:
        """Give every row its initial values, which depend on seed, table and id alone."""
        for number, (table, parts) in enumerate(zip(self._rows.tables, self.parts(), strict=True)):
            for part in parts:
                if part.weights_ND is None:
                    continue
                most = max(_SLICE_BYTES // (4 * table.embedding_dim), 1)
                for first in range(part.first_id, part.first_id + part.num_rows, most):
                    stop = min(first + most, part.first_id + part.num_rows)
                    values_ND = initial_rows(seed, number, table, first, stop)
                    columns = part.columns(table.embedding_dim, table.embedding_dim)
                    part.rows(first, stop, state=False).copy_(values_ND[:, columns])

    def restore(self, source: RowsSource) -> None:
        """Set rows before the first step; of a row that comes several times the first value counts."""
        parts = self.parts()
        seen = [np.zeros(table.num_rows, np.bool_) for table in self._rows.tables]
        for given in source():
            for number in np.unique(given.tables_N).tolist():
                is_new_N = given.tables_N == number
                is_new_N &= ~seen[number][np.where(is_new_N, given.ids_N, 0)]
                chosen = given.chosen(is_new_N)
                seen[number][chosen.ids_N] = True
                for part in parts[number]:
                    _set_rows(part, chosen, self._rows.tables[number].embedding_dim)

    def evaluation_steps(
        self,
        numbers: Iterable[int],
        read: Callable[[int], Batch],
        read_lookups: Callable[[int], LookupsOfBatch] | None = None,
    ) -> Iterator[PlannedStep]:
        """Return this rank's evaluation steps, one of W; those beyond the last batch are empty."""
        self.before_reading()
        # One batch for each rank at a time: all take part in each step, as any may need their rows.
        for first in islice(numbers, 0, None, self._ranks.num_ranks):
            number = first + self._ranks.rank
            # What one rank cannot read ends all of them, before they wait for its rows.
            with raise_on_any_rank(self._ranks):
                batch = read(number)
            yield PlannedStep(number, batch, batch.num_samples, ())

    def look_up(self, step: PlannedStep) -> list[torch.Tensor]:
        """(B, F, D) embeddings of each embedding dimension, of a batch that is evaluated."""
        own = rank_batch(step.batch, self._rows, rank=0, world_size=1).to(self._device)
        # Ranks evaluate different batches, so all of them call the sharded tables.
        with self._ranks.lost_ranks():
            return [emb_BFD.contiguous() for emb_BFD in self._module(replace(own, is_hot_only=False))]

    def step(
        self,
        number: int,
        batch: Any,
        plans: Sequence[StepPlan],
        read: Sequence[GroupStep],
        item: int | None = None,
    ) -> PlannedStep:
        """Put together the step of this rank, which has a part of the samples."""
        return PlannedStep(number, batch, batch.global_samples, ())

    def parts_of_tables(
        self, tables: Sequence[EmbeddingTable], *, state: bool = False
    ) -> list[Callable[[], Iterator[torch.Tensor]]]:
        """Return what yields the weights or the state of each table; TorchRec is asked once for all."""
        held = cache(self.parts)
        return [partial(self.table_parts, number, state=state, held=held) for number in range(len(tables))]

    def table_parts(
        self, table: int, *, state: bool = False, held: Callable[[], list[list[HeldPart]]] | None = None
    ) -> Iterator[torch.Tensor]:
        """Yield the weights or state of one table in parts, at rank 0, as `RankedEmbeddings` does.

        Args:
            table: its number.
            state: whether to yield its state.
            held: returns the parts of all tables; None: `parts`.
        """
        num_rows = self._rows.tables[table].num_rows
        width = self.state_width(table) if state else self._rows.tables[table].embedding_dim
        if num_rows * width == 0:
            yield torch.empty(num_rows, width, dtype=torch.float32, device="cpu")
            return
        parts = (held or self.parts)()[table]
        most = max(_SLICE_BYTES // (4 * width), 1)
        for first in range(0, num_rows, most):
            yield self._gather(table, parts, first, min(first + most, num_rows), state=state)

    def _gather(
        self, table: int, parts: Sequence[HeldPart], first: int, stop: int, *, state: bool
    ) -> torch.Tensor:
        """Return some rows of a table at rank 0, none elsewhere."""
        dim = self._rows.tables[table].embedding_dim
        width = self.state_width(table) if state else dim
        # Each rank sends those of its parts one after the other, in the order in which all ranks know them.
        own = [
            part.rows(first, stop, state=state).cpu().numpy()
            for part in parts
            if part.rank == self._ranks.rank
        ]
        left = [iter(arrays) for arrays in arrays_to_first(self._ranks, own)]
        whole_ND = torch.empty(stop - first if left else 0, width, dtype=torch.float32, device="cpu")
        for part in parts if left else ():
            start = max(part.first_id - first, 0)
            rows = slice(start, start + part.num_rows_in(first, stop))
            whole_ND[rows, part.columns(width, dim)] = torch.from_numpy(next(left[part.rank]))
        return whole_ND

    def rows_by_table(self) -> list[dict[Way, int]]:
        """Nothing moves between tiers: each table has no counts."""
        return [dict.fromkeys(WAYS, 0) for _ in self._rows.tables]

    def restore_counts(self, counts: Sequence[Mapping[str, int]]) -> None:
        """There are none."""

    def set_weights(
        self, read: Callable[[str, int, int], torch.Tensor], tables: Sequence[EmbeddingTable]
    ) -> None:
        """Set all rows everywhere; optimizer states become zero."""
        self.before_reading()
        # Rows that are cached on a device would be read in place of these, and written back over them later:
        # loading a state empties the caches.
        self._model.load_state_dict(self._model.state_dict())
        for number, (table, parts) in enumerate(zip(tables, self.parts(), strict=True)):
            most = max(_SLICE_BYTES // (4 * table.embedding_dim), 1)
            for first in range(0, table.num_rows, most):
                rows_ND = read(table.name, first, min(first + most, table.num_rows)).numpy()
                ids_N = np.arange(first, first + rows_ND.shape[0], dtype=np.int32)
                state_NW = np.zeros((ids_N.size, self.state_width(number)), np.float32)
                given = RowsPart(np.full(ids_N.size, number, np.int32), ids_N, rows_ND, state_NW)
                for part in parts:
                    _set_rows(part, given, table.embedding_dim)


def tables_in(model: Any) -> tuple[str, HotColdEmbeddings]:
    """Return the embeddings of a model that has them once, and how the names of their parameters begin."""
    ((name, found),) = (
        (name, each) for name, each in model.module.named_modules() if isinstance(each, HotColdEmbeddings)
    )
    return f"{name}." if name else "", found


def initial_rows(seed: int, number: int, table: EmbeddingTable, first: int, stop: int) -> torch.Tensor:
    """Return the initial values of some rows of a table, (N, D), on the host."""
    ids_N = np.arange(first, stop, dtype=np.int64)
    values_ND = torch.empty(ids_N.size, table.embedding_dim, dtype=torch.float32, device="cpu")
    initial = InitialValues.of(seed, [number], [table.num_rows])
    initial.write(np.zeros(ids_N.size, np.int64), ids_N, values_ND, np.arange(ids_N.size))
    return values_ND


def _set_rows(part: HeldPart, given: RowsPart, dim: int) -> None:
    """Set the rows of a part that are among those of its table."""
    if part.weights_ND is None:
        return
    places_N: NDArray[np.int64] = given.ids_N.astype(np.int64) - part.first_id
    is_here_N = (places_N >= 0) & (places_N < part.num_rows)
    places = torch.from_numpy(places_N[is_here_N]).to(part.weights_ND.device)
    for targets, values_ND in (((part.weights_ND,), given.weights_ND), (part.states, given.state_NW)):
        values = torch.from_numpy(values_ND[is_here_N][:, part.columns(values_ND.shape[1], dim)])
        of_targets = torch.split(values, [target.shape[1] for target in targets], dim=1)
        for target, of_target in zip(targets, of_targets, strict=True):
            target[places] = of_target.to(target.device)


class TorchRecCheckpoints(RunCheckpoints):
    """The checkpoints of a run, as one of its ranks takes part."""

    def _prepare(self, folder: Path, run: str, last: CheckpointRecord | None) -> None:
        self._folder = folder
        self._run = run
        trainer = self._trainer
        self._ranks = trainer.ranks
        assert isinstance(trainer.embeddings, RankRows)
        self._rows = trainer.embeddings
        if self._ranks.rank == 0:
            try:
                folder.mkdir(exist_ok=True)
            except OSError as error:
                raise HotsetError(f"{folder} cannot be written: {error.strerror}") from error
            # The room is taken before the first step, so that a disk that is too small stops the run now.
            self._num_bytes = trainer.weights().num_bytes + optimizer_states(trainer).num_bytes
            self._room = ReservedRoom(folder, self._num_bytes)

    def is_due(self, step: int) -> bool:
        """Return whether a checkpoint is due, by the clock of rank 0."""
        return first_says(self._ranks, self._ranks.rank == 0 and super().is_due(step))

    def take(self, metrics: Iterable[str], *, is_logged: bool = True) -> None:
        """Write a checkpoint of the run as it is now.

        Raises:
            NotFiniteError: weights of this rank are not finite.
            SaidElsewhereError: those of another rank are not.
        """
        trainer = self._trainer
        with self._standing_still():
            state, tensors = capture(trainer, metrics, is_logged=is_logged)
            held = self._rows.parts()
            parts = [self._whole_rows(table, held) for table in range(len(held))]
            report = wait_for_all(self._ranks, partial(self._write_rows, parts, tensors))
            reports = [json.loads(each) for each in gather_texts(self._ranks, json.dumps(report))]
            faults = [each["fault"] for each in reports if "fault" in each]
            if any(each.get("is_finite") is False for each in reports):
                if report.get("is_finite") is False:
                    raise NotFiniteError(report["fault"])
                raise SaidElsewhereError("weights are not finite")
            records = [FileRecord(**each) for found in reports for each in found.get("files", ())]
            is_whole = wait_for_first(self._ranks, partial(self._seal, state, tensors, records, faults))
        self._note(is_whole=bool(is_whole))

    def _note(self, *, is_whole: bool) -> None:
        """Note the time of a checkpoint, and its step if it is whole."""
        self._last_step = self._trainer.step
        self._last_time = time.monotonic()
        if is_whole:
            self.last_written = self._trainer.step

    def _whole_rows(self, table: int, held: list[list[HeldPart]]) -> list[HeldPart]:
        """Return the parts of a table, of which rank 0 has all rows where ranks have but some columns."""
        dim = self._trainer.shards.tables[table].embedding_dim
        if all(part.num_columns == dim for part in held[table]):
            return held[table]
        weights_ND, state_NW = (
            torch.cat(list(self._rows.table_parts(table, state=state, held=lambda: held)))
            for state in (False, True)
        )
        num_rows = self._trainer.shards.tables[table].num_rows
        return [HeldPart(0, 0, num_rows, 0, dim, weights_ND, (state_NW,))]

    def _write_rows(
        self, parts: Sequence[Sequence[HeldPart]], tensors: Mapping[str, torch.Tensor]
    ) -> dict[str, Any]:
        """Write the changed rows of this rank; return the records of their files, or what went wrong."""
        files = []
        try:
            for name, tensor in tensors.items():
                if tensor.is_floating_point() and not torch.isfinite(tensor).all():
                    raise NotFiniteError(f"{name} holds values that are not finite")
            if self._ranks.rank == 0:
                self._room.give(self._num_bytes)
            for number, part in enumerate(_in_files(self._changed_rows(parts))):
                if not (np.isfinite(part.weights_ND).all() and np.isfinite(part.state_NW).all()):
                    raise NotFiniteError("embedding rows hold values that are not finite")
                name = f"rows-{self._trainer.step:09}-{self._ranks.rank:04}{number:05}.safetensors"
                num_bytes, checksum = write_part(self._folder / name, part)
                record = FileRecord(path=name, bytes=num_bytes, xxh3_128=checksum, rows=int(part.ids_N.size))
                files.append(record.to_json())
        except NotFiniteError as error:
            return {"fault": f"{error} after step {self._trainer.step}", "is_finite": False}
        except OSError as error:
            return {"fault": f"rank {self._ranks.rank}: {error.strerror or first_line(error)}"}
        return {"files": files}

    def _changed_rows(self, parts: Sequence[Sequence[HeldPart]]) -> Iterator[RowsPart]:
        """Yield the rows of this rank that are not what they were before the first step."""
        tables = self._trainer.shards.tables
        for number, (table, of_table) in enumerate(zip(tables, parts, strict=True)):
            most = max(_PART_BYTES // (8 * table.embedding_dim), 1)
            for part in of_table:
                if part.rank != self._ranks.rank:
                    continue
                end = part.first_id + part.num_rows
                for first in range(part.first_id, end, most):
                    stop = min(first + most, end)
                    weights_ND = part.rows(first, stop, state=False).cpu().numpy()
                    state_NW = part.rows(first, stop, state=True).cpu().numpy()
                    initial_ND = initial_rows(self._trainer.config.seed, number, table, first, stop).numpy()
                    is_changed_N = (weights_ND != initial_ND).any(axis=1) | state_NW.any(axis=1)
                    ids_N = np.arange(first, stop, dtype=np.int32)
                    tables_N = np.full(ids_N.size, number, np.int32)
                    if is_changed_N.any():
                        yield RowsPart(tables_N, ids_N, weights_ND, state_NW).chosen(is_changed_N)

    def _seal(
        self,
        state: RunState,
        tensors: Mapping[str, torch.Tensor],
        records: Sequence[FileRecord],
        faults: Sequence[str],
    ) -> int:
        """Write what is no row, and the record, at rank 0; return whether the checkpoint is whole."""
        folder = self._folder
        try:
            if faults:
                raise HotsetError(faults[0])
            name = f"dense-{state.step:09}.safetensors"
            num_bytes, checksum = write_tensors(folder / name, tensors)
            dense = FileRecord(path=name, bytes=num_bytes, xxh3_128=checksum)
            record = CheckpointRecord(
                version=RECORD_VERSION, run=self._run, state=state, dense=dense, rows=tuple(records)
            )
            write_record(folder, record)
            remove_others(folder, self._keep, state.step)
        except (OSError, HotsetError) as error:
            kept = (
                "there is none" if self.last_written is None else f"that of step {self.last_written} is kept"
            )
            reason = getattr(error, "strerror", None) or first_line(error)
            _log.warning(
                "the checkpoint of step %s could not be written: %s; %s, and training continues",
                state.step,
                reason,
                kept,
            )
            return 0
        return 1

    def advance(self, *, to_end: bool = False) -> None:
        """Nothing is left to be copied once a checkpoint was taken."""

    def settle(self, *, wait: bool = False) -> None:
        """A checkpoint is whole or lost once it was taken."""

    def close(self) -> None:
        """There is no writer."""


def _in_files(parts: Iterable[RowsPart]) -> Iterator[RowsPart]:
    """Join small parts of one width, so that files are neither many nor large."""
    held: dict[int, list[RowsPart]] = {}
    for part in parts:
        of_width = held.setdefault(part.weights_ND.shape[1], [])
        of_width.append(part)
        if sum(each.num_bytes for each in of_width) >= _PART_BYTES:
            yield join_parts(of_width)
            of_width.clear()
    yield from (join_parts(of_width) for of_width in held.values() if of_width)
