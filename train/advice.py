"""Predicts which placement and how much fast memory suit a preprocessed log, without training.

Reads the vocabulary's counts, and the ids once to count hot-only samples; the formulas are in
`stats.step_times`. Four speeds of the machine, from a file that `characterise` writes, scale the times.
Results are plain data, so that JSON, the terminal and the report agree. Imports no torch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from .. import __version__
from ..pipeline.errors import (
    KIB,
    MIB,
    ConfigError,
    ManifestError,
    first_line,
    format_byte_size,
    hint_to_verify,
    require_at_least,
)
from ..pipeline.folders.disk import whole_file
from ..pipeline.folders.manifest import JsonRecord, Manifest, RecordError
from ..pipeline.folders.totals import ColumnsTotals, PlanSettings, PlanTotals, VocabularyTotals, by_feature
from ..pipeline.runtime.tasks import DEFAULT_RESOURCES, Resources
from ..pipeline.schema.schema import nearest
from ..pipeline.stages.pack import PackConfig
from ..pipeline.stages.row_order import HotOrder, read_tables
from ..pipeline.statistics.coverage import count_hot_samples
from ..pipeline.statistics.folder import packed_batch_size
from ..stats.curves import AccessRates, EpochUses
from ..stats.lookahead.planner import MOST_PREFETCH
from ..stats.ranking import MAX_BUDGETS
from ..stats.replication import Network
from ..stats.step_times import (
    Budget,
    Machine,
    Prediction,
    Workload,
    compute_seconds,
    predict,
    where_more_stops_paying,
)
from .config import TrainConfig
from .config_parts import MODEL_NAMES
from .model.shapes import DcnShape, DlrmShape, choose_model, dlrm_shape

STAGING_SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2)
"""Shares of the memory for rows that are tried as staging slots."""
_DENSE_STATES = 2
"""Numbers of state per weight of the dense layers: Adam's, their default optimizer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AdviceConfig:
    """The memory, batch size and model to predict for."""

    fast_bytes: tuple[int, ...] = ()
    """Sizes of fast memory to consider, each for all uses together; by default five sizes up to one that
    holds all rows."""

    batch_size: int | None = None
    """Number of samples per step; by default that of the shards, or the default of `pack` before there are
    any."""

    model: str = "auto"
    """Model that comes with hotset, as in `hotset train --model`."""

    def __post_init__(self) -> None:
        require_at_least("batch_size", self.batch_size, 1)


def advise(
    folder: Path, config: AdviceConfig, machine: Machine, resources: Resources = DEFAULT_RESOURCES
) -> dict[str, Any]:
    """Predict every placement at every size of fast memory.

    Returns:
        Plain data. ``workload``: the log and the model, a `stats.step_times.Workload` with lookups of a
        sample and the expected number of distinct rows of a batch in place of its rates; ``machine``: the
        speeds, a `stats.step_times.Machine`; ``compute_seconds``: time of a step with every row on the fast
        tier. ``options``: for each size its ``fast_bytes``; ``placements``, the best prediction of each that
        fits, the fastest first: a `stats.step_times.Prediction` with its ``memory_bytes``, of all uses
        together; ``too_large``, the others, each where it needs the least memory. ``best`` and ``enough``:
        ``fast_bytes``, ``placement`` and ``step_seconds`` of the fastest of all, and of the size from which
        more memory gains less than 1%.

    Raises:
        ManifestError: the folder has not been preprocessed as far as its plan.
        ConfigError: a model that does not fit, or no size given that holds the dense parts.
    """
    workload, budgets_of = read_inputs(folder, config, resources)
    options: list[dict[str, Any]] = []
    for size, budgets in budgets_of.items():
        predictions = [one for budget in budgets for one in predict(workload, machine, budget)]
        options.append(_option(size, predictions))
    # Two sizes are named: where nothing is faster, and where more is no longer worth it.
    best, enough = _conclusion(options)
    return {
        "workload": _described(workload),
        "machine": asdict(machine),
        "compute_seconds": compute_seconds(workload, machine),
        "options": options,
        "best": best,
        "enough": enough,
    }


