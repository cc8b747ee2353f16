"""The rows that cross between the ranks of a run, as `hotset schedule --ranks` wrote it for shards.

It is used where it fits the run exactly: the same shards, ranks, homes and order of batches. Then a rank
reads the rows of each step that concern it, and of each batch its own samples alone. Another one is not an
error: ranks plan for themselves, and log why. A damaged one is an error: before the first step a rank hashes
its files and reads them once, and all compare what they send with what others receive; every number is
checked when it is read, and each step is compared with the lookups of its batch.

A file is held at a time, of at most a few dozen MB, and another one where staging is planned ahead.

Shapes: R rows of a step that concern this rank, K keys.
"""
# ruff: noqa: N815  (arrays carry shape suffixes)

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from functools import partial
from typing import NamedTuple, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray

from ...pipeline.errors import ManifestError
from ...pipeline.folders.checksum import hash_file
from ...pipeline.folders.file_facts import RankFacts
from ...pipeline.folders.manifest import FileEntry, Manifest
from ...pipeline.folders.stage_totals import ExchangeTotals
from ...pipeline.runtime.tasks import run_tasks
from ...pipeline.scheduling.exchange_files import RankOf, StepsPart, read_homes, read_steps
from ...pipeline.stage_commands import hint_to_rewrite
from ...stats.exchange.early_rows import first_stale_step, last_keys
from ...stats.exchange.home_moves import NO_HOME
from ...stats.exchange.rank_masks import Masks
from ...stats.exchange.rank_step_checks import add_digests, contradictions, first_wrong_home, fits_homes
from ...stats.exchange.rank_steps import first_steps
from ..config import TrainConfig
from ..data.shards import Shards
from ..model.dlrm_shape import tables_by_width
from ..ranks.ranks import Ranks, agree
from .exchange_fit import RunOnRanks, difference

_log = logging.getLogger(__name__)


class RankRows(NamedTuple):
    """The rows of a step that concern this rank, and the homes of others that it changes."""

    keys_R: NDArray[np.int32]
    """Ascending."""
    masks_R: Masks
    before_R: NDArray[np.uint8]
    after_R: NDArray[np.uint8]
    passed: tuple[NDArray[np.int32], NDArray[np.uint8]]
    """Rows that concern other ranks alone, whose home the step gives or changes, and that home."""
    is_early_R: NDArray[np.bool_]
    """Whether the vector of each may cross a step early."""


