"""A run in memory, and what a checkpoint keeps of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch

from ..pipeline.errors import ShardError
from ..pipeline.schema.schema import DENSE_PREFIX
from .config import TrainConfig
from .data.batch_order import BatchOrder
from .data.shards import Shards
from .evaluate import Predictor
from .metrics import Meter
from .model.layers import DenseModel
from .placements.step_source import StepSource
from .ranks.ranks import OneRank, Ranks
from .rows.embeddings import Embeddings
from .rows.step_plan import PlannedStep
from .run_folder.weights import Weights
from .step import LearningRates, StepRunner, Stopping
from .threads import BackgroundIterator, WorkThreads

if TYPE_CHECKING:
    from .ranks.messages import CodedExchange


class Resumable(Protocol):
    """A part of a run whose state a checkpoint keeps.

    What `state` returns after a step and `restore` is given before the next one in another process: plain
    JSON values (numbers, strings, lists, dicts, None), and tensors on the host. Tensors must be copies:
    training continues while they are written. A file is not trusted: `restore` raises HotsetError or
    ValueError on values that `state` does not return.
    """

    def state(self) -> Mapping[str, Any]: ...

    def restore(self, state: Mapping[str, Any]) -> None: ...


@dataclass(slots=True)
class Trainer:
    """A run in memory."""

    config: TrainConfig
    shards: Shards
    model: DenseModel
    dense_optimizers: tuple[torch.optim.Optimizer, ...]
    embeddings: Embeddings
    order: BatchOrder
    step_source: StepSource
    runner: StepRunner
    rates: LearningRates
    stopping: Stopping
    predictor: Predictor
    meter: Meter
    threads: WorkThreads
    ranks: Ranks = field(default_factory=OneRank)
    rank_codecs: CodedExchange | None = None
    """Codecs and counts of what crosses between several ranks."""
    before_step: list[Callable[[PlannedStep], None]] = field(default_factory=list)
    """Work before a step changes rows: FAE's copies, and rows that a checkpoint has yet to save."""
    resumables: dict[str, Resumable] = field(default_factory=dict)
    """Other parts of the run whose state checkpoints keep, by name."""
    step: int = 0
    num_samples: int = 0
    batch_numbers: list[int] = field(default_factory=list)
    """Training batch of each step so far."""
    losses: list[torch.Tensor] = field(default_factory=list)
    """Loss sum of each batch since the last line of the log, kept on the device."""
    unlogged_samples: int = 0
    """Samples that those losses cover."""
    fault: ShardError | None = None
    """What is wrong with the shards of the next steps, where this is one of several ranks."""
    num_agreed: int = 1
    """Next steps whose shards all ranks can read, or none of them takes another step."""
    whole_losses: Callable[[torch.Tensor], torch.Tensor] | None = None
    """Adds the losses of all ranks, where each knows only those of its samples; every rank calls it."""
    ahead: BackgroundIterator[PlannedStep] | None = None
    """The steps after the current one, where another thread reads them and a step looks that far."""

    def step_losses(self) -> torch.Tensor:
        """Return the loss sum of each of `losses`, of all ranks, once it is computed."""
        self.runner.synchronize()
        losses = torch.stack(self.losses)
        if self.whole_losses is not None:
            losses = self.whole_losses(losses)
            self.set_losses(losses)
        return losses

    def set_losses(self, losses: torch.Tensor) -> None:
        """Set `losses` to those of all ranks, which are added up again later: the first rank has them."""
        is_counted = self.whole_losses is None or self.ranks.rank == 0
        self.losses = list(losses if is_counted else torch.zeros_like(losses))

    def peek(self, place: int) -> PlannedStep | None:
        """Return a step after the current one, 0 for the next; None where there is none, or nobody knows."""
        return None if self.ahead is None else self.ahead.peek(place)

    def weights(self) -> Weights:
        """Return dense layers and tables by name, copied to the host on access."""
        tables = self.embeddings.parts_by_name(self.shards.tables)
        return Weights.of_run(self.model.state_dict(prefix=DENSE_PREFIX), tables)
