"""The schedule on disk: step plans of whole epochs that `hotset schedule` wrote for shards.

It is used where it fits this run exactly: the same shards, order of batches, slots and prefetch depth.
Another schedule is not an error: the run plans for itself, and warns why. A damaged or unfinished one is an
error: its files are hashed before the first is used, and whatever their checksums, every epoch is run by a
`PlanChecker` before its first step is, and every step once more against the rows that its batch looks up.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from ...pipeline.errors import ManifestError
from ...pipeline.folders.checksum import hash_file
from ...pipeline.folders.file_facts import ScheduleFacts
from ...pipeline.folders.manifest import FileEntry, Manifest
from ...pipeline.folders.stage_totals import ScheduledWidth, ScheduleTotals
from ...pipeline.formats.stage_settings import ScheduleSettings
from ...pipeline.runtime.tasks import run_tasks
from ...pipeline.scheduling.step_plan_files import read_plans, read_residents
from ...pipeline.stage_commands import hint_to_rewrite
from ...stats.batches.epoch_order import epoch_order
from ...stats.staging.plan_checks import PlanChecker, PlanFaultError
from ...stats.staging.step_plans import Residents, StepPlans
from ..config import TrainConfig
from ..data.shards import Shards
from .cut_plans import NO_RESIDENTS, from_step, up_to_step, with_residents
from .plan_queue import PlanQueue
from .staging_placements import StagingPlacement

_log = logging.getLogger(__name__)
_VERSION = 2


@dataclass(frozen=True, slots=True)
class _EpochPlans:
    """The plans of one epoch and width, as they are on disk."""

    chunks: list[StepPlans]
    batches: NDArray[np.int32]
    """(num_steps,); the batch of each step."""
    residents: Residents
    """Rows that are in slots after the last step."""


class Schedule:
    """A sealed schedule folder that fits a run."""

    def __init__(self, manifest: Manifest, shards: Shards) -> None:
        self._manifest = manifest
        self._shards = shards
        self._totals = ScheduleTotals.of(manifest)
        self._checkers: dict[int, tuple[PlanChecker, PlanChecker]] = {}
        """By width: what checks epochs as a whole, and what checks steps before they are run."""
        self._left_out: set[int] = set()
        """Widths whose plans are made during training."""

    @classmethod
    def find(cls, shards: Shards, config: TrainConfig) -> Schedule | None:
        """The schedule beside ``shards``; None where there is none that fits this run.

        Raises:
            ManifestError: there is a schedule, and it is unfinished or damaged.
        """
        folder = shards.manifest.folder.parent / "schedule"
        manifest = Manifest.read_if_begun(folder)
        if manifest is None:
            return None
        # A schedule that does not fit is no fault: the same plans can be made during training.
        differs = _difference(manifest, shards, config)
        if differs is None:
            _refuse_damage(manifest)
            return cls(manifest, shards)
        _warn(folder, differs)
        return None

    def queue(
        self,
        epoch: int,
        placement: StagingPlacement,
        embedding_dim: int,
        staged: list[int],
        num_done: int = 0,
    ) -> PlanQueue | None:
        """The step plans of one epoch and width; None where they are for other batches or slots.

        Args:
            epoch: number of the epoch; epochs are asked for in order, from 0 or from that in which a run is
                resumed.
            placement: placement of the width.
            embedding_dim: row width.
            staged: batches of the epoch that need staging, in order, behind those that are done.
            num_done: how many of them are done; what was in slots then is loaded by the next step.

        Raises:
            ManifestError: the plans are not what `hotset schedule` writes.
        """
        # Slots first: plans for another number of them name slots that do not exist.
        width = self._width(embedding_dim, placement)
        if width.num_slots != placement.num_staging_slots:
            differs = f"it has {width.num_slots:,} slots, the run {placement.num_staging_slots:,}"
            self._warn_once(embedding_dim, differs)
            return None
        found = self._read(epoch, embedding_dim)
        if not np.array_equal(found.batches[num_done:], staged):
            # A run that repeats the order of another; its first epoch decides for all.
            if embedding_dim not in self._checkers:
                self._warn_once(embedding_dim, "it has the batches in another order")
                return None
            raise ManifestError(
                f"{self._manifest.folder} is for the batches of epoch 0, but not for those of epoch {epoch}",
                hint="train with --plan epoch, which does not use it",
            )
        if embedding_dim not in self._checkers:
            self._checkers[embedding_dim] = self._begin_checks(epoch, embedding_dim, width)
        whole, single = self._checkers[embedding_dim]
        chunks = found.chunks
        residents = found.residents
        with self._refusing_faults(epoch, embedding_dim):
            # The whole epoch is checked before its first step, each step again with the rows of its batch.
            _check_epoch(whole, found)
            # A resumed run enters in the middle: its first step loads what was in the slots by then.
            if num_done:
                single.begin_epoch()
                for plans in up_to_step(chunks, num_done):
                    single.check(plans)
                chunks = from_step(chunks, num_done)
                if chunks:
                    chunks[0] = with_residents(chunks[0], single.residents())
                else:
                    residents = NO_RESIDENTS

        def check(plans: StepPlans, step: int, rows: NDArray[np.int64]) -> None:
            with self._refusing_faults(epoch, embedding_dim):
                # The steps of an epoch are taken after all of the one before.
                if plans.first_step + step == 0:
                    single.begin_epoch()
                single.check_step(plans, step, rows)

        queue = PlanQueue(placement, None, check)
        queue.set_flush(residents)
        for plans in chunks:
            queue.add_chunk(plans)
        return queue

    def _read(self, epoch: int, embedding_dim: int) -> _EpochPlans:
        """Read the plans of one epoch and width."""
        entries = self._entries(epoch, embedding_dim)
        chunks: list[StepPlans] = []
        numbers: list[NDArray[np.int32]] = [np.empty(0, np.int32)]
        # Files of plans are in the order of the steps.
        for entry in entries["plans"]:
            for plans, batches in read_plans(self._manifest, entry):
                chunks.append(plans)
                numbers.append(batches)
        batches_of_steps = np.concatenate(numbers)
        if not np.array_equal(batches_of_steps, self._own_batches(epoch)):
            self._refuse(epoch, embedding_dim, "its batches are not in the order of its seed")
        # The residents of the last step are written back at the end.
        return _EpochPlans(chunks, batches_of_steps, read_residents(self._manifest, entries["residents"][0]))

    def _begin_checks(
        self, epoch: int, embedding_dim: int, width: ScheduledWidth
    ) -> tuple[PlanChecker, PlanChecker]:
        """The checkers of a width before an epoch: they know which rows the epochs before it have used."""
        checkers = (
            PlanChecker(width.num_rows, width.num_slots),
            PlanChecker(width.num_rows, width.num_slots),
        )
        # Whether a row is used for the first time follows from all epochs before.
        for earlier in range(epoch):
            found = self._read(earlier, embedding_dim)
            for checker in checkers:
                with self._refusing_faults(earlier, embedding_dim):
                    _check_epoch(checker, found)
        return checkers

    def _warn_once(self, embedding_dim: int, differs: str) -> None:
        """Say why the plans of a width are not used: in its first epoch, not in each."""
        if embedding_dim not in self._left_out:
            self._left_out.add(embedding_dim)
            _warn(self._manifest.folder, differs)

    @contextmanager
    def _refusing_faults(self, epoch: int, embedding_dim: int) -> Iterator[None]:
        """Raise ManifestError for a fault of a plan."""
        try:
            yield
        except PlanFaultError as error:
            self._refuse(epoch, embedding_dim, str(error))

    def _own_batches(self, epoch: int) -> NDArray[np.int32]:
        """The mixed batches of an epoch in the order of the schedule's seed."""
        is_hot_only = self._shards.is_hot_only
        seed = ScheduleSettings.of(self._manifest).seed
        order = epoch_order(is_hot_only, seed, epoch, spread=self._shards.is_grouped)
        mixed: NDArray[np.int32] = order[~is_hot_only[order]]
        return mixed

    def _width(self, embedding_dim: int, placement: StagingPlacement) -> ScheduledWidth:
        """The staging area of a width, as the manifest has it."""
        found = [width for width in self._totals.widths if width.embedding_dim == embedding_dim]
        if len(found) != 1 or found[0].num_rows != placement.slow.num_own_slots:
            rows = [width.num_rows for width in found]
            wanted = placement.slow.num_own_slots
            raise _damaged(
                self._manifest, f"it has {rows} cold rows of width {embedding_dim}, the shards have {wanted}"
            )
        return found[0]

    def _entries(self, epoch: int, embedding_dim: int) -> dict[str, list[FileEntry]]:
        """The files of one epoch and width, in order, by kind."""
        entries: dict[str, list[FileEntry]] = {"plans": [], "residents": []}
        for entry in self._manifest.files:
            facts = ScheduleFacts.of(self._manifest, entry)
            if (facts.epoch, facts.embedding_dim) == (epoch, embedding_dim):
                entries[facts.kind].append(entry)
        if len(entries["residents"]) != 1:
            self._refuse(epoch, embedding_dim, f"{len(entries['residents'])} files of residents, want 1")
        return entries

    def _refuse(self, epoch: int, embedding_dim: int, fault: str) -> NoReturn:
        raise _damaged(self._manifest, f"epoch {epoch} of width {embedding_dim}: {fault}")


