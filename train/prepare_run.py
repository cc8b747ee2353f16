"""Reads and checks all that a run begins with, before its folder is touched."""

from __future__ import annotations

import logging
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from .. import __version__
from .config import TrainConfig
from .data.batch_order import BATCH_ORDER, BatchOrder, RecordedOrder
from .data.shards import Shards, with_hot_bytes
from .exchange.chosen_exchange import ChosenExchange, chosen_by
from .model_building.choose_model import choose_model
from .options.exchange_options import AUTO, ExchangeOptions
from .ranks.ranks import Ranks
from .resuming.source_run import SourceRun, open_source
from .run_folder.run_description import (
    describe,
    recorded_description,
    recorded_exchange,
    recorded_micro_batches,
)
from .run_folder.run_files import refuse_missing_folder
from .run_folder.run_reader import read_manifest, refuse_changed_files
from .run_folder.unfinished_run import refuse_occupied
from .trainer_building.devices import set_threads
from .trainer_building.resolve_config import resolve

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """The arguments of `train`."""

    shards: Path
    config: TrainConfig
    out: Path
    replay: Path | None
    slow_dir: Path | None
    init_from: Path | None
    rank_options: ExchangeOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRun:
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


def prepare_run(request: RunRequest, ranks: Ranks, *, is_resumed: bool) -> PreparedRun:
    """Read and check all that a run begins with."""
    out = request.out
    config = request.config
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
    # A resumed run keeps its micro-batches, whatever the number of ranks now.
    if is_resumed and config.micro_batches is None:
        config = replace(config, micro_batches=recorded_micro_batches(out))
    config = resolve(opened, config, ranks.num_ranks)
    description = describe(opened, config, threads, is_replay=replay is not None)
    # One process sends nothing. A resumed run keeps what was chosen for it, and measures no more.
    options = request.rank_options
    exchange = ChosenExchange()
    leaves_codecs_open = ranks.num_ranks > 1 and options.exchange == AUTO
    if ranks.num_ranks > 1:
        exchange = chosen_by(options, config.epochs * opened.num_training_batches)
    elif options.names_codecs:
        _log.warning("one process sends nothing: --exchange changes nothing in this run")
    if is_resumed and ranks.num_ranks > 1:
        begun_with = recorded_exchange(out)
        if leaves_codecs_open or begun_with.vectors == exchange.vectors:
            exchange = begun_with
            leaves_codecs_open = False
    description |= coding_of(exchange, ranks)
    # Weights to start from are checked against the shards, and become part of what decides the bits.
    source = None
    if request.init_from is not None:
        chosen = config.optimizers(opened.embedding_optimizer)
        model = choose_model(config, opened.embedding_dim)
        source = open_source(request.init_from, opened, chosen, model)
        description["init_from"] = source.fingerprint
    # Last, when the description of this command is complete.
    if is_resumed:
        description = recorded_description(out, description)
    return PreparedRun(
        shards=opened,
        config=config,
        threads=threads,
        order=order,
        description=description,
        source=source,
        exchange=exchange,
        leaves_codecs_open=leaves_codecs_open,
    )


def coding_of(exchange: ChosenExchange, ranks: Ranks) -> dict[str, Any]:
    """Return the part of a run's description that codecs decide; none where rows cross as they are.

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
