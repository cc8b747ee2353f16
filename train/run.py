"""Train on shards: from a config to a run folder."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from .. import __version__
from ..pipeline.errors import ConfigError, HotsetError
from ..pipeline.folders.manifest import checksum_of
from ..pipeline.sizes import KIB
from .checkpoints.checkpoint_files import CHECKPOINTS, newest_whole
from .checkpoints.checkpoint_settings import CheckpointSettings
from .checkpoints.dense_state import restore_dense
from .checkpoints.interrupts import Interrupted, Interrupts
from .config import TrainConfig
from .data.batch_order import BATCH_ORDER, BatchOrder, RecordedOrder
from .data.shard_origin import ShardOrigin
from .data.shards import Shards, with_hot_bytes
from .exchange.chosen_exchange import ChosenExchange, chosen_by
from .exchange.row_messages import NotFiniteRowError
from .model.dense_dtype import cpu_features, warn_of_slow_bf16
from .model_building.choose_model import choose_model
from .model_building.user_code import ModelSource
from .options.exchange_options import AUTO, ExchangeOptions
from .options.rank_options import RankOptions
from .ranks.ranks import Ranks, agree, refuse_other_settings_of_ranks
from .ranks.torch_ranks import joined_ranks
from .resuming.best_weights import BestWeights
from .resuming.rank_checkpoints import RankCheckpoints
from .resuming.run_checkpoints import (
    Checkpoint,
    RunCheckpoints,
    optimizer_states,
    restore,
    table_sizes,
)
from .resuming.saved_errors import SAVED_ERRORS, SavedErrors
from .resuming.source_run import SourceRun, open_source
from .run_folder.rank_folder import RankFolder
from .run_folder.run_description import (
    describe,
    recorded_exchange,
    recorded_shares,
    refuse_other_settings,
    settings_of,
)
from .run_folder.run_files import refuse_missing_folder
from .run_folder.run_reader import read_manifest, refuse_changed_files
from .run_folder.run_writer import RunFolder
from .run_folder.tensorboard_events import TensorboardEvents
from .run_folder.unfinished_run import claimed, is_unfinished, refuse_occupied, remove_begun
from .run_results.run_log import RunLog, TrainProgress, no_progress
from .run_results.run_summary import TrainSummary, summarize
from .trainer import Trainer, run_steps
from .trainer_building.build_trainer import RunStart, build_trainer
from .trainer_building.choose_exchange import choose_exchange
from .trainer_building.devices import set_threads
from .trainer_building.resolve_config import resolve

_log = logging.getLogger(__name__)


def train(
    shards: Path,
    config: TrainConfig,
    out: Path,
    *,
    replay: Path | None = None,
    slow_dir: Path | None = None,
    model_source: ModelSource | None = None,
    checkpoints: CheckpointSettings | None = None,
    provenance: Mapping[str, Any] | None = None,
    init_from: Path | None = None,
    id_map: Path | None = None,
    tensorboard: Path | None = None,
    rank_options: RankOptions | None = None,
    progress: TrainProgress = no_progress,
) -> TrainSummary:
    """Train on ``shards`` (a shards folder, or the folder that holds it) and write the run to ``out``.

    Where ``out`` holds an unfinished run with these settings, it is resumed from its last checkpoint, and
    ends with the bits of a run that was never interrupted.

    Args:
        replay: a finished run whose batch order is used instead of the placement's own.
        slow_dir: folder of the spill file of rows beyond ``slow_bytes``; None: ``out``.
        model_source: makes the module of a user; None imports the class that ``config.model`` names.
        checkpoints: how often the run is saved; None: as `CheckpointSettings` has it.
        init_from: a run whose weights and states this one starts with; a finished one, or the last checkpoint
            of another.
        id_map: where the ids of that run have become others: what `map-ids` wrote.
        tensorboard: folder of a file that TensorBoard reads, with the lines of ``metrics.jsonl``; None: there
            is none.
        provenance: what made the run, as plain data for its summary; decides nothing.
        rank_options: of a run on several ranks, where torchrun or the like started this process as one.
        progress: called after every step with the samples so far, the mean loss of the last logged steps and
            the last AUC.

    Raises:
        HotsetError: shards that cannot be used, a config that does not fit them; ``out`` holds something
            else, a finished run, or one with other settings.
        Interrupted: Ctrl-C or SIGTERM, after the last step was saved.
    """
    request = _Request(
        shards=shards,
        config=config,
        out=out,
        replay=replay,
        slow_dir=slow_dir,
        init_from=init_from,
        id_map=id_map,
        rank_options=rank_options or RankOptions(),
    )
    with joined_ranks(request.rank_options.rank_timeout) as ranks:
        # Rank 0 alone writes to the folder, so it knows whether there is a run to resume.
        is_resumed = bool(ranks.gather(torch.tensor([ranks.rank == 0 and is_unfinished(out)]))[0])
        # Everything that can be refused is refused before the first file is written.
        start = agree(ranks, partial(_prepare, request, ranks, is_resumed=is_resumed))
        if ranks.num_ranks > 1:
            refuse_other_settings_of_ranks(ranks, _compared(start, request.rank_options))
        with claimed(out) if ranks.rank == 0 else nullcontext():
            settings = checkpoints or CheckpointSettings()
            # Before anything is built on it, all ranks have found the same checkpoint.
            checkpoint = agree(ranks, partial(_find, start, out, ranks, is_resumed=is_resumed))
            step = checkpoint.record.state.step if checkpoint else None
            refuse_other_settings_of_ranks(ranks, {"checkpoint": step})
            build = partial(_build, start, request, ranks, settings, model_source, checkpoint)
            trainer = agree(ranks, build)
            description = start.description
            if start.leaves_codecs_open:
                trainer.coded.use(choose_exchange(trainer, request.rank_options))
                description = description | _coding_of(trainer.coded.chosen, ranks, request.rank_options)
            extras = RunExtras(provenance, tensorboard, progress)
            return _run(trainer, out, description, checkpoint, settings, start.threads, extras)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """The arguments of `train`."""

    shards: Path
    config: TrainConfig
    out: Path
    replay: Path | None
    slow_dir: Path | None
    init_from: Path | None
    id_map: Path | None
    rank_options: RankOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """A run that was refused by nothing."""

    shards: Shards
    config: TrainConfig
    threads: int
    order: BatchOrder | None
    description: dict[str, Any]
    source: SourceRun | None
    """The run that this one starts from."""
    exchange: ChosenExchange
    """Codecs of what crosses between ranks, as far as options name them."""
    leaves_codecs_open: bool
    """Whether some are to be chosen by a measurement."""


def _prepare(request: _Request, ranks: Ranks, *, is_resumed: bool) -> _Start:
    """Read and check all that a run begins with."""
    out, config = request.out, request.config
    # One rank refuses for all, before any of them writes.
    if not is_resumed and ranks.rank == 0:
        refuse_occupied(out)
    if request.slow_dir is not None:
        refuse_missing_folder(request.slow_dir)
    # The shards first: what the settings leave open follows from them.
    opened = Shards.open(request.shards)
    if config.hot_bytes is not None:
        opened = with_hot_bytes(opened, config.hot_bytes, config.row_optimizer(opened.embedding_optimizer))
    opened.refuse_damage()
    threads = set_threads(config.threads)
    replay = request.replay
    # A batch order that was changed since would be replayed as if it were the run's.
    if replay is not None and (recorded := read_manifest(replay)) is not None:
        refuse_changed_files(recorded, (BATCH_ORDER,))
    order = RecordedOrder.of_run(replay, opened.num_training_batches, config.epochs) if replay else None
    # A resumed run keeps its shares, whatever the number of ranks now.
    if is_resumed and config.shares is None:
        config = replace(config, shares=recorded_shares(out))
    config = resolve(opened, config, ranks.num_ranks)
    description = describe(opened, config, threads, is_replay=replay is not None)
    # One process sends nothing. A resumed run keeps what was chosen for it, and measures no more.
    options = request.rank_options
    exchange = ChosenExchange()
    leaves_codecs_open = ranks.num_ranks > 1 and options.exchange == AUTO
    if ranks.num_ranks > 1:
        exchange = chosen_by(options, config.epochs * opened.num_training_batches)
    elif options.names_codecs:
        _log.warning("one process sends nothing: --exchange and --sync-rows change nothing in this run")
    if leaves_codecs_open and is_resumed:
        exchange = recorded_exchange(out)
        leaves_codecs_open = False
    description |= _coding_of(exchange, ranks, options)
    # Weights to start from are checked against the shards, and become part of what decides the bits.
    source = None
    if request.init_from is not None:
        chosen = config.optimizers(opened.embedding_optimizer)
        model = choose_model(config, opened.embedding_dim)
        source = open_source(request.init_from, request.id_map, opened, chosen, model)
        description["init_from"] = source.fingerprint
    elif request.id_map is not None:
        raise ConfigError("--id-map maps the ids of a run", hint="name the run: --init-from RUN")
    # Last, when the description of this command is complete.
    if is_resumed:
        refuse_other_settings(out, description)
    return _Start(
        shards=opened,
        config=config,
        threads=threads,
        order=order,
        description=description,
        source=source,
        exchange=exchange,
        leaves_codecs_open=leaves_codecs_open,
    )


def _coding_of(exchange: ChosenExchange, ranks: Ranks, options: RankOptions) -> dict[str, Any]:
    """Return the part of a run's description that codecs decide; none where rows cross as they are.

    Which rows are rounded depends on where they live and on who uses them, so homes and ranks decide the bits
    of such a run, too.
    """
    if exchange.is_exact:
        return {}
    return {"exchange": exchange.to_json() | {"ranks": ranks.num_ranks, "homes": options.homes}}


def _compared(start: _Start, options: RankOptions) -> dict[str, object]:
    """Return what ranks must have in common, by the names that a user knows."""
    found: dict[str, object] = dict(start.description) | {"version": __version__, "homes": options.homes}
    settings = dict(start.description["config"])
    del found["config"]
    # Options are named one by one; the number of threads is the one in force.
    recipe = settings.pop("recipe", {})
    found |= settings | recipe | {"threads": start.threads}
    # Codecs by option, and by what a resumed run has recorded.
    found |= {field.name: getattr(options, field.name) for field in fields(ExchangeOptions)}
    found["recorded exchange"] = start.exchange
    return found


def _find(start: _Start, out: Path, ranks: Ranks, *, is_resumed: bool) -> Checkpoint | None:
    """Open the checkpoint from which an unfinished run goes on, where it has one."""
    # Between the first look and the lock another process may have begun or ended a run there.
    if ranks.rank == 0 and is_unfinished(out) != is_resumed:
        refuse_occupied(out)  # by a run that has begun or ended since
    if not is_resumed:
        return None
    return _last_checkpoint(out, start.shards, start.config, start.description, is_first=ranks.rank == 0)


def _build(
    start: _Start,
    request: _Request,
    ranks: Ranks,
    settings: CheckpointSettings,
    model_source: ModelSource | None,
    checkpoint: Checkpoint | None,
) -> Trainer:
    """Build the trainer of a run, with the rows of the checkpoint from which it goes on."""
    out, source = request.out, start.source
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
        homes=request.rank_options.homes,
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


@dataclass(frozen=True, slots=True)
class RunExtras:
    """The arguments of a run that change no weight."""

    provenance: Mapping[str, Any] | None
    """The command and the machine that made the run."""
    tensorboard: Path | None
    """Folder of a file that TensorBoard reads."""
    progress: TrainProgress


def _run(
    trainer: Trainer,
    out: Path,
    description: dict[str, Any],
    checkpoint: Checkpoint | None,
    settings: CheckpointSettings,
    threads: int,
    extras: RunExtras,
) -> TrainSummary:
    """Train what is left of a run, and write its results."""
    _log.info(
        "%s on %s with %s threads: %s",
        trainer.config.placement,
        trainer.device,
        threads,
        ", ".join(f"{name} {setting}" for name, setting in _chosen(trainer).items()),
    )
    if trainer.device.type == "cpu":
        warn_of_slow_bf16(trainer.dense.dtype, cpu_features())
    ranks = trainer.ranks
    begin = partial(_begin, trainer, out, description, checkpoint, settings, extras.tensorboard)
    # Every rank begins, or none: a folder that one of them cannot write stops them all.
    folder, saved = agree(ranks, begin)
    best = trainer.resumables.get("best_weights")
    assert best is None or isinstance(best, BestWeights)
    interrupts = Interrupts()
    log = RunLog(folder, extras.progress, saved, interrupts, best, has_ranks=ranks.num_ranks > 1)
    try:
        # Signals are noted from here on, and obeyed between two steps.
        with interrupts.noted():
            # An evaluation that was due when the checkpoint was written is made first, as the unbroken run
            # did.
            if checkpoint is not None and not checkpoint.record.state.is_logged:
                log.evaluate(trainer)
            if trainer.stopping is None or trainer.stopping.reason is None:
                run_steps(trainer, log)
            if saved is not None:
                saved.go_on(trainer, to_end=True)
            log.log_loss(trainer)
            is_last = log.choose_weights(trainer)
            quality = trainer.predictor.score_run(progress=log.evaluating)
    except NotFiniteRowError as error:
        log.refuse_divergence(trainer, str(error))
    except Interrupted:
        log.save_last(trainer)
        raise
    finally:
        if saved is not None:
            saved.close()
    _warn_of_passes(trainer)

    # Results in the order of their names in the folder; the manifest comes last and ends the run.
    summary = replace(summarize(trainer, threads, out, quality), provenance=extras.provenance)
    if quality.validation is not None:
        folder.log({"step": trainer.step, "validation": quality.validation.to_dict()})
    folder.log({"step": trainer.step, "evaluation": quality.of_test()})
    folder.save_weights(trainer.weights())
    # States go with the weights of the last step alone.
    if settings.save_states and is_last:
        folder.save_states(optimizer_states(trainer))
    folder.save_batch_order(trainer.numbers)
    if best is not None:
        best.remove()
    # A signal that comes now is too late: the run is sealed, and nothing would remove its checkpoints later.
    with Interrupts().noted():
        folder.finish(summary.to_dict())
    return summary


def _begin(
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
    weight_bytes = trainer.weights().num_bytes
    if settings.save_states:
        weight_bytes += optimizer_states(trainer).num_bytes
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


def _last_checkpoint(
    out: Path, shards: Shards, config: TrainConfig, description: dict[str, Any], *, is_first: bool
) -> Checkpoint | None:
    """The checkpoint from which an unfinished run goes on; None, with a warning, where it has none.

    Args:
        is_first: whether this process writes the folder, and may remove what was begun there.
    """
    record = newest_whole(out / CHECKPOINTS, checksum_of(settings_of(description)))
    if record is None:
        _log.warning("%s was stopped before its first checkpoint: training starts from the first step", out)
        if is_first:
            remove_begun(out)
        return None
    _log.warning("%s is resumed from its checkpoint of step %s", out, record.state.step)
    return Checkpoint.open(out / CHECKPOINTS, record, table_sizes(shards, config))


def _chosen(trainer: Trainer) -> dict[str, Any]:
    """The settings that the shards decided where the user did not."""
    return asdict(trainer.optimizers) | {
        name: getattr(trainer.config, name) for name in ("staging_bytes", "prefetch", "plan")
    }


def _warn_of_passes(trainer: Trainer) -> None:
    """Warn of batches with more cold rows than there are slots, which fetch rows twice, and name a size that
    would be enough."""
    # With slots enough for every batch there is nothing to say.
    source = trainer.step_source
    if not source.num_split:
        return
    # The bytes of the slots there are: each width has one slot at least, even with fewer staging bytes.
    staged = sum(
        width.placement.num_staging_slots * width.executor.fast.row_bytes
        for width in trainer.embeddings.widths
    )
    assert trainer.config.staging_bytes is not None, "build_trainer chooses it"
    enough = math.ceil(max(staged, trainer.config.staging_bytes) * source.slots_wanted / KIB) + 1
    _log.warning(
        "%s of %s batches had more cold rows than staging slots and ran in passes: "
        "--staging-bytes %sKiB would be enough",
        source.num_split,
        trainer.step,
        enough,
    )
