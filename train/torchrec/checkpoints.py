"""Checkpoints of a run on TorchRec: each rank writes its own rows, and rank 0 the rest.

Tables that are cut by columns are among the rest, since a file has whole rows. The files are those of every
run (`checkpoints.files`): rows by table and id with the states that hotset's own optimizers have. So any
number of ranks goes on from them, and a run of either engine starts from them. A row that still has its
initial value and no state is left out. All ranks write to the folder of the run, which they share, and
training waits for them.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

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
from ..checkpoints.resume import RunCheckpoints, capture
from ..checkpoints.source_run import optimizer_states
from ..checkpoints.writer import NotFiniteError
from ..ranks.ranks import first_says, gather_texts, wait_for_all, wait_for_first
from ..rows.embeddings import RowsPart
from ..run_folder.files import ReservedRoom
from ..run_folder.weights import write_tensors
from .rank_rows import HeldPart, RankRows, initial_rows

_log = logging.getLogger(__name__)

_PART_BYTES = 16 * MIB


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
