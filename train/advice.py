"""Which placement and how much fast memory a preprocessed log wants, before anything is trained.

Reads the vocabulary's counts, and the ids once to count fully hot samples; all mathematics is in
`stats.step_times`. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ..pipeline.errors import ConfigError
from ..pipeline.folders.manifest import Manifest
from ..pipeline.hot_rows.hot_order import HotOrder, row_bytes_of
from ..pipeline.inspect.frequency_series import count_hot_samples, read_row_counts
from ..pipeline.runtime.tasks import ProgressCallback, silent
from ..pipeline.sizes import MIB, format_byte_size
from ..stats.prediction.access_rates import AccessRates, expected_unique_rows
from ..stats.prediction.step_times import MAX_PREFETCH, compute_seconds, predict, where_more_stops_paying
from ..stats.prediction.workload import Budget, Machine, Prediction, Workload
from .model.dlrm_shape import DlrmShape, dlrm_shape

STAGING_SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2)
"""Shares of the room for rows that are tried as staging area."""
_DENSE_STATE = {"sgd": 0, "momentum": 1, "adagrad": 1, "rowwise-adagrad": 1, "adam": 2}


@dataclass(frozen=True, kw_only=True, slots=True)
class AdviceConfig:
    """What to predict for."""

    fast_bytes: tuple[int, ...] = ()
    """Fast memory to consider, all uses together (bytes); none given means a ladder up to all rows."""

    batch_size: int = 2048
    """Samples of a step."""

    model: str = "auto"
    """DLRM preset, as `train --model` has it."""

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ConfigError(f"batch_size must be 1 or more, got {self.batch_size}")


def advise(
    folder: Path,
    config: AdviceConfig,
    machine: Machine,
    *,
    workers: int = 0,
    progress: ProgressCallback = silent,
) -> dict[str, Any]:
    """Predict every placement at every size of fast memory.

    Returns:
        ``workload`` and ``machine`` as they were taken; ``compute_seconds`` of a step with every row at
        hand; ``options``: per size the predictions that fit, the
        fastest first, and what the others need; ``best`` the fastest of all; ``enough`` the size from
        which more gains under 1 % with the best placement.

    Raises:
        ManifestError: the folder has not been preprocessed as far as its plan.
        ConfigError: a model that does not fit, or no memory given that holds the dense parts.
    """
    vocabulary, samples, plan = (Manifest.read(folder / name) for name in ("vocabulary", "samples", "plan"))
    workload = _workload(vocabulary, plan, Manifest.read(folder / "columns"), config)
    sizes = sorted(set(config.fast_bytes or _ladder(workload)))
    budgets = [budget for size in sizes for budget in _budgets(size, workload)]
    counted = _count_hot(budgets, vocabulary, samples, plan, workers, progress)
    options = []
    for size in sizes:
        made = [one for budget in counted[size] for one in predict(workload, machine, budget)]
        options.append(_option(size, made))
    return {
        "workload": _described(workload),
        "machine": asdict(machine),
        "compute_seconds": compute_seconds(workload, machine),
        "options": options,
        **_conclusion(options),
    }


def _workload(vocabulary: Manifest, plan: Manifest, columns: Manifest, config: AdviceConfig) -> Workload:
    counts = read_row_counts(vocabulary)
    num_train = vocabulary.totals["num_train_samples"]
    dim, optimizer = plan.config["embedding_dim"], plan.config["embedding_optimizer"]
    num_dense = len(columns.totals["dense"])
    shape = dlrm_shape(config.model, num_dense, len(counts), dim)
    rates = AccessRates.of_counts(counts, num_train)
    # Tables of several widths enter by the mean width of a look-up.
    widths, lookups = np.array(row_bytes_of(plan.totals)), np.array([int(count.sum()) for count in counts])
    row_bytes = round(float(widths @ lookups) / max(1, int(lookups.sum())))
    layers = [*pairwise(shape.bottom), *pairwise(shape.top)]
    num_weights = sum((inputs + 1) * outputs for inputs, outputs in layers)
    return Workload(
        rates=rates,
        num_rows=vocabulary.totals["num_rows"],
        num_train_samples=num_train,
        batch_size=config.batch_size,
        vector_bytes=4 * dim,
        row_bytes=row_bytes,
        flops_per_sample=_flops(shape, layers),
        dense_bytes=4 * num_weights * (2 + _DENSE_STATE[optimizer]),
        activation_bytes=_activation_bytes(shape, layers),
        input_bytes=4 + 4 * num_dense + int(4 * rates.lookups_per_sample),
    )


def _flops(shape: DlrmShape, layers: list[tuple[int, int]]) -> float:
    """Of a sample: a product and a sum for each weight and each pair, forward and twice backward."""
    products = sum(inputs * outputs for inputs, outputs in layers)
    return 3 * 2.0 * (products + shape.num_vectors**2 * shape.embedding_dim)


def _activation_bytes(shape: DlrmShape, layers: list[tuple[int, int]]) -> int:
    outputs = sum(outputs for _, outputs in layers)
    interaction = shape.num_vectors * shape.embedding_dim + shape.num_vectors**2 + shape.top_inputs
    return 2 * 4 * (outputs + interaction)


def _ladder(workload: Workload) -> list[int]:
    """Sizes from one with room for a few rows to one that holds all, in whole MiB."""
    every = workload.num_rows * workload.row_bytes
    sizes = (_fixed_bytes(workload) + int(part * every) for part in (1 / 256, 1 / 64, 1 / 16, 1 / 4, 1))
    return [-(-size // MIB) * MIB for size in sizes]


def _fixed_bytes(workload: Workload) -> int:
    """What a step needs besides rows: dense parameters, activations, inputs ahead, rows on their way."""
    travelling = 2 * _unique_rows(workload) * workload.row_bytes
    inputs = (2 + MAX_PREFETCH) * workload.input_bytes
    return workload.dense_bytes + workload.batch_size * (workload.activation_bytes + inputs) + int(travelling)


def _unique_rows(workload: Workload) -> float:
    """Different rows of a batch, expected."""
    rates = workload.rates
    return expected_unique_rows(rates.rates, workload.batch_size, rates.num_rows)


def _budgets(fast_bytes: int, workload: Workload) -> list[tuple[int, Budget]]:
    room = max(0, fast_bytes - _fixed_bytes(workload))
    budgets = []
    for share in STAGING_SHARES:
        staging = int(share * room)
        budget = Budget(hot_bytes=room - staging, num_hot_rows=0, hot_sample_share=0.0, staging_bytes=staging)
        budgets.append((fast_bytes, budget))
    return budgets


def _count_hot(
    budgets: Sequence[tuple[int, Budget]],
    vocabulary: Manifest,
    samples: Manifest,
    plan: Manifest,
    workers: int,
    progress: ProgressCallback,
) -> dict[int, list[Budget]]:
    """Hot rows and fully hot samples of each budget, in one pass over the ids."""
    order = HotOrder(vocabulary, row_bytes_of(plan.totals))
    ascending = sorted(budgets, key=lambda one: one[1].hot_bytes)
    found = [order.num_hot(budget.hot_bytes) for _, budget in ascending]
    num_hot = np.array([hot for hot, _ in found], np.int64)
    num_train = vocabulary.totals["num_train_samples"]
    hot_samples = count_hot_samples(samples, num_hot, num_train, workers, progress)
    counted: dict[int, list[Budget]] = {}
    for (size, budget), (_, num_rows), count in zip(ascending, found, hot_samples, strict=True):
        share = int(count) / max(1, num_train)
        counted.setdefault(size, []).append(replace(budget, num_hot_rows=num_rows, hot_sample_share=share))
    return counted


def _option(fast_bytes: int, made: Sequence[Prediction]) -> dict[str, Any]:
    """The best prediction of each placement that fits, the fastest first; then those that do not."""
    fitting = [one for one in made if one.memory_bytes <= fast_bytes]
    best = _cheapest_of_each(fitting, lambda one: one.step_seconds)
    too_large = _cheapest_of_each(made, lambda one: one.memory_bytes)
    return {
        "fast_bytes": fast_bytes,
        "placements": [_plain(one) for one in best],
        "too_large": [_plain(one) for one in too_large if one.memory_bytes > fast_bytes],
    }


def _cheapest_of_each(made: Sequence[Prediction], cost: Callable[[Prediction], float]) -> list[Prediction]:
    """The cheapest prediction of each placement, the cheapest first."""
    best: dict[str, Prediction] = {}
    for one in sorted(made, key=cost):
        best.setdefault(one.placement, one)
    return list(best.values())


def _plain(one: Prediction) -> dict[str, Any]:
    return asdict(one) | {"memory_bytes": one.memory_bytes}


def _conclusion(options: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The fastest of all, and the smallest size from which more memory gains under 1 %.

    Raises:
        ConfigError: nothing fits at any size.
    """
    fitting = [option for option in options if option["placements"]]
    if not fitting:
        least = min(one["memory_bytes"] for option in options for one in option["too_large"])
        raise ConfigError(
            f"no placement fits in {format_byte_size(options[-1]['fast_bytes'])}",
            hint=f"the least that would do is {format_byte_size(least)}; a smaller --batch-size needs less",
        )
    seconds = [option["placements"][0]["step_seconds"] for option in fitting]
    fastest, enough = fitting[seconds.index(min(seconds))], fitting[where_more_stops_paying(seconds)]
    return {
        "best": {"fast_bytes": fastest["fast_bytes"], **_named(fastest)},
        "enough": {"fast_bytes": enough["fast_bytes"], **_named(enough)},
    }


def _named(option: dict[str, Any]) -> dict[str, Any]:
    first = option["placements"][0]
    return {"placement": first["placement"], "step_seconds": first["step_seconds"]}


def _described(workload: Workload) -> dict[str, Any]:
    kept = asdict(workload)
    del kept["rates"]
    return kept | {
        "lookups_per_sample": workload.rates.lookups_per_sample,
        "unique_rows_per_batch": _unique_rows(workload),
    }