class ExchangeSchedule:
    """A sealed folder exchange/ that fits a run, seen from one rank."""

    def __init__(self, manifest: Manifest, shards: Shards, run: RunOnRanks) -> None:
        self._manifest = manifest
        self._num_batches = shards.num_training_batches
        self._run = run
        self._faults: list[str] = []
        """Faults of the steps of this rank, though they are those that the others expect."""

    @classmethod
    def find(cls, shards: Shards, config: TrainConfig, run: RunOnRanks) -> ExchangeSchedule | None:
        """The schedule beside ``shards``; None where there is none that fits this run.

        Raises:
            ManifestError: there is one, and it is unfinished or damaged.
        """
        folder = shards.manifest.folder.parent / "exchange"
        manifest = Manifest.read_if_begun(folder)
        if manifest is None:
            return None
        differs = run.own_plan or difference(manifest, shards, config, run)
        if differs is not None:
            # One rank says it to the user.
            level = logging.INFO if run.rank else logging.WARNING
            _log.log(level, "%s does not fit this run (%s): ranks plan during training", folder, differs)
            return None
        found = cls(manifest, shards, run)
        found._refuse_damage(config.epochs)
        _log.info("rank %d follows %s", run.rank, folder)
        return found

    def refuse_contradictions(self, ranks: Ranks, shards: Shards, num_epochs: int) -> None:
        """Compare what each rank sends with what the others receive, and the homes that they know.

        Raises:
            ManifestError: at every rank, where files do not fit together though each is whole.
        """
        digests = agree(ranks, partial(self._digests, shards, num_epochs))
        found = ranks.gather(torch.from_numpy(digests.view(np.int64)))
        wrong = contradictions(np.stack([each.numpy().view(np.uint64) for each in found]))
        if wrong:
            self.refuse(f"the steps of ranks {wrong[0][0]} and {wrong[0][1]} do not fit together")
        agree(ranks, self._refuse_faults)

    def _refuse_faults(self) -> None:
        for fault in self._faults:
            self.refuse(fault)

    def _digests(self, shards: Shards, num_epochs: int) -> NDArray[np.uint64]:
        """Read all steps of this rank once; returns digests of what crosses in them."""
        digests = np.zeros((5, self._run.num_ranks), np.uint64)
        may_move = self._run.homes == "moving"
        widths = tables_by_width([table.embedding_dim for table in shards.tables])
        for dim, chosen in widths.items():
            num_keys = sum(shards.tables[table].num_rows for table in chosen)
            homes_K, users_K = self._homes(dim, num_keys)
            earlier = np.empty(0, np.int32)
            for epoch in range(num_epochs):
                for part in self.parts(dim, epoch, num_keys):
                    if not fits_homes(part.steps, self._run.rank, homes_K, users_K, may_move=may_move):
                        self._faults.append(
                            f"a row of epoch {epoch} does not live where the homes of width {dim} say"
                        )
                    # A vector that crosses before its update would be of the step before.
                    stale = first_stale_step(part.steps, self._run.rank, earlier)
                    if stale is not None:
                        step = part.first_step + stale
                        self._faults.append(
                            f"step {step} of epoch {epoch} would send a vector before its update"
                        )
                    earlier = last_keys(part.steps, earlier)
                    seed = dim << 32 | epoch
                    add_digests(part.steps, part.batches, seed, part.first_step, self._run.rank, digests)
        return digests

    @property
    def fingerprint(self) -> bytes:
        """The fingerprint of the folder, which all ranks that follow it have in common."""
        return self._manifest.fingerprint.encode()

    def width(self, embedding_dim: int, num_keys: int) -> PlannedSteps:
        """The steps of a row width.

        Raises:
            ManifestError: it is of other rows, or damaged.
        """
        run = self._run
        homes_K, users_K = self._homes(embedding_dim, num_keys)
        planned = PlannedSteps(self, embedding_dim, run, homes_K, users_K)
        if run.homes == "moving" and run.num_done:
            planned.replay()
        return planned

    def _homes(self, embedding_dim: int, num_keys: int) -> tuple[NDArray[np.uint8], Masks]:
        found = [entry for entry, _ in self._files("homes", embedding_dim)]
        widths = {width.embedding_dim: width for width in ExchangeTotals.of(self._manifest).widths}
        if len(found) != 1 or widths[embedding_dim].num_rows != num_keys:
            self.refuse(f"it does not have the homes of the {num_keys} rows of width {embedding_dim}")
        return read_homes(self._manifest, found[0], num_keys, self._run.num_ranks)

    def parts(self, embedding_dim: int, epoch: int, num_keys: int) -> Iterator[StepsPart]:
        """Yield the steps of this rank in an epoch, in order."""
        of = RankOf(self._run.rank, self._run.num_ranks, num_keys)
        num_steps = 0
        for entry, facts in self._files("steps", embedding_dim):
            if (facts.epoch, facts.rank) != (epoch, self._run.rank):
                continue
            for part in read_steps(self._manifest, entry, of):
                if part.first_step != num_steps:
                    self.refuse(f"step {part.first_step} of epoch {epoch} does not follow the one before")
                num_steps += part.steps.num_steps
                yield part
        if num_steps != self._num_batches:
            self.refuse(f"epoch {epoch} has {num_steps} steps, want {self._num_batches}")

    def first_epoch(self) -> tuple[int, int]:
        """Return the epoch in which the run begins or goes on, and how many of its steps are done."""
        return divmod(self._run.num_done, self._num_batches)

    def _files(self, kind: str, embedding_dim: int) -> Iterator[tuple[FileEntry, RankFacts]]:
        for entry in self._manifest.files:
            facts = RankFacts.of(self._manifest, entry)
            if (facts.kind, facts.embedding_dim) == (kind, embedding_dim):
                yield entry, facts

    def _refuse_damage(self, num_epochs: int) -> None:
        """Hash the files of this rank: a flipped bit may well be another row."""
        manifest = self._manifest
        own = [
            entry for entry in manifest.files if RankFacts.of(manifest, entry).rank in (None, self._run.rank)
        ]
        tasks = ((manifest.checked_path(entry),) for entry in own)
        for entry, (_, checksum) in zip(own, run_tasks(hash_file, tasks), strict=True):
            if checksum != entry.xxh3_128:
                self.refuse(f"the checksum of {entry.path} is {checksum}, want {entry.xxh3_128}")
        # A file that is not listed would be missed in the middle of the run.
        for width in ExchangeTotals.of(manifest).widths:
            steps = [facts for _, facts in self._files("steps", width.embedding_dim)]
            for epoch in range(num_epochs):
                mine = [each for each in steps if (each.epoch, each.rank) == (epoch, self._run.rank)]
                num_steps = sum(each.num_steps or 0 for each in mine)
                if num_steps != self._num_batches:
                    self.refuse(f"epoch {epoch} has {num_steps} steps, want {self._num_batches}")

    def refuse(self, fault: str) -> NoReturn:
        """Raise ManifestError for a fault of the folder."""
        folder = self._manifest.folder
        raise ManifestError(f"{folder} is damaged: {fault}", hint=hint_to_rewrite(folder))


