"""Trains on shards, from a config to a run folder.

Everything that a run begins with is read and checked before its folder is touched; a new run starts from
initial values, a resumed one from its last checkpoint. `train` reads from top to bottom: open and resolve,
resume, build, run the loop, write. On several ranks each phase ends with a barrier, which all pass or none.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..pipeline.errors import KIB, ConfigError, HotsetError, ShardError
from ..pipeline.folders.manifest import checksum_of
from ..pipeline.folders.totals import ShardsTotals
from ..pipeline.runtime.progress import Progress, no_progress
from .build import build_trainer
from .build_embeddings import RunStart, idle_settings, resolve, set_threads, warn_of_idle, with_options
from .build_model import LossSource, ModelSource, predicts
from .checkpoints.files import newest_whole, restore_dense
from .checkpoints.resume import (
    Checkpoint,
    Interrupted,
    Interrupts,
    RunCheckpoints,
    optimizer_states,
    restore,
    table_sizes,
)
from .config import TrainConfig
from .config_parts import (
    AUTO,
    EXACT_CODEC,
    OFF,
    CheckpointSettings,
    ChosenExchange,
    ExchangeOptions,
    rank_timeout,
)
from .data.batch import BATCH_ORDER, BatchOrder, RecordedOrder, SeededOrder
from .data.shards import ShardOrigin, ShardSet, with_hot_bytes
from .loop import Trainer, train_steps
from .metrics import RunQuality
from .model.gradients import cpu_features, warn_of_slow_bf16
from .model.shapes import choose_labels, choose_model
from .ranks.ranks import (
    NotFiniteRowError,
    Ranks,
    check_equal_settings,
    first_says,
    joined_processes,
    joined_ranks,
    raise_on_any_rank,
)
from .run_folder.files import (
    CHECKPOINTS,
    RunFolder,
    TensorboardEvents,
    claimed,
    describe,
    is_unfinished,
    read_begun,
    recorded_exchange,
    recorded_micro_batches,
    refuse_missing_folder,
    refuse_occupied,
    refuse_other_settings,
    remove_begun,
    settings_of,
)
from .run_folder.weights import read_manifest
from .run_log import RunLog, TrainSummary, summarize

if TYPE_CHECKING:
    from ..stats.replication import Network
    from .checkpoints.best_weights import BestWeights
    from .checkpoints.starting_rows import GivenTable, SourceRun
    from .evaluate import EvaluationCheck
    from .rows.embeddings import RowsPart

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Where a run begins and what it reports; none of it but ``replay``, ``init_from`` and ``init_tables``
    decides weights."""

    replay: Path | None = None
    """A finished run whose batch order is used instead of the placement's own."""
    init_from: Path | None = None
    """A run whose weights and states this one starts with; a finished one, or the last checkpoint of
    another."""
    init_tables: Mapping[str, Path] = field(default_factory=dict)
    """By table, a file whose vectors its rows start with: see `checkpoints.starting_rows`."""
    slow_dir: Path | None = None
    """Folder of the spill file of rows beyond ``slow_bytes``; None: that of the run."""
    model_source: ModelSource | None = None
    """Makes the module of a user; None imports the class that ``config.model`` names."""
    loss_source: LossSource | None = None
    """The loss of a user; None imports the function that ``config.loss`` names."""
    exchange: ExchangeOptions = field(default_factory=ExchangeOptions)
    """Of a run on several ranks, where torchrun or a similar launcher started the process."""
    speeds: Path | None = None
    """A file of speeds of a network, by which a run on TorchRec chooses its replicated rows; None: by
    bytes."""
    checkpoints: CheckpointSettings = field(default_factory=CheckpointSettings)
    """How often the run is saved."""
    provenance: Mapping[str, Any] | None = None
    """What made the run, as plain data for its summary."""
    tensorboard: Path | None = None
    """Folder of a file that TensorBoard reads, with the lines of ``metrics.jsonl``; None: there is none."""
    verify: bool = False
    """Whether to hash all shards before the first step; otherwise large ones are verified when read."""
    progress: Progress = no_progress
    """Called after every step with the samples so far, the mean loss of the last logged steps and the last
    AUC."""


