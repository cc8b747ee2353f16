"""Gradients of rows until the next step, as torch's tools for gradients see them.

Each batch that is looked up in training mode leaves gradients by feature. Their sums by row are made when the
step, or a tool, asks for them: `RowsOfTable` stands for the rows of one table, whose ``grad`` these are, and
`RowsOptimizer` for their step. So clipping, `GradScaler` and schedules of learning rates work as they do for
layers. A tool changes the sums in place, and the step uses what it leaves.

Shapes: B samples, F features, d embedding_dim of a table group, P bags, U distinct rows.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from typing import Any, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ...pipeline.errors import ConfigError, HotsetError
from ...pipeline.folders.totals import by_feature
from ...pipeline.settings import Real
from ..config import EmbeddingOptimizer
from ..data.batch import Batch, EmbeddingTable, join
from ..rows.backends import RowOptimizer
from ..rows.table_group import RowStep, TableGroup
from .lookups import Held, LoopRanks, gather_batches, gather_gradients

# ruff: noqa: N815  (arrays carry shape suffixes)

_MANY_LOOKUPS = 100
"""Batches with gradients and without a step after which a warning is due."""


class TableSettings(TypedDict, total=False):
    """What one table of `hotset.nn.Embeddings` has otherwise than the others."""

    embedding_optimizer: EmbeddingOptimizer
    embedding_lr: Real
    decay: Real


@dataclass(slots=True, eq=False)
class Lookup:
    """A batch that was looked up in training mode."""

    number: int
    """Of lookups before it."""
    batch: Batch
    grads: dict[str, torch.Tensor] = field(default_factory=dict)
    """(B, d) gradients by feature, once they are computed."""
    is_over: bool = False
    """Whether its step was taken, or its rows are gone."""


@dataclass(slots=True)
class GroupSums:
    """Summed gradients of the distinct rows of a table group."""

    sums_UD: torch.Tensor
    first_F1: NDArray[np.int64]
    """Where the rows of each table begin."""
    is_used_U: NDArray[np.bool_]
    """Whether a loss depends on the row."""
    version: int = 0
    """How often torch had changed the sums when they were made."""

    def of_table(self, position: int) -> torch.Tensor | None:
        """Return the sums of one table; None where no loss depends on its rows."""
        first, stop = self.first_F1[position : position + 2]
        return self.sums_UD[first:stop] if self.is_used_U[first:stop].any() else None


class RowGradients:
    """The gradients that no step has used.

    Args:
        tables: of the shards.
        groups: with their rows.
        ranks: average their gradients.
    """

    def __init__(
        self, tables: Sequence[EmbeddingTable], groups: Sequence[TableGroup], ranks: LoopRanks
    ) -> None:
        self._groups = groups
        self._ranks = ranks
        self.lookups: list[Lookup] = []
        """Those with gradients."""
        self.held: Held[Any] | None = None
        """Batches of the step, where `read_ahead` yields them; None: those that have gradients."""
        self.of_parts: dict[int, Lookup] = {}
        """Those of them that were looked up."""
        self.whole: Batch | None = None
        """The batches of the sums, of all ranks."""
        self._sums: list[GroupSums] | None = None
        self._features = [by_feature(tables[table] for table in group.tables) for group in groups]
        self.rows = {
            tables[table].name: RowsOfTable.of(self, number, position)
            for number, group in enumerate(groups)
            for position, table in enumerate(group.tables)
        }
        self._has_warned = False

    def begin(self, held: Held[Any] | None, of_parts: dict[int, Lookup]) -> None:
        """Note the batches of the next step; None: those that have gradients."""
        self.held, self.of_parts = held, of_parts

    def note(self, lookup: Lookup, feature: str, leaf: torch.Tensor) -> None:
        """Keep the gradient of a feature; raise ConfigError where that comes too late."""
        if lookup.is_over:
            raise ConfigError("backward() comes after the step() of the batch: look the batch up again")
        self._forget_sums()
        assert leaf.grad is not None
        lookup.grads[feature] = leaf.grad
        if lookup in self.lookups:
            return
        self.lookups.append(lookup)
        if len(self.lookups) == _MANY_LOOKUPS and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"gradients of {_MANY_LOOKUPS} batches wait for hotset.nn.Embeddings.step(); "
                "zero_grad() drops them",
                stacklevel=2,
            )

    def _forget_sums(self) -> None:
        """Let sums be made anew, which a tool must not have changed."""
        if self._sums is not None and any(each.sums_UD._version != each.version for each in self._sums):
            raise ConfigError(
                "backward() comes after the gradients were clipped or scaled: call step() or zero_grad() "
                "in between"
            )
        self._sums = None

    def drop(self) -> None:
        """Forget all gradients; those of a graph that is kept begin at zero again."""
        for lookup in self.lookups:
            for grad_Bd in lookup.grads.values():
                grad_Bd.zero_()
            lookup.grads.clear()
        self.lookups.clear()
        self._sums = self.whole = None

    def finish(self) -> None:
        """Note that a step has used the gradients."""
        for lookup in self.lookups:
            lookup.is_over = True
        self.lookups.clear()
        self._sums = self.whole = None

    @property
    def is_finite(self) -> bool:
        """Whether the gradients of all rows are numbers, as far as sums were asked for."""
        return all(bool(torch.isfinite(each.sums_UD).all()) for each in self._sums or ())

    def check_finite(self) -> None:
        """Raise HotsetError where a gradient is an infinity or a NaN."""
        if self.is_finite:
            return
        for name, rows in self.rows.items():
            if rows.grad is not None and not torch.isfinite(rows.grad).all():
                raise HotsetError(
                    f"the gradient of table {name!r} is not finite, and step() has changed no row",
                    hint="lower the learning rates; zero_grad() drops this gradient",
                )

    def sums(self) -> list[GroupSums]:
        """Return the sums of each table group; all ranks call this together."""
        if self._sums is None:
            self._sums = self._sum_up()
        return self._sums

    def _sum_up(self) -> list[GroupSums]:
        found: list[Lookup | None]
        if self.held is not None:
            batches = self.held.batches
            found = [self.of_parts.get(part) for part in range(len(batches))]
        else:
            given = sorted(self.lookups, key=lambda lookup: lookup.number)
            batches = [lookup.batch for lookup in given]
            found = [*given]
        grads = [self._grads_of(number, batches, found) for number in range(len(self._groups))]
        is_given = np.concatenate(
            [
                np.tile(
                    [lookup is not None and each.name in lookup.grads for each in self._all_features],
                    (batch.num_samples, 1),
                )
                for batch, lookup in zip(batches, found, strict=True)
            ]
        )
        self.whole = join(batches) if self.held is None else self.held.whole
        num_ranks = self._ranks.num_ranks
        if num_ranks > 1:
            # As gradients of layers, they are the mean of those of all ranks.
            own = [(grad_BFd / num_ranks).cpu().numpy() for grad_BFd in grads]
            whole, is_given = gather_gradients(self._ranks.steps, own, is_given)
            grads = [
                torch.from_numpy(each).to(group.fast.device)
                for each, group in zip(whole, self._groups, strict=True)
            ]
            if self.held is None:
                parts = gather_batches(self._ranks.steps, self.whole)
                self.whole = join([part for part in parts if part is not None])
        first = 0
        sums = []
        for group, features, grad_BFd in zip(self._groups, self._features, grads, strict=True):
            is_given_BF = is_given[:, first : first + len(features)]
            first += len(features)
            sums.append(_sums_of(group, self.whole, grad_BFd, is_given_BF))
        return sums

    @property
    def _all_features(self) -> list[EmbeddingTable]:
        return [feature for features in self._features for feature in features]

    def _grads_of(
        self, number: int, batches: Sequence[Batch], found: Sequence[Lookup | None]
    ) -> torch.Tensor:
        """Return (B, F, d) gradients of a table group, zero where no loss depends on the embeddings."""
        group = self._groups[number]
        size = sum(batch.num_samples for batch in batches)
        grads_BFd = torch.zeros(
            size,
            len(self._features[number]),
            group.embedding_dim,
            dtype=torch.float32,
            device=group.fast.device,
        )
        first = 0
        for batch, lookup in zip(batches, found, strict=True):
            stop = first + batch.num_samples
            for position, feature in enumerate(self._features[number]):
                if lookup is not None and feature.name in lookup.grads:
                    grads_BFd[first:stop, position] = lookup.grads[feature.name]
            first = stop
        return grads_BFd


def _sums_of(
    group: TableGroup, batch: Batch, grad_BFd: torch.Tensor, is_given_BF: NDArray[np.bool_]
) -> GroupSums:
    """Sum the gradients of a table group by row."""
    part = group.read(batch)
    by_bag = part.ids.by_bag(part.lookups)
    sums_UD = group.sums(by_bag, grad_BFd.reshape(-1, group.embedding_dim), part.ids.num_features)
    # A row that only samples without a gradient look up takes no step, as a parameter of torch.
    is_used_U = np.ones(by_bag.num_rows, np.bool_)
    if not is_given_BF.all() and by_bag.num_rows:
        is_given_N = is_given_BF.reshape(-1)[by_bag.order_N]
        is_used_U = np.logical_or.reduceat(is_given_N, by_bag.starts_U1[:-1])
    return GroupSums(sums_UD, by_bag.first_F1, is_used_U, sums_UD._version)


class RowsOfTable(nn.Parameter):
    """The rows of one table for tools of torch: a parameter without values.

    Its ``grad`` has a row for each row of the table that batches since the last step look up, in the order
    of ids: the sum over them, (U, embedding_dim) float32. ``requires_grad_(False)`` freezes the table.
    """

    place: tuple[int, int]
    """Numbers of the group and of the table in it."""
    gradients: weakref.ref[RowGradients]

    @classmethod
    def of(cls, gradients: RowGradients, group: int, position: int) -> RowsOfTable:
        """Return that of a table, by its group and its position in it."""
        of_group = gradients._groups[group]
        found = cls(torch.empty(0, of_group.embedding_dim, dtype=torch.float32, device=of_group.fast.device))
        # No circle: rows are freed with the module, without the garbage collector.
        found.gradients, found.place = weakref.ref(gradients), (group, position)
        return found

    @property
    def grad(self) -> torch.Tensor | None:
        """The summed gradient; None where no loss depends on the rows. All ranks ask for it together."""
        gradients = self.gradients()
        if gradients is None or not gradients.lookups:
            return None
        group, position = self.place
        return gradients.sums()[group].of_table(position)

    @grad.setter
    def grad(self, value: torch.Tensor | None) -> None:
        found = self.grad
        if found is not None and value is not None:
            found.copy_(value)
        elif found is not None and (gradients := self.gradients()) is not None:
            group, position = self.place
            sums = gradients.sums()[group]
            sums.is_used_U[sums.first_F1[position] : sums.first_F1[position + 1]] = False
        elif value is not None:
            raise ConfigError("rows that no loss depends on have no gradient to set")


class RowsOptimizer(torch.optim.Optimizer):
    """Takes the steps of all rows; a group of parameters for each table.

    Each group has the ``name`` of its table, and its ``lr`` and ``weight_decay``, which schedules may change.
    The state of rows is in `hotset.nn.Embeddings.state_dict`.
    """

    def __init__(
        self,
        rows: Mapping[str, RowsOfTable],
        optimizers: Mapping[str, RowOptimizer],
        update: weakref.WeakMethod[Callable[[], None]],
        drop: Callable[[], None],
    ) -> None:
        self._update, self._drop = update, drop
        groups = [
            {
                "params": [rows[name]],
                "name": name,
                "optimizer": each.name,
                "lr": each.lr,
                "weight_decay": each.decay,
            }
            for name, each in optimizers.items()
        ]
        super().__init__(groups, {})

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the rows; see `hotset.nn.Embeddings.step`."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        update = self._update()
        assert update is not None, "the module of the rows is gone"
        update()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients that no step has used."""
        self._drop()

    def choices(self, lr: float | None) -> dict[str, tuple[RowOptimizer, float]]:
        """Return the optimizer and the learning rate of each table in the next step.

        Args:
            lr: of all tables; None: each has its own.
        """
        return {
            each["name"]: (
                _optimizer(each["optimizer"], each["weight_decay"]),
                float(np.float32(each["lr"] if lr is None else lr)),
            )
            for each in self.param_groups
        }


@lru_cache(maxsize=256)
def _optimizer(name: str, decay: float) -> RowOptimizer:
    return RowOptimizer(name, 0.0, decay)


def row_steps(sums: GroupSums, choices: Sequence[tuple[RowOptimizer, float]]) -> list[RowStep]:
    """Return the steps of the rows of a table group, neighbors that are equal in one.

    Args:
        sums: of the group.
        choices: optimizer and learning rate of each of its tables.
    """
    found = []
    first = 0
    for (optimizer, rate), equal in groupby(choices):
        stop = first + len(list(equal))
        rows_N = np.arange(sums.first_F1[first], sums.first_F1[stop])
        rows_N = rows_N[sums.is_used_U[rows_N]]
        if rows_N.size:
            found.append(RowStep(rows_N, optimizer, rate))
        first = stop
    return found