class PlannedSteps:
    """The rows of each step of a run that concern this rank, in one width.

    Args:
        schedule: with the steps.
        embedding_dim: of the width.
        run: whose steps they are.
        homes_K: where rows live before their first use.
        users_K: the ranks that ever use each row.
    """

    def __init__(
        self,
        schedule: ExchangeSchedule,
        embedding_dim: int,
        run: RunOnRanks,
        homes_K: NDArray[np.uint8],
        users_K: Masks,
    ) -> None:
        self.may_move = run.homes == "moving"
        self.homes_K = homes_K
        """Where rows live when the run begins or goes on."""
        used_K = (users_K >> users_K.dtype.type(run.rank) & 1).astype(np.bool_)
        self.is_held_K = (homes_K == run.rank) | used_K if self.may_move else homes_K == run.rank
        """Whether a row may ever live here."""
        self._schedule = schedule
        self._embedding_dim = embedding_dim
        self._rank = run.rank
        self._num_done = run.num_done
        self._restored_K = np.zeros(homes_K.size, np.bool_)
        """Rows that have a value before the first step."""
        # Steps are read twice: ahead, where their staging is planned, and where they are run.
        self._next_planned, self._num_skipped = schedule.first_epoch()
        self._next_begun = self._next_planned
        self._ahead: Iterator[tuple[int, RankRows]] = iter(())
        self._run: Iterator[tuple[int, RankRows]] = iter(())

    def plan_epoch(self, numbers: Iterable[int]) -> None:
        """Begin to read the next epoch ahead."""
        self._ahead = self._steps(self._next_planned)
        self._next_planned += 1

    def begin_epoch(self) -> None:
        """Begin to read the next epoch where it is run."""
        self._run = self._steps(self._next_begun)
        self._next_begun += 1

    def expect(self, number: int) -> RankRows:
        """Return the rows of a step of the epoch that was planned last; steps may be left out."""
        for batch, rows in self._ahead:
            if batch == number:
                return rows
        self.refuse_other_rows(number)

    def take(self, number: int) -> RankRows:
        """Return the rows of the next step to run."""
        batch, rows = next(self._run, (-1, None))
        if batch != number or rows is None:
            self.refuse_other_rows(number)
        return rows

    def refuse_other_rows(self, number: int) -> NoReturn:
        """Raise ManifestError for a step whose rows are not those of its batch."""
        self._schedule.refuse(f"its rows are not those that batch {number} looks up")

    def mark_used(self, keys_N: NDArray[np.int64]) -> None:
        """Take rows as used before the first step; they live where they live then."""
        self._restored_K[keys_N] = True

    def replay(self) -> None:
        """Let rows live where the steps that are done have left them."""
        homes_K = np.full(self.homes_K.size, NO_HOME, np.uint8)
        left = self._num_done
        for epoch in range(self._next_planned + 1):
            if not left:
                break
            for part in self._schedule.parts(self._embedding_dim, epoch, homes_K.size):
                steps = first_steps(part.steps, min(left, part.steps.num_steps))
                if first_wrong_home(steps, self._rank, homes_K) is not None:
                    self._schedule.refuse(f"a row of epoch {epoch} does not live where it is said to")
                left -= steps.num_steps
        self.homes_K = np.where(homes_K == NO_HOME, self.homes_K, homes_K).astype(np.uint8)

    def _steps(self, epoch: int) -> Iterator[tuple[int, RankRows]]:
        """Yield the batch of each step of an epoch that is not done, and its rows."""
        first_epoch, _ = self._schedule.first_epoch()
        skipped = self._num_skipped if epoch == first_epoch else 0
        for part in self._schedule.parts(self._embedding_dim, epoch, self.homes_K.size):
            for step, batch in enumerate(part.batches.tolist()):
                if part.first_step + step >= skipped:
                    yield batch, self._rows(part, step)

    def _rows(self, part: StepsPart, step: int) -> RankRows:
        steps = part.steps
        own = slice(int(steps.starts_S1[step]), int(steps.starts_S1[step + 1]))
        passed = slice(int(steps.passed_starts_S1[step]), int(steps.passed_starts_S1[step + 1]))
        keys_R, before_R = steps.keys_N[own], steps.before_N[own]
        # A row that the run began with has a value at its home before its first use here.
        is_there_R = (before_R == NO_HOME) & self._restored_K[keys_R]
        return RankRows(
            keys_R,
            steps.masks_N[own],
            np.where(is_there_R, self.homes_K[keys_R], before_R).astype(np.uint8),
            steps.after_N[own],
            (steps.passed_keys_P[passed], steps.passed_homes_P[passed]),
            steps.is_early_N[own].astype(np.bool_),
        )