def train(shards: Path, config: TrainConfig, out: Path, options: RunOptions = RunOptions()) -> TrainSummary:
    """Train on ``shards`` and write the run to ``out``.

    ``shards`` is a shards folder, or the folder that holds it. Where ``out`` holds an unfinished run with
    these settings, it is resumed from its last checkpoint, and ends with the bits of a run that was never
    interrupted.

    Raises:
        HotsetError: shards that cannot be used, a config that does not fit them; ``out`` holds something
            else, a finished run, or one with other settings.
        Interrupted: Ctrl-C or SIGTERM, after the last step was saved.
    """
    joined = (
        joined_ranks(rank_timeout())
        if config.engine == "hotset"
        else joined_processes(rank_timeout(), config.device)
    )
    with joined as ranks:
        # Rank 0 alone writes to the folder, so it knows whether there is a run to resume.
        is_resumed = first_says(ranks, ranks.rank == 0 and is_unfinished(out))
        # Everything that can be refused is refused before the first file is written.
        with raise_on_any_rank(ranks):
            start = prepare_run(shards, config, out, options, ranks, is_resumed=is_resumed)
        description = start.description
        if ranks.num_ranks > 1:
            with raise_on_any_rank(ranks):
                check_equal_settings(ranks, compared_by_ranks(start, options.exchange))
        with claimed(out) if ranks.rank == 0 else nullcontext():
            # Before anything is built on it, all ranks have found the same checkpoint.
            with raise_on_any_rank(ranks):
                checkpoint = find_checkpoint(start, out, ranks, is_resumed=is_resumed)
            step = checkpoint.record.state.step if checkpoint else None
            with raise_on_any_rank(ranks):
                check_equal_settings(ranks, {"checkpoint": step})
            with raise_on_any_rank(ranks):
                trainer, best = build_run(start, out, options, ranks, checkpoint)
            if start.leaves_codecs_open:
                description = description | _measure_codecs(trainer, options.exchange)
            _report_settings(trainer, start.threads)
            # Every rank begins, or none: a folder that one of them cannot write stops them all.
            with raise_on_any_rank(ranks):
                folder, saved = begin_run(trainer, out, options, description, checkpoint)
            check = None if start.is_hashed else _begin_check(trainer)
            log = RunLog(trainer, folder, saved, best, options.progress, check)
            quality, is_last = _train(trainer, log, saved, checkpoint)
            summary = replace(summarize(trainer, start.threads, out, quality), provenance=options.provenance)
            return _write_results(trainer, folder, best, summary, is_last=is_last)


def _begin_check(trainer: Trainer) -> EvaluationCheck:
    """Begin to hash the evaluation shards."""
    from .evaluate import EvaluationCheck

    return EvaluationCheck(trainer.shards, trainer.ranks)


def _measure_codecs(trainer: Trainer, options: ExchangeOptions) -> dict[str, Any]:
    """Choose the codecs that are left open by a measurement; return what describes them."""
    from .ranked_run import choose_exchange

    assert trainer.rank_codecs is not None
    trainer.rank_codecs.use(choose_exchange(trainer, options))
    return coding_of(trainer.rank_codecs.chosen, trainer.ranks)


def _train(
    trainer: Trainer,
    log: RunLog,
    saved: RunCheckpoints | None,
    checkpoint: Checkpoint | None,
) -> tuple[RunQuality, bool]:
    """Train what is left of a run, and score it; return whether its weights are the last step's."""
    try:
        # Signals are noted from here on, and obeyed between two steps.
        with log.interrupts.noted():
            # An evaluation that was due when the checkpoint was written is made first, as the unbroken run
            # did.
            if checkpoint is not None and not checkpoint.record.state.is_logged:
                log.evaluate()
            if trainer.stopping.reason is None:
                with closing(train_steps(trainer)) as steps:
                    for _, loss_sum in steps:
                        log(loss_sum)
            if saved is not None:
                saved.advance(to_end=True)
            log.log_loss()
            log.check_evaluation()
            is_last = log.choose_weights()
            return trainer.predictor.score_run(progress=log.evaluating), is_last
    except NotFiniteRowError as error:
        log.refuse_divergence(str(error))
    except Interrupted:
        log.save_last()
        raise
    except ShardError as error:
        log.refuse_shards(error)
    finally:
        log.close()
        if saved is not None:
            saved.close()


