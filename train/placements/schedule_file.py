"""The schedule on disk: step plans of whole epochs that `hotset schedule` made for shards.

It is used where it was made for this very run: the same shards, order of batches, slots and prefetch depth.
Another one is no error, the run plans for itself; why is logged.
"""

from __future__ import annotations

import logging

import numpy as np

from ...pipeline.errors import ManifestError
from ...pipeline.folders.manifest import FileEntry, Manifest
from ...pipeline.scheduling.step_plan_files import read_plans, read_residents
from ..config import TrainConfig
from ..data.shards import Shards
from .staging_placements import PlanQueue, Staging

_log = logging.getLogger(__name__)
_VERSION = 1


class Schedule:
    """A sealed schedule folder that fits a run."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest

    @classmethod
    def find(cls, shards: Shards, config: TrainConfig) -> Schedule | None:
        """The schedule beside ``shards``; None where there is none for this run.

        Raises:
            ManifestError: there is one, and it is damaged.
        """
        folder = shards.manifest.folder.parent / "schedule"
        if not (folder / "manifest.json").exists():
            return None
        manifest = Manifest.read(folder)
        differs = _difference(manifest, shards, config)
        if differs is None:
            return cls(manifest)
        _log.info("%s is not for this run (%s): planning here", folder, differs)
        return None

    def queue(
        self, epoch: int, placement: Staging, embedding_dim: int, staged: list[int]
    ) -> PlanQueue | None:
        """The step plans of one epoch and width; None where they are for other batches or slots.

        Args:
            epoch: from 0.
            placement: of the width.
            embedding_dim: of the width.
            staged: batches of the epoch that need staging, in order.
        """
        widths = {width["embedding_dim"]: width for width in self._manifest.totals["widths"]}
        if widths.get(embedding_dim, {}).get("num_slots") != placement.num_staging_slots:
            return None
        chunks, numbers, queue = [], [], PlanQueue(placement, None)
        for entry in self._manifest.files:
            if not _is_of(entry, epoch, embedding_dim):
                continue
            if entry.facts["kind"] == "residents":
                queue.set_flush(read_residents(self._manifest, entry))
                continue
            for plans, batches in read_plans(self._manifest, entry):
                chunks.append(plans)
                numbers.append(batches)
        if not np.array_equal(np.concatenate([np.empty(0, np.int32), *numbers]), staged):
            return None
        for plans in chunks:
            queue.add_chunk(plans)
        return queue


def _difference(manifest: Manifest, shards: Shards, config: TrainConfig) -> str | None:
    if manifest.stage != "schedule" or manifest.version != _VERSION:
        raise ManifestError(
            f"{manifest.folder} holds {manifest.stage!r} of version {manifest.version}",
            hint="remove the folder, or run `hotset schedule` again",
        )
    if all(source.get("fingerprint") != shards.manifest.fingerprint for source in manifest.inputs):
        return "made for other shards"
    if not shards.has_packed_budget:
        return "made for other hot rows"
    wanted = {"seed": config.seed, "prefetch": config.prefetch, "window": None}
    for name, value in wanted.items():
        if manifest.config[name] != value:
            return f"{name} {manifest.config[name]} there, {value} here"
    if manifest.config["epochs"] < config.epochs:
        return f"{manifest.config['epochs']} epochs there, {config.epochs} here"
    if shards.embedding_optimizer != config.embedding_optimizer:
        return f"counted with {shards.embedding_optimizer}, trained with {config.embedding_optimizer}"
    return None


def _is_of(entry: FileEntry, epoch: int, embedding_dim: int) -> bool:
    return bool(entry.facts["epoch"] == epoch and entry.facts["embedding_dim"] == embedding_dim)
