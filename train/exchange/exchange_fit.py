"""Whether a schedule of several ranks fits a run."""

from __future__ import annotations

from dataclasses import dataclass

from ...pipeline.errors import ManifestError
from ...pipeline.folders.manifest import Manifest
from ...pipeline.formats.stage_settings import RankScheduleSettings
from ...pipeline.stage_commands import hint_to_rewrite
from ...stats.exchange.homes_name import HomesName
from ..config import TrainConfig
from ..data.shards import Shards

_STAGE = "schedule-ranks"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class RunOnRanks:
    """The properties of a run that decide whether a schedule fits it, beside its shards and settings."""

    rank: int
    num_ranks: int
    homes: HomesName
    num_done: int = 0
    """Steps that a resumed run has done."""
    begins_with_others: bool = False
    """Whether rows that no step of the run has used may have other than their initial values."""
    own_plan: str | None = None
    """Why the run has to plan for itself whatever is on disk; None: it has not."""


def difference(manifest: Manifest, shards: Shards, config: TrainConfig, run: RunOnRanks) -> str | None:
    """Return the first thing that keeps a schedule from fitting a run, for the log; None where it fits.

    Raises:
        ManifestError: the folder is of another stage or version.
    """
    if (manifest.stage, manifest.version) != (_STAGE, _VERSION):
        raise ManifestError(
            f"{manifest.folder} holds {manifest.stage!r} of version {manifest.version}",
            hint=hint_to_rewrite(manifest.folder),
        )
    if all(source.get("fingerprint") != shards.manifest.fingerprint for source in manifest.inputs):
        return "it was written for other shards"
    # Batches that are grouped by the hot rows come in an order that depends on these.
    if shards.is_grouped and not shards.has_packed_budget:
        return "it was written for other hot rows"
    planned = RankScheduleSettings.of(manifest)
    for name, found, wanted in (
        ("ranks", planned.ranks, run.num_ranks),
        ("homes", planned.homes, run.homes),
        ("seed", planned.seed, config.seed),
    ):
        if found != wanted:
            return f"it has {name} {found}, the run {wanted}"
    # A longer schedule fits a shorter run: homes are planned epoch after epoch.
    if planned.epochs < config.epochs:
        return f"it has {planned.epochs} epochs, the run {config.epochs}"
    if run.homes != "moving":
        return None
    # What it costs to move a row depends on its state.
    optimizer = config.row_optimizer(shards.embedding_optimizer)
    if shards.embedding_optimizer != optimizer:
        return f"its rows move with the state of {shards.embedding_optimizer}, the run uses {optimizer}"
    return "the run begins with the rows of another" if run.begins_with_others else None