def _write_results(
    trainer: Trainer, folder: RunFolder, best: BestWeights | None, summary: TrainSummary, *, is_last: bool
) -> TrainSummary:
    """Write the files of a run in the order of their names; the manifest comes last and ends the run."""
    _warn_of_passes(trainer)
    if summary.validation is not None:
        folder.log({"step": trainer.step, "validation": summary.validation.to_dict()})
    folder.log({"step": trainer.step, "evaluation": summary.of_test()})
    folder.save_weights(trainer.weights())
    # States go with the weights of the last step alone.
    if is_last:
        folder.save_states(optimizer_states(trainer))
    folder.save_batch_order(trainer.batch_numbers)
    # A signal that comes now is too late: the run is sealed, and nothing would remove its checkpoints later.
    with Interrupts().noted():
        folder.finish(summary.to_dict())
        # Once it is sealed: a run that is killed before is resumed, and needs its best weights.
        if best is not None:
            best.remove()
    return summary


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRun:
    """A run that was refused by nothing."""

    shards: ShardSet
    config: TrainConfig
    threads: int
    order: BatchOrder | None
    description: dict[str, Any]
    source: SourceRun | None
    """The run that this one starts from."""
    given: Sequence[GivenTable]
    """Files of vectors that rows start with."""
    exchange: ChosenExchange
    """Codecs of what crosses between ranks, as far as options name them."""
    leaves_codecs_open: bool
    """Whether some are to be chosen by a measurement."""
    network: Network | None
    """Speeds between the devices of a run on TorchRec; None: not given."""
    is_hashed: bool
    """Whether the shards were hashed; otherwise their batches are verified as they are read."""


def prepare_run(
    shards: Path, config: TrainConfig, out: Path, options: RunOptions, ranks: Ranks, *, is_resumed: bool
) -> PreparedRun:
    """Read and check all that a run begins with."""
    if config.engine == "torchrec":
        import_module(".torchrec.embeddings", __package__)  # refuses to be imported without the library
    network = None
    if options.speeds is not None:
        from .advice import MachineSpeeds

        network = MachineSpeeds.read(options.speeds).network()
    # One rank refuses for all, before any of them writes.
    if not is_resumed and ranks.rank == 0:
        refuse_occupied(out)
    if options.slow_dir is not None:
        refuse_missing_folder(options.slow_dir)
    # The shards first: what the settings leave open follows from them.
    opened, is_hashed = _open_shards(shards, config, is_first=options.verify)
    threads = set_threads(config.threads)
    replay = options.replay
    # A batch order that was changed since would be replayed as if it were the run's.
    if replay is not None:
        read_manifest(replay, (BATCH_ORDER,))
    order = RecordedOrder.of_run(replay, opened.num_training_batches, config.epochs) if replay else None
    # A resumed run keeps its micro-batches, whatever the number of ranks now.
    recorded = read_begun(out) if is_resumed else {}
    if is_resumed and config.micro_batches is None:
        config = replace(config, micro_batches=recorded_micro_batches(recorded))
    asked = config
    config = resolve(opened, config, ranks.num_ranks)
    if ranks.rank == 0:
        warn_of_idle(chain(idle_settings(opened, config, asked), _idle_options(config, options)))
    predicted = predicts(config.loss, options.loss_source)
    description = describe(opened, config, threads, is_replay=replay is not None, predicts=predicted)
    exchange, leaves_codecs_open = _choose_codecs(config, opened, options.exchange, ranks, recorded)
    description |= coding_of(exchange, ranks)
    source, given = _open_first_values(opened, config, options)
    # They are part of what decides the bits.
    if source is not None:
        description["init_from"] = source.fingerprint
    if given:
        description["init_tables"] = {each.name: each.checksum for each in given}
    # Last, when the description of this command is complete.
    if is_resumed:
        refuse_other_settings(out, recorded, description)
        description = recorded
    return PreparedRun(
        shards=opened,
        config=config,
        threads=threads,
        order=order,
        description=description,
        source=source,
        given=given,
        exchange=exchange,
        leaves_codecs_open=leaves_codecs_open,
        network=network,
        is_hashed=is_hashed,
    )


