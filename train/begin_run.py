"""Builds what a run trains with and the folder that it writes to: new, or as its last checkpoint has them."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..pipeline.errors import HotsetError
from ..pipeline.folders.manifest import checksum_of
from .checkpoints.checkpoint_files import CHECKPOINTS, newest_whole
from .checkpoints.checkpoint_settings import CheckpointSettings
from .checkpoints.dense_state import restore_dense
from .data.shard_origin import ShardOrigin
from .model_building.user_code import ModelSource
from .prepare_run import PreparedRun, RunRequest
from .ranks.ranks import Ranks
from .resuming.best_weights import BestWeights
from .resuming.optimizer_states import optimizer_states
from .resuming.run_checkpoints import RunCheckpoints
from .resuming.saved_errors import SAVED_ERRORS, SavedErrors
from .resuming.saved_run import Checkpoint, restore, table_sizes
from .run_folder.rank_folder import RankFolder
from .run_folder.run_description import settings_of
from .run_folder.run_writer import RunFolder
from .run_folder.tensorboard_events import TensorboardEvents
from .run_folder.unfinished_run import is_unfinished, refuse_occupied, remove_begun
from .trainer import Trainer
from .trainer_building.build_trainer import build_trainer
from .trainer_building.run_start import RunStart

if TYPE_CHECKING:
    from .resuming.rank_checkpoints import RankCheckpoints

_log = logging.getLogger(__name__)


def find_checkpoint(start: PreparedRun, out: Path, ranks: Ranks, *, is_resumed: bool) -> Checkpoint | None:
    """Open the checkpoint from which an unfinished run goes on; None, with a warning, where it has none."""
    # Between the first look and the lock another process may have begun or ended a run there.
    if ranks.rank == 0 and is_unfinished(out) != is_resumed:
        refuse_occupied(out)  # by a run that has begun or ended since
    if not is_resumed:
        return None
    record = newest_whole(out / CHECKPOINTS, checksum_of(settings_of(start.description)))
    if record is None:
        _log.warning("%s was stopped before its first checkpoint: training starts from the first step", out)
        if ranks.rank == 0:  # the one that writes the folder
            remove_begun(out)
        return None
    _log.warning("%s is resumed from its checkpoint of step %s", out, record.state.step)
    return Checkpoint.open(out / CHECKPOINTS, record, table_sizes(start.shards, start.config))


def build_run(
    start: PreparedRun,
    request: RunRequest,
    ranks: Ranks,
    settings: CheckpointSettings,
    model_source: ModelSource | None,
    checkpoint: Checkpoint | None,
) -> Trainer:
    """Build the trainer of a run, with the rows of the checkpoint from which it goes on."""
    out = request.out
    source = start.source
    # Rows come from the checkpoint if there is one, else from the run to start with, else they are initial.
    rows = RunStart(source.rows, is_fresh=False) if source else None
    if checkpoint is not None:
        rows = replace(checkpoint.start, is_fresh=source is None)
    trainer = build_trainer(
        start.shards,
        start.config,
        start.order,
        spill_folder=request.slow_dir or out,
        model_source=model_source,
        start=rows,
        tracks_changes=not settings.checkpoint_every.is_off,
        ranks=ranks,
        exchange=start.exchange,
    )
    # A checkpoint has the dense layers too, and they are restored with it.
    if source is not None and checkpoint is None:
        restore_dense(trainer.model, trainer.dense_optimizers, source.dense, source.where)
    if trainer.coded.errors is not None:
        trainer.resumables[SAVED_ERRORS] = SavedErrors(ranks, trainer.coded.errors)
    if start.config.recipe.keeps_best:
        best = BestWeights(out, settings.keep_checkpoints, ranks)
        best.reserve(trainer.weights().num_bytes)
        trainer.resumables["best_weights"] = best
    return trainer


def begin_run(
    trainer: Trainer,
    out: Path,
    description: dict[str, Any],
    checkpoint: Checkpoint | None,
    settings: CheckpointSettings,
    tensorboard: Path | None,
) -> tuple[RunFolder, RunCheckpoints | RankCheckpoints | None]:
    """Begin or resume the folder of a run, with room for its weights and checkpoints."""
    if checkpoint is not None:
        restore(trainer, checkpoint)
    ranks = trainer.ranks
    is_saved = not settings.checkpoint_every.is_off
    last_step = checkpoint.record.state.step if checkpoint else None
    if ranks.num_ranks > 1:
        from .resuming.rank_checkpoints import RankCheckpoints
    if ranks.rank:
        return RankFolder(out), RankCheckpoints(trainer, None, last_step) if is_saved else None
    try:
        folder, saved = _begin_folder(trainer, out, description, checkpoint, settings)
        if tensorboard is not None:
            folder.tensorboard = TensorboardEvents(tensorboard, folder.metrics)
        if ranks.num_ranks > 1 and saved is not None:
            return folder, RankCheckpoints(trainer, saved, last_step)
        return folder, saved
    except HotsetError:
        # A disk without room for the run leaves nothing of it.
        if checkpoint is None:
            remove_begun(out)
        raise


def _begin_folder(
    trainer: Trainer,
    out: Path,
    description: dict[str, Any],
    checkpoint: Checkpoint | None,
    settings: CheckpointSettings,
) -> tuple[RunFolder, RunCheckpoints | None]:
    # The room for the results is taken before the first step.
    weight_bytes = trainer.weights().num_bytes + optimizer_states(trainer).num_bytes
    if checkpoint is None:
        folder = RunFolder.begin(out, description, weight_bytes=weight_bytes)
    else:
        folder = RunFolder.resume(out, checkpoint.record.state.metrics, weight_bytes=weight_bytes)
    # The vocabulary is kept in the run, so that the run alone can predict.
    origin = ShardOrigin.of(trainer.shards)
    if origin is not None:
        folder.keep_vocabulary(origin.vocabulary)
    saved = None
    if not settings.checkpoint_every.is_off:
        run = checksum_of(settings_of(description))
        last = checkpoint.record if checkpoint else None
        saved = RunCheckpoints(out / CHECKPOINTS, run, settings, trainer, last)
    return folder, saved