def _warn(folder: Path, differs: str) -> None:
    _log.warning("%s does not fit this run (%s): planning during training", folder, differs)


def _check_epoch(checker: PlanChecker, found: _EpochPlans) -> None:
    """Run an epoch; raises PlanFaultError."""
    checker.begin_epoch()
    for plans in found.chunks:
        checker.check(plans)
    checker.check_residents(found.residents)


def _damaged(manifest: Manifest, fault: str) -> ManifestError:
    return ManifestError(
        f"{manifest.folder} is damaged: {fault}",
        hint=hint_to_rewrite(manifest.folder),
    )


def _refuse_damage(manifest: Manifest) -> None:
    """Hash every file: a flipped bit may well be another slot."""
    tasks = ((manifest.checked_path(entry),) for entry in manifest.files)
    for entry, (_, checksum) in zip(manifest.files, run_tasks(hash_file, tasks), strict=True):
        if checksum != entry.xxh3_128:
            raise _damaged(manifest, f"the checksum of {entry.path} is {checksum}, want {entry.xxh3_128}")


def _difference(manifest: Manifest, shards: Shards, config: TrainConfig) -> str | None:
    """The first thing that keeps a schedule from fitting a run, for the log; None where it fits."""
    if manifest.stage != "schedule" or manifest.version != _VERSION:
        raise ManifestError(
            f"{manifest.folder} holds {manifest.stage!r} of version {manifest.version}",
            hint=hint_to_rewrite(manifest.folder),
        )
    # What the plan depends on must be equal: the batches, the hot rows, and the settings of the planner.
    if all(source.get("fingerprint") != shards.manifest.fingerprint for source in manifest.inputs):
        return "it was written for other shards"
    if not shards.has_packed_budget:
        return "it was written for other hot rows"
    planned = ScheduleSettings.of(manifest)
    for name, found, wanted in (
        ("seed", planned.seed, config.seed),
        ("prefetch", planned.prefetch, config.prefetch),
        ("window", planned.window, None),
    ):
        if found != wanted:
            return f"it has {name} {found}, the run {wanted}"
    # A longer schedule fits a shorter run: epochs are planned one after the other.
    if planned.epochs < config.epochs:
        return f"it has {planned.epochs} epochs, the run {config.epochs}"
    # An optimizer decides the bytes of a row, and with them how many slots the staging area has.
    optimizer = config.row_optimizer(shards.embedding_optimizer)
    if shards.embedding_optimizer != optimizer:
        return f"it is for rows of {shards.embedding_optimizer}, the run uses {optimizer}"
    return None