def _open_shards(folder: Path, config: TrainConfig, *, is_first: bool) -> tuple[ShardSet, bool]:
    """Open the batches to train on; return whether all were hashed, as they are if that comes first."""
    whole = ShardSet.open(folder)
    whole = with_hot_bytes(whole, config.tagging_hot_bytes, config.row_optimizer(whole.embedding_optimizer))
    is_hashed = whole.verify(is_first=is_first)
    opened = with_options(whole, config)
    if config.last_batch != "keep":
        _report_last_batch(whole, opened, config.last_batch)
    _warn_of_large_values(opened, config.seed)
    return opened, is_hashed


def _open_first_values(
    shards: ShardSet, config: TrainConfig, options: RunOptions
) -> tuple[SourceRun | None, Sequence[GivenTable]]:
    """Open what a new run starts with, checked against the shards: another run, and files of vectors."""
    source = None
    given: Sequence[GivenTable] = ()
    chosen = config.optimizers(shards.embedding_optimizer)
    if options.init_from is not None:
        from .checkpoints.starting_rows import open_source

        model = choose_model(config, shards.embedding_dim)
        labels = choose_labels(config, shards.labels)
        source = open_source(options.init_from, shards, chosen, model, labels)
    if options.init_tables:
        from .checkpoints.starting_rows import open_given_tables

        given = open_given_tables(options.init_tables, shards, chosen)
    return source, given


def _report_last_batch(whole: ShardSet, chosen: ShardSet, option: str) -> None:
    """Log what becomes of short batches, and the samples that no epoch has."""
    num_all, num_left = whole.num_training_samples, chosen.num_training_samples
    if num_left < num_all:
        left_out = f"{num_all - num_left:,} of {num_all:,} training samples in each epoch"
        _log.warning("--last-batch %s leaves out %s", option, left_out)
    elif chosen.num_training_batches == whole.num_training_batches:
        _log.warning("--last-batch %s changes nothing: there is no short batch to %s", option, option)


_BATCHES_LOOKED_AT = 3
_LARGE = 1e6
"""Dense values beyond it are not transformed, and too large for the first step of any layer."""


def _warn_of_large_values(shards: ShardSet, seed: int) -> None:
    """Warn of dense features whose values are very large in the first training batches."""
    order = SeededOrder(shards.is_hot_only, seed, 1, is_grouped=shards.is_grouped)
    first = next(order.epochs())[:_BATCHES_LOOKED_AT] if shards.num_dense else ()
    for number in first:
        most_K = shards.training_batch(number).dense_BK.abs().amax(dim=0)
        for name, most in zip(ShardsTotals.of(shards.manifest).dense, most_K.tolist(), strict=True):
            if most > _LARGE:
                _log.warning(
                    "values of the dense feature %s are as large as %.2g, which training hardly bears: "
                    'leave out transform = "none" in the schema, or scale them in the log',
                    name,
                    most,
                )
                return


def _idle_options(config: TrainConfig, options: RunOptions) -> Iterator[tuple[str, str]]:
    """Yield the options outside the config that decide nothing, and why."""
    if options.slow_dir is not None and config.slow_bytes is None:
        yield "slow_dir", "without --slow-bytes all rows are in memory"
    keeps = options.checkpoints.keep_checkpoints != CheckpointSettings().keep_checkpoints
    if keeps and options.checkpoints.checkpoint_every == OFF and not config.recipe.keeps_best:
        yield "keep_checkpoints", "--checkpoint-every is off"
    if options.speeds is not None and (config.engine != "torchrec" or config.placement == "fae"):
        yield "speeds", "they choose the rows that --engine torchrec replicates, without --placement fae"
    if options.replay is not None and config.placement == "fae" and config.fae_variant != "paper":
        yield "fae_variant", "the replayed run has the order of batches"


