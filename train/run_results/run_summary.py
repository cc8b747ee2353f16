"""The summary of a finished run: the quality that it reached, and its cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch

from ..exchange.coded_exchange import ExchangePrediction
from ..execution.traffic import Way
from ..meter import Kind
from ..metrics.scores import RunQuality
from ..resuming.saved_run import file_bytes
from ..steps.queued_steps import QueuedSteps
from ..trainer import Trainer


@dataclass(frozen=True, slots=True)
class TransferSummary:
    """How the transfers of a staging placement went; zeros for the other placements."""

    seconds: float
    """Seconds spent in transfers."""
    stall_seconds: float
    """Seconds that batches waited for transfers."""
    stalls: int
    """Batches that waited at all."""
    overlap: float
    """Share of the transfers' time that was hidden behind compute."""
    shortened: int
    """Transfers that waited for a later batch than the prefetch depth asks for."""
    split: int
    """Batches that ran in passes."""
    prefetch: int
    """Batches that transfers were to run ahead."""
    mover: str | None
    """The mover of rows on a device: kernel, or threads; None on the host, where none moved, and for rows in
    a file."""
    mover_rows_per_second: dict[str, float]
    """Rows that each mover took there and back per second before the first step, where both were timed."""
    file_bytes_read: int
    """Bytes of blocks read from the spill file, where cold rows lie in one by their next use."""
    file_bytes_written: int
    """Bytes of blocks written to it."""