def read_inputs(
    folder: Path, config: AdviceConfig, resources: Resources = DEFAULT_RESOURCES
) -> tuple[Workload, dict[int, list[Budget]]]:
    """Return a log, and the ways to share each size of fast memory between hot rows and staging slots.

    Sizes ascend. Counts what each budget makes hot.

    Raises:
        ManifestError: as in `advise`.
    """
    # The three folders that predictions need, of whatever stage the rest is.
    vocabulary, samples, plan = (Manifest.read(folder / name) for name in ("vocabulary", "samples", "plan"))
    batch_size = config.batch_size or packed_batch_size(folder) or PackConfig().batch_size
    columns = Manifest.read(folder / "columns")
    workload = read_workload(vocabulary, plan, columns, config.model, batch_size)
    # By default sizes from a few rows to all rows, in whole MiB.
    every = workload.num_rows * workload.row_bytes
    parts = (_fixed_bytes(workload) + int(part * every) for part in (1 / 256, 1 / 64, 1 / 16, 1 / 4, 1))
    sizes = [-(-part // MIB) * MIB for part in parts]
    # Hot lookups of every budget are counted in one pass over the samples.
    budgets = [
        (size, budget)
        for size in sorted({*(config.fast_bytes or sizes)})
        for budget in _budgets(size, workload)
    ]
    return workload, _count_hot(budgets, vocabulary, samples, plan, resources)


def read_workload(
    vocabulary: Manifest, plan: Manifest, columns: Manifest, model: str, batch_size: int
) -> Workload:
    """The log and the model that predictions are for."""
    # Counts are the vocabulary's and widths the plan's, so both must be of the same tables.
    ranked, planned = (
        [table.name for table in tables]
        for tables in (VocabularyTotals.of(vocabulary).tables, PlanTotals.of(plan).tables)
    )
    if ranked != planned:
        raise ManifestError(
            f"{plan.folder} has the tables {', '.join(planned)}, {vocabulary.folder} has {', '.join(ranked)}",
            hint=hint_to_verify(plan.folder),
        )
    counts = read_tables(vocabulary, "count")
    num_train = VocabularyTotals.of(vocabulary).num_train_samples
    dim = PlanSettings.of(plan).embedding_dim
    num_dense = len(ColumnsTotals.of(columns).dense)
    # The model as training would build it, for its operations and memory.
    shape = _shape_of(model, num_dense, len(by_feature(VocabularyTotals.of(vocabulary).tables)), dim)
    rates = AccessRates.of_counts(counts, num_train)
    # Tables of several widths enter by the mean width of a lookup.
    widths = np.array(PlanTotals.of(plan).bytes_of_rows)
    lookups = np.array([int(count.sum()) for count in counts])
    row_bytes = round(float(widths @ lookups) / max(1, int(lookups.sum())))
    return Workload(
        rates=rates,
        num_rows=VocabularyTotals.of(vocabulary).num_rows,
        num_train_samples=num_train,
        batch_size=batch_size,
        vector_bytes=4 * dim,
        row_bytes=row_bytes,
        flops_per_sample=flops_per_sample(shape),
        dense_bytes=dense_bytes(shape),
        activation_bytes=activation_bytes(shape),
        input_bytes=4 + 4 * num_dense + int(4 * rates.lookups_per_sample),
    )


def _shape_of(model: str, num_dense: int, num_tables: int, dim: int) -> DlrmShape | DcnShape:
    """Return the sizes of a model that comes with hotset."""
    if model not in MODEL_NAMES:
        raise ConfigError(
            f"model must be one of {', '.join(MODEL_NAMES)}, got {model!r}", hint=nearest(model, MODEL_NAMES)
        )
    if model == "tbsm":
        raise ConfigError(
            "the work of tbsm, a DLRM of each element of a history, is not predicted",
            hint="use --model auto for the traffic of its rows, which does not depend on the model",
        )
    if model == "dcnv2":
        return DcnShape(num_dense, (dim,) * num_tables, choose_model(TrainConfig(model=model), dim))
    return dlrm_shape(model, num_dense, num_tables, dim)


def flops_per_sample(shape: DlrmShape | DcnShape) -> float:
    """Return the operations of a sample in one training step.

    Each weight and pair is a product and a sum, once in the forward pass and twice in the backward pass.
    """
    products = sum(inputs * outputs for inputs, outputs in shape.layers)
    return 3 * 2.0 * (products + shape.interaction_products)


def dense_bytes(shape: DlrmShape | DcnShape) -> int:
    """Bytes of the dense parameters, their gradients and the state of their default optimizer."""
    return 4 * shape.num_weights * (2 + _DENSE_STATES)


def activation_bytes(shape: DlrmShape | DcnShape) -> int:
    """Bytes per sample of activations and their gradients, float32 each."""
    outputs = sum(outputs for _, outputs in shape.layers)
    return 2 * 4 * (outputs + shape.interaction_floats)


def _fixed_bytes(workload: Workload) -> int:
    """Return the bytes of parameters, activations, inputs read ahead and moving rows."""
    in_transfer = 2 * _unique_rows(workload) * workload.row_bytes
    inputs = (2 + MOST_PREFETCH) * workload.input_bytes
    return (
        workload.dense_bytes + workload.batch_size * (workload.activation_bytes + inputs) + int(in_transfer)
    )


def _unique_rows(workload: Workload) -> float:
    """Expected number of distinct rows of a batch."""
    uses = EpochUses.of_rates(workload.rates, workload.num_train_samples, workload.batch_size)
    return uses.rows_per_batch


def _budgets(fast_bytes: int, workload: Workload) -> list[Budget]:
    """Split a memory size between hot rows, not counted yet, and slots."""
    # The best share depends on the placement.
    room = max(0, fast_bytes - _fixed_bytes(workload))
    shares = [int(share * room) for share in STAGING_SHARES]
    return [
        Budget(hot_bytes=room - staging, num_hot_rows=0, hot_sample_share=0.0, staging_bytes=staging)
        for staging in shares
    ]


def _count_hot(
    budgets: Sequence[tuple[int, Budget]],
    vocabulary: Manifest,
    samples: Manifest,
    plan: Manifest,
    resources: Resources,
) -> dict[int, list[Budget]]:
    """Count hot rows and hot-only samples of each budget by its size."""
    # Ascending, so that each hot set contains those before it and a single pass counts for all.
    order = HotOrder(vocabulary, PlanTotals.of(plan).bytes_of_rows)
    ascending = sorted(budgets, key=lambda one: one[1].hot_bytes)
    found = [order.num_hot(budget.hot_bytes) for _, budget in ascending]
    num_hot = np.array([hot for hot, _ in found], np.int64)
    num_train = VocabularyTotals.of(vocabulary).num_train_samples
    # So many budgets are counted in one pass at most.
    passes = [num_hot[first : first + MAX_BUDGETS] for first in range(0, len(num_hot), MAX_BUDGETS)]
    hot_samples = [count for own in passes for count in count_hot_samples(samples, own, num_train, resources)]
    counted: dict[int, list[Budget]] = {}
    for (size, budget), (_, num_rows), count in zip(ascending, found, hot_samples, strict=True):
        share = int(count) / max(1, num_train)
        counted.setdefault(size, []).append(replace(budget, num_hot_rows=num_rows, hot_sample_share=share))
    return dict(sorted(counted.items()))


def _option(fast_bytes: int, predictions: Sequence[Prediction]) -> dict[str, Any]:
    """Return the best prediction by placement, the fastest first, too large ones last."""
    fitting = [one for one in predictions if one.memory_bytes <= fast_bytes]
    best = _cheapest_of_each(fitting, lambda one: one.step_seconds)
    # A placement is too large where even the share that needs the least memory does not fit.
    too_large = _cheapest_of_each(predictions, lambda one: one.memory_bytes)
    return {
        "fast_bytes": fast_bytes,
        "placements": [_plain(one) for one in best],
        "too_large": [_plain(one) for one in too_large if one.memory_bytes > fast_bytes],
    }


def _cheapest_of_each(
    predictions: Sequence[Prediction], cost: Callable[[Prediction], float]
) -> list[Prediction]:
    """The cheapest prediction of each placement, the cheapest first."""
    best: dict[str, Prediction] = {}
    for one in sorted(predictions, key=cost):
        best.setdefault(one.placement, one)
    return list(best.values())


def _plain(one: Prediction) -> dict[str, Any]:
    return asdict(one) | {"memory_bytes": one.memory_bytes}


def _conclusion(options: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fastest size, and the smallest that is nearly as fast.

    More memory than that gains less than 1%.

    Raises:
        ConfigError: nothing fits at any size.
    """
    # Sizes too small for any placement are listed, but not compared.
    fitting = [option for option in options if option["placements"]]
    if not fitting:
        least = min(one["memory_bytes"] for option in options for one in option["too_large"])
        raise ConfigError(
            f"no placement fits in {format_byte_size(options[-1]['fast_bytes'])}",
            hint=f"--fast-bytes {-(-least // KIB)}KiB would do; a smaller --batch-size needs less",
        )
    seconds = [option["placements"][0]["step_seconds"] for option in fitting]
    fastest = fitting[seconds.index(min(seconds))]
    enough = fitting[where_more_stops_paying(seconds)]
    return _chosen(fastest), _chosen(enough)


def _chosen(option: dict[str, Any]) -> dict[str, Any]:
    first = option["placements"][0]
    chosen = {name: first[name] for name in ("placement", "step_seconds")}
    return {"fast_bytes": option["fast_bytes"]} | chosen


def _described(workload: Workload) -> dict[str, Any]:
    own = {each.name: getattr(workload, each.name) for each in fields(workload) if each.name != "rates"}
    return own | {
        "lookups_per_sample": workload.rates.lookups_per_sample,
        "unique_rows_per_batch": _unique_rows(workload),
    }


_FORMAT = "hotset speeds 1"
_GIGA = 1e9
_NETWORK = tuple(each.name for each in fields(Network))


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineSpeeds(JsonRecord):
    """Four speeds of a machine."""

    device_name: str
    """Name of its CPU."""
    threads: int
    """Number of threads of a step."""
    flops: float
    """Operations per second of the dense layers in training."""
    host_rows_per_second: float
    """Rows read or written at random places of host memory, by all threads."""
    row_bytes: int
    """Bytes of those rows."""
    link_bytes_per_second: float
    """Bytes per second between the tiers, in each direction."""
    loader_samples_per_second: float
    """Samples read from shards."""
    cores: int | None = None
    """Number of cores; None in a file of an earlier version."""
    all_to_all_bytes_per_second: float | None = None
    """Bytes that leave a device in an all-to-all; None, as measured here: not known."""
    all_reduce_bytes_per_second: float | None = None
    """Bytes that leave a device in an all-reduce; None, as measured here: not known."""
    exchange_seconds: float | None = None
    """Time of the all-to-alls of a step apart from their bytes; None, as measured here: not known."""

    def check_values(self, where: str) -> None:
        speeds = ("flops", "host_rows_per_second", "link_bytes_per_second", "loader_samples_per_second")
        for name in (*speeds, *_NETWORK):
            value = getattr(self, name)
            # Messages without a time of their own are compared by their bytes.
            least = "of 0 or more" if name == "exchange_seconds" else "above 0"
            is_enough = value is None or value > 0 or (value == 0 and name == "exchange_seconds")
            if not is_enough or value == float("inf"):
                raise RecordError(f"{where}{name} is {value}, want a number {least}")
        if self.row_bytes < 1:
            raise RecordError(f"{where}row_bytes is {self.row_bytes}, want 1 or more")

    @classmethod
    def read(cls, path: Path) -> MachineSpeeds:
        """Read a file.

        Raises:
            ConfigError: it cannot be read, or is no such file.
        """
        try:
            found = json.loads(path.read_text())
            if not isinstance(found, dict) or found.get("format") != _FORMAT:
                raise ValueError(f"its format is not {_FORMAT!r}")
            return cls.from_json(found)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{path} cannot be read as speeds: {first_line(error)}",
                hint="`hotset characterise --out FILE` measures those of this machine",
            ) from error

    def write(self, path: Path) -> None:
        """Write the file, which must not exist."""
        found = {"format": _FORMAT, "hotset": __version__, **self.to_json()}
        with whole_file(path) as file:
            file.write((json.dumps(found, indent=2) + "\n").encode())

    def machine(self) -> Machine:
        """Return the machine for predictions; the fixed time of a step stays typical."""
        return Machine(
            link_bytes_per_second=self.link_bytes_per_second,
            host_bytes_per_second=self.host_rows_per_second * self.row_bytes,
            flops=self.flops,
            loader_samples_per_second=self.loader_samples_per_second,
        )

    def network(self) -> Network:
        """Return the speeds between devices; those that are not known stay typical."""
        known = {name: getattr(self, name) for name in _NETWORK if getattr(self, name) is not None}
        return Network(**known)

    def in_units(self) -> list[tuple[str, float, str]]:
        """Return name, value and unit of each speed, for tables."""
        return [
            ("dense layers", self.flops / _GIGA, "GFLOP/s"),
            (
                f"host rows of {self.row_bytes} B",
                self.host_rows_per_second * self.row_bytes / _GIGA,
                "GB/s at random places",
            ),
            ("link", self.link_bytes_per_second / _GIGA, "GB/s each way"),
            ("loader", self.loader_samples_per_second / 1e6, "M samples/s"),
        ]