def _choose_codecs(
    config: TrainConfig,
    shards: ShardSet,
    options: ExchangeOptions,
    ranks: Ranks,
    recorded: Mapping[str, Any],
) -> tuple[ChosenExchange, bool]:
    """Return the codecs that options name, and whether some are left to a measurement.

    Args:
        recorded: description of the run that is resumed; empty for a new one.
    """
    # One process sends nothing. A resumed run keeps what was chosen for it, and measures no more.
    if ranks.num_ranks == 1:
        if options.exchange != EXACT_CODEC:
            _log.warning("one process sends nothing: --exchange changes nothing in this run")
        return ChosenExchange(), False
    if config.engine == "torchrec":
        if options.exchange_feedback:
            raise ConfigError("--exchange-feedback is of hotset's own engine, and --engine torchrec has none")
        return ChosenExchange(options.exchange, options.exchange), False
    from .ranks.messages import chosen_by

    exchange = chosen_by(options, config.epochs * shards.num_training_batches)
    is_open = options.exchange == AUTO
    if recorded:
        begun_with = recorded_exchange(recorded)
        if is_open or begun_with.vectors == exchange.vectors:
            return begun_with, False
    return exchange, is_open


def coding_of(exchange: ChosenExchange, ranks: Ranks) -> dict[str, Any]:
    """Return what codecs add to a run's description; none without codecs.

    Which rows are rounded depends on who owns and uses them, so the number of ranks decides the bits of such
    a run, too.
    """
    if exchange.is_exact:
        return {}
    return {"exchange": exchange.to_json() | {"ranks": ranks.num_ranks}}


def compared_by_ranks(start: PreparedRun, options: ExchangeOptions) -> dict[str, object]:
    """Return what ranks must have in common, by the names that a user knows."""
    found: dict[str, object] = dict(start.description) | {"version": __version__}
    settings = dict(start.description["config"])
    del found["config"]
    # Options are named one by one; the number of threads is the one in force.
    recipe = settings.pop("recipe", {})
    found |= settings | recipe | {"threads": start.threads}
    # Codecs by option, and by what a resumed run has recorded.
    found |= {field.name: getattr(options, field.name) for field in fields(ExchangeOptions)}
    found["recorded exchange"] = start.exchange
    return found


def find_checkpoint(start: PreparedRun, out: Path, ranks: Ranks, *, is_resumed: bool) -> Checkpoint | None:
    """Open the checkpoint of an unfinished run; without, warn and return None."""
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
    start: PreparedRun, out: Path, options: RunOptions, ranks: Ranks, checkpoint: Checkpoint | None
) -> tuple[Trainer, BestWeights | None]:
    """Build the trainer of a run, with the rows of its checkpoint, and what keeps its best weights."""
    settings = options.checkpoints
    source = start.source
    # Rows come from the checkpoint if there is one, else from the run to start with, else they are initial.
    rows = RunStart(partial(_rows_of, start), is_fresh=source is None) if source or start.given else None
    if checkpoint is not None:
        rows = replace(checkpoint.start, is_fresh=source is None)
    built = (start.shards, start.config, start.order)
    if start.config.engine == "torchrec":
        from .torchrec.engine import build_torchrec_trainer

        own = (options.model_source, options.loss_source)
        trainer = build_torchrec_trainer(
            *built, ranks, *own, start=rows, exchange=start.exchange.vectors, network=start.network
        )
    else:
        trainer = build_trainer(
            *built,
            spill_folder=options.slow_dir or out,
            model_source=options.model_source,
            loss_source=options.loss_source,
            start=rows,
            tracks_changes=settings.checkpoint_every != OFF,
            ranks=ranks,
            exchange=start.exchange,
        )
    # A checkpoint has the dense layers too, and they are restored with it.
    if source is not None and checkpoint is None:
        restore_dense(trainer.model, trainer.dense_optimizers, source.dense, source.where)
    if trainer.rank_codecs is not None and trainer.rank_codecs.errors is not None:
        from .ranked_run import SAVED_ERRORS, SavedErrors

        trainer.resumables[SAVED_ERRORS] = SavedErrors(ranks, trainer.rank_codecs.errors)
    best = None
    if start.config.recipe.keeps_best:
        from .checkpoints.best_weights import BestWeights

        best = BestWeights(out, settings.keep_checkpoints, ranks)
        best.reserve(trainer.weights().num_bytes)
        trainer.resumables["best_weights"] = best
    return trainer, best