@dataclass(frozen=True, slots=True)
class ExchangeSummary:
    """The traffic between ranks in training steps, since the run was begun or resumed."""

    ranks: int
    codecs: dict[str, str]
    """Codec of vectors, gradients, and the dense layers' gradients."""
    has_equal_bits: bool
    """Whether the weights are those of any number of ranks: everything crossed as it is."""
    bytes_by_rank: list[dict[str, int]]
    """Bytes that each rank sent, by kind."""
    num_saturated: int
    """Numbers that were too large for their code and became its largest."""
    seconds_per_step: float
    """Seconds of a step for coding and waiting, at the slowest rank."""
    prediction: ExchangePrediction | None
    """The measurement by which `--exchange auto` chose; None where codecs were named."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainSummary(RunQuality):
    """The quality that a run reached on the test part, and its cost."""

    placement: str
    samples_per_second: float
    """Training samples per second of training steps and switches, evaluation apart."""
    bytes_to_fast: int
    """Bytes of rows and vectors from the slow tier, evaluation apart."""
    bytes_to_slow: int
    """Bytes of rows and gradients to the slow tier, evaluation apart."""
    run: str
    num_rows: int
    """Rows of all tables."""
    num_hot_rows: int
    num_training_samples: int
    """Training samples of all epochs together."""
    num_steps: int
    seconds_by_kind: dict[Kind, float]
    bytes_to_fast_by_kind: dict[Kind, int]
    bytes_to_slow_by_kind: dict[Kind, int]
    rows_by_table: dict[str, dict[Way, int]]
    """Rows (or their vectors) of each table moved to the fast tier and to the slow one, and rows initialized
    on the fast tier at their first use; evaluation apart."""
    transfers: TransferSummary
    threads: int
    """Threads of the dense layers."""
    best_step: int | None
    """Steps before the best evaluation of the validation part, whose weights these are where best weights are
    kept; None where nothing was decided by it."""
    stopped: str | None
    """Why training stopped before its last step; None where it did not."""
    provenance: Mapping[str, Any] | None = None
    """The command, the machine and the commit that made the run; None where a program does not say."""
    exchange: ExchangeSummary | None = None
    """Traffic between the ranks of a run; None where it has one."""
    test_losses: list[float]
    """Test loss after each switch of ``fae``, nats per sample."""

    def to_dict(self) -> dict[str, Any]:
        """The summary as plain data, as ``summary.json`` holds it."""
        return asdict(self)


def summarize(trainer: Trainer, threads: int, out: Path, quality: RunQuality) -> TrainSummary:
    """Put together what the trainer counted; its clock must be stopped."""
    meter = trainer.meter
    # Evaluations and checkpoints are clocked apart, and are no part of these figures.
    bytes_to_fast, bytes_to_slow = meter.training_bytes()
    names = [table.name for table in trainer.shards.tables]
    return TrainSummary(
        **{field.name: getattr(quality, field.name) for field in fields(quality)},
        placement=trainer.config.placement,
        samples_per_second=trainer.num_samples / max(meter.training_seconds, 1e-9),
        bytes_to_fast=bytes_to_fast,
        bytes_to_slow=bytes_to_slow,
        run=str(out),
        num_rows=sum(table.num_rows for table in trainer.shards.tables),
        num_hot_rows=sum(table.num_hot for table in trainer.shards.tables),
        num_training_samples=trainer.num_samples,
        num_steps=trainer.step,
        seconds_by_kind=dict(meter.seconds),
        bytes_to_fast_by_kind=dict(meter.bytes_to_fast),
        bytes_to_slow_by_kind=dict(meter.bytes_to_slow),
        rows_by_table=dict(zip(names, trainer.embeddings.rows_by_table(), strict=True)),
        transfers=summarize_transfers(trainer),
        exchange=_summarize_exchange(trainer),
        threads=threads,
        best_step=trainer.stopping.best_step if trainer.stopping else None,
        stopped=trainer.stopping.reason if trainer.stopping else None,
        test_losses=list(trainer.scheduler.losses) if trainer.scheduler else [],
    )


def _summarize_exchange(trainer: Trainer) -> ExchangeSummary | None:
    """Bring together what all ranks have sent; every rank calls this."""
    ranks = trainer.ranks
    coded = trainer.coded
    if ranks.num_ranks == 1:
        return None
    counts = coded.counts
    # Whole numbers and seconds cross apart, since a tensor has one type.
    sent = ranks.gather(torch.tensor([*counts.sent_bytes.values(), counts.num_saturated]))
    seconds = ranks.gather(torch.tensor([counts.seconds], dtype=torch.float64))
    chosen = coded.chosen
    return ExchangeSummary(
        ranks=ranks.num_ranks,
        codecs={"vectors": chosen.vectors, "gradients": chosen.gradients, "dense": chosen.dense},
        has_equal_bits=chosen.is_exact,
        bytes_by_rank=[dict(zip(counts.sent_bytes, each.tolist()[:-1], strict=True)) for each in sent],
        num_saturated=sum(int(each[-1]) for each in sent),
        seconds_per_step=max(float(each) for each in seconds) / max(counts.num_steps, 1),
        prediction=coded.prediction,
    )


def summarize_transfers(trainer: Trainer) -> TransferSummary:
    """Put together how the transfers of a run went."""
    thread = trainer.embeddings.transfers
    source = trainer.step_source
    prefetch = trainer.config.prefetch
    assert prefetch is not None, "build_trainer chooses it"
    read, written = file_bytes(trainer)
    runner = trainer.runner
    moves = runner.moves if isinstance(runner, QueuedSteps) else None
    # The share of the transfers' time in which batches did not wait for them.
    hidden = 1 - thread.stall_seconds / thread.busy_seconds if thread.busy_seconds else 1.0
    return TransferSummary(
        seconds=thread.busy_seconds,
        stall_seconds=thread.stall_seconds,
        stalls=thread.num_stalls,
        # Waits may add up to more than the transfers took: then nothing was hidden.
        overlap=max(hidden, 0.0),
        shortened=source.num_shortened,
        split=source.num_split,
        prefetch=prefetch,
        mover=moves.name if moves else None,
        mover_rows_per_second=dict(moves.rows_per_second) if moves else {},
        file_bytes_read=read,
        file_bytes_written=written,
    )