def _rows_of(start: PreparedRun) -> Iterator[RowsPart]:
    """Yield the rows that a new run starts with; given vectors first, because the first value counts."""
    for given in start.given:
        yield from given.rows()
    if start.source is not None:
        yield from start.source.rows()


def begin_run(
    trainer: Trainer,
    out: Path,
    options: RunOptions,
    description: dict[str, Any],
    checkpoint: Checkpoint | None,
) -> tuple[RunFolder, RunCheckpoints | None]:
    """Begin or resume a run's folder, with room for weights and checkpoints."""
    if checkpoint is not None:
        restore(trainer, checkpoint)
    ranks = trainer.ranks
    kind = RunCheckpoints
    try:
        if trainer.config.engine == "torchrec":
            from .torchrec.rank_rows import TorchRecCheckpoints

            kind = TorchRecCheckpoints
        elif ranks.num_ranks > 1:
            from .ranked_run import RankCheckpoints

            kind = RankCheckpoints
        folder = RunFolder(out, is_first=False)
        if ranks.rank == 0:
            # The room for the results is taken before the first step.
            weight_bytes = trainer.weights().num_bytes + optimizer_states(trainer).num_bytes
            if checkpoint is None:
                folder = RunFolder.begin(out, description, weight_bytes=weight_bytes)
            else:
                metrics = checkpoint.record.state.metrics
                folder = RunFolder.resume(out, metrics, weight_bytes=weight_bytes)
            # The vocabulary is kept in the run, so that the run alone can predict.
            if (origin := ShardOrigin.of(trainer.shards)) is not None:
                folder.keep_vocabulary(origin.vocabulary)
            if options.tensorboard is not None:
                folder.tensorboard = TensorboardEvents(options.tensorboard, folder.metrics)
        if options.checkpoints.checkpoint_every == OFF:
            return folder, None
        run = checksum_of(settings_of(description))
        last = checkpoint.record if checkpoint else None
        return folder, kind(trainer, out / CHECKPOINTS, run, options.checkpoints, last)
    except HotsetError:
        # A disk without room for the run leaves nothing of it.
        if checkpoint is None and ranks.rank == 0:
            remove_begun(out)
        raise


def _report_settings(trainer: Trainer, threads: int) -> None:
    """Log the settings that the shards decided where the user did not."""
    config = trainer.config
    chosen = asdict(config.optimizers(trainer.shards.embedding_optimizer))
    chosen |= {"staging_bytes": config.staging_bytes, "prefetch": config.prefetch}
    _log.info(
        "%s on %s with %s threads: %s",
        config.placement,
        trainer.meter.device,
        threads,
        ", ".join(f"{name} {setting}" for name, setting in chosen.items()),
    )
    if trainer.meter.device.type == "cpu" and config.dense_dtype == "bf16":
        warn_of_slow_bf16(config.dense_dtype, cpu_features())


def _warn_of_passes(trainer: Trainer) -> None:
    """Warn of batches with more cold rows than slots, which fetch twice."""
    # With slots enough for every batch there is nothing to say.
    source = trainer.step_source
    if not source.num_split:
        return
    # The bytes of the slots there are: each group has one slot at least, even with fewer staging bytes.
    staged = sum(
        group.placement.num_staging_slots * group.fast.row_bytes for group in trainer.embeddings.groups
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
