"""Plans a run on a measured machine: placement, ranks, homes, codec and prefetch, the fastest first.

What a step has to do follows from the counts of the log, how long its parts take from the machine file.
Memory is summed before anything is called fast. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...pipeline.errors import ConfigError
from ...pipeline.folders.manifest import Manifest
from ...pipeline.folders.stage_totals import VocabularyTotals
from ...pipeline.inspect.inspected_folder import read_row_counts
from ...pipeline.runtime.resources import DEFAULT_RESOURCES, Resources
from ...pipeline.sizes import KIB, format_byte_size
from ...stats.batches.work_division import most_row_ranges, num_row_ranges
from ...stats.codecs.codec_names import codec_of
from ...stats.prediction.access_rates import AccessRates
from ...stats.prediction.communication import ParallelStep
from ...stats.prediction.row_loads import EpochUses
from ...stats.prediction.step_times import predict, shallower_lookahead
from ...stats.prediction.workload import Budget, Machine, Prediction, Workload
from ...stats.step_model.exchange_work import with_exchange
from ...stats.step_model.part_model import PartModel
from ...stats.step_model.step_work import StepWork, WorkConstants, fresh_bytes
from ...stats.step_model.table_costs import table_costs
from ...stats.step_model.table_homes import choose_table_homes
from ..advice import AdviceConfig, AdviceInputs, read_inputs
from ..model.dcn_shape import DcnShape
from .machine_file import HeldOutError, MachineFile, StepModel
from .plan_record import MachinePlan, PlannedOption, PlannedTable, Sensitivity

HOMES = ("striped", "by-use")
EXACT_CODEC = "none"
_LEAST_GAIN = 0.01
"""Transfers run fewer batches ahead than by default where that saves so much of a step at least: batches of
many rows, which a greater depth smooths out, are not predicted one by one."""
_EQUAL = 0.001
"""Plans of which one takes so much longer at most are equally fast."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanConfig:
    """The choices that a plan has."""

    advice: AdviceConfig
    """Memory, batch size and model."""
    ranks: tuple[int, ...] = (1,)
    """Numbers of ranks to consider."""
    link_bytes_per_second: float | None = None
    """Speed of the link between ranks, each on a machine of its own; None: they share this machine."""
    is_emulated: bool = False
    """Whether ranks share the threads of this machine in spite of their link, as where one is tried out."""
    codecs: tuple[str, ...] = (EXACT_CODEC,)
    """Ways to send rows between ranks."""

    def __post_init__(self) -> None:
        if not self.ranks or min(self.ranks) < 1:
            raise ConfigError("ranks must be numbers from 1 up")
        for name in self.codecs:
            try:
                codec_of(name)
            except ValueError as error:
                raise ConfigError(str(error)) from None


def parse_link(text: str) -> float | None:
    """Return the bytes per second of a link such as ``200mbit`` or ``10gbit``; None for ``loopback``.

    Raises:
        ConfigError: it is neither.
    """
    if text == "loopback":
        return None
    for unit, factor in (("mbit", 1e6), ("gbit", 1e9)):
        # Links are named in bits per second, and counted in bytes.
        number, found, rest = text.lower().partition(unit)
        if found and not rest:
            try:
                rate = float(number) * factor / 8
            except ValueError:
                break
            if 0 < rate < float("inf"):
                return rate
    raise ConfigError(f"no link {text!r}", hint="write it like 200mbit or 10gbit, or loopback")


def plan(
    folder: Path,
    config: PlanConfig,
    machine: MachineFile,
    fitted: StepModel,
    resources: Resources = DEFAULT_RESOURCES,
) -> MachinePlan:
    """Predict every way to train a preprocessed log.

    Args:
        folder: as `preprocess` wrote it.
        config: the choice.
        machine: where it will train.
        fitted: times of that machine.
        resources: threads and progress.

    Raises:
        ManifestError: the folder has not been preprocessed as far as its plan.
        ConfigError: a model that times cannot be predicted of, or nothing that fits.
    """
    model = fitted.parts
    inputs = read_inputs(folder, config.advice, resources, also=2, ranks=sorted({*config.ranks}))
    if isinstance(inputs.shape, DcnShape):
        raise ConfigError(
            "the times of a cross network are not in the machine file",
            hint="leave --machine out, or use a preset of DLRM",
        )
    # Doubled sizes are read for the sensitivities alone.
    sizes = inputs.sizes
    # A link that was named takes the place of the measured speed; the time of the smallest message stays.
    if config.link_bytes_per_second is not None:
        model = replace(model, constants=model.constants.with_link(config.link_bytes_per_second))
    error = fitted.error
    planner = _Planner(inputs, config, machine.threads, model, fitted)
    # Every option is predicted, those too large too: where nothing fits, they tell what memory would do.
    every = [one for size in sizes for one in planner.options(size)]
    fitting = sorted((one for one in every if one["memory_bytes"] <= one["fast_bytes"]), key=_speed)
    too_large = sorted((one for one in every if one["memory_bytes"] > one["fast_bytes"]), key=_memory)
    if not fitting:
        least = too_large[0]["memory_bytes"]
        raise ConfigError(
            f"no placement fits in {format_byte_size(max(sizes))}",
            hint=f"--fast-bytes {-(-least // KIB)}KiB would do; a smaller --batch-size needs less",
        )
    options = _best_of_each(fitting)
    peers = [one for one in options if _memory_and_ranks(one) == _memory_and_ranks(options[0])]
    best = preferred(peers)
    options = [best, *(one for one in options if one is not best)]
    # Two plans that are nearer than the error of predictions cannot be told apart.
    margin = max(options[1]["step_seconds"] / best["step_seconds"] - 1, 0.0) if len(options) > 1 else None
    return {
        "machine": _described(machine, error),
        "batch_size": inputs.workload.batch_size,
        "fast_bytes": list(sizes),
        "is_given": bool(config.advice.fast_bytes),
        "options": options,
        "too_large": _best_of_each(too_large),
        "margin": margin,
        "is_close": margin is not None and error is not None and margin < error.median_error,
        "sensitivities": planner.sensitivities(options[0]),
        "table_ranks": max(config.ranks),
        "tables": _tables(folder, inputs, max(config.ranks), options[0], every, model.constants),
    }


def preferred(options: Sequence[PlannedOption]) -> PlannedOption:
    """Return the plan to take: the fastest, and of equally fast ones that which moves the fewest bytes.

    Rows that move beside the loop are predicted to cost nothing as long as they are there in time. They are
    never quicker than rows that stay, and take what other programs could have.
    """
    least = min(one["step_seconds"] for one in options)
    equal = [one for one in options if one["step_seconds"] <= (1 + _EQUAL) * least]
    return min(equal, key=lambda one: (one["moved_bytes"], *_speed(one)))


def _memory_and_ranks(option: PlannedOption) -> tuple[int, int]:
    return option["fast_bytes"], option["ranks"]


def _tables(
    folder: Path,
    inputs: AdviceInputs,
    ranks: int,
    best: PlannedOption,
    every: Sequence[PlannedOption],
    constants: WorkConstants,
) -> list[PlannedTable]:
    """Choose the homes of the tables among several ranks, with as much memory as the best plan."""
    if ranks == 1:
        return []
    # A step that keeps no row in fast memory needs what is left of it for everything else.
    others = min(one["memory_bytes"] for one in every if one["ranks"] == ranks)
    room = max(best["fast_bytes"] - others, 0)
    vocabulary = Manifest.read(folder / "vocabulary")
    workload = inputs.workload
    step = ParallelStep(max(workload.batch_size // ranks, 1), ranks)
    tables = VocabularyTotals.of(vocabulary).tables
    costs = []
    for table, counts in zip(tables, read_row_counts(vocabulary), strict=True):
        rates = AccessRates.of_counts([counts], workload.num_train_samples)
        found = table_costs(
            rates,
            table.num_rows,
            workload.row_bytes,
            workload.vector_bytes,
            step,
            constants.message_bytes_per_second,
            constants.copy_bytes_per_second,
        )
        # A table that lies on one rank as a whole has to fit there.
        if table.num_rows * workload.row_bytes > room:
            del found["sharded by tables"]
        costs.append(found)
    chosen = choose_table_homes(costs, room)
    if chosen is None:
        return []
    return [
        {"table": table.name, "home": home, "seconds": own[home].seconds, "fast_bytes": own[home].fast_bytes}
        for table, home, own in zip(tables, chosen.homes, costs, strict=True)
    ]


def _speed(option: PlannedOption) -> tuple[float, int]:
    """Order by time; of equal times the one that needs less memory."""
    return option["step_seconds"], option["memory_bytes"]


def _memory(option: PlannedOption) -> int:
    return option["memory_bytes"]


def _best_of_each(options: Sequence[PlannedOption]) -> list[PlannedOption]:
    """Return the first option of each placement, ranks, homes, codec and size of memory."""
    found: dict[tuple[object, ...], PlannedOption] = {}
    # Of the ways to share the memory the first stays, and options come with the best one first.
    for one in options:
        key = (one["placement"], one["ranks"], one["homes"], one["codec"], one["fast_bytes"])
        found.setdefault(key, one)
    return list(found.values())


def _described(machine: MachineFile, error: HeldOutError | None) -> dict[str, object]:
    return {
        "device": machine.device,
        "device_name": machine.device_name,
        "threads": machine.threads,
        "is_quiet": machine.is_quiet,
        "num_cells": machine.num_cells,
        "error": error.to_json() if error else None,
    }


class _Planner:
    """Predicts the options of one log on one machine."""

    def __init__(
        self,
        inputs: AdviceInputs,
        config: PlanConfig,
        threads: int,
        model: PartModel,
        fitted: StepModel,
    ) -> None:
        self._inputs = inputs
        self._config = config
        self._threads = threads
        self._model = model
        self._fitted = fitted
        self._single_error = fitted.first_error or fitted.error

    def options(self, fast_bytes: int) -> Iterator[PlannedOption]:
        """Predict all placements with one size of fast memory."""
        for ranks in self._config.ranks:
            for budget in self._inputs.budgets[fast_bytes, ranks]:
                yield from self._options_of_ranks(fast_bytes, budget, ranks)

    def _options_of_ranks(self, fast_bytes: int, budget: Budget, ranks: int) -> Iterator[PlannedOption]:
        # The batch is that of all ranks; each computes its part with the rows that live there.
        workload = self._inputs.workload.of_rank(ranks)
        # Hot rows are spread over the ranks, each of which has memory for its part.
        budget = replace(budget, num_hot_rows=budget.num_hot_rows // ranks)
        choices = [(homes, codec) for homes in HOMES for codec in self._config.codecs]
        for prediction in predict(workload, Machine(), budget):
            shallower = shallower_lookahead(workload, Machine(), budget, prediction.prefetch or 0)
            for homes, codec in choices if ranks > 1 else [(None, None)]:
                default, *others = (
                    self._option(
                        fast_bytes,
                        budget,
                        one,
                        self._work(workload, budget, one, ranks, homes, codec),
                        ranks,
                        homes,
                        codec,
                        self._model,
                    )
                    for one in (prediction, *shallower)
                )
                yield default
                # Fewer batches ahead leave slots to rows that are used again; with none, steps wait.
                least = (1 - _LEAST_GAIN) * default["step_seconds"]
                yield from (one for one in others if one["step_seconds"] < least)

    def _option(
        self,
        fast_bytes: int,
        budget: Budget,
        prediction: Prediction,
        work: StepWork,
        ranks: int,
        homes: str | None,
        codec: str | None,
        model: PartModel,
    ) -> PlannedOption:
        times = model.predict(work)
        # A run meets the machine as it is, so the interval is that of single runs, disturbed or not.
        error = self._single_error
        low, high = (error.low_ratio, error.high_ratio) if error else (1.0, 1.0)
        is_staged = prediction.placement in ("cache", "lookahead")
        return {
            "placement": prediction.placement,
            "ranks": ranks,
            "homes": homes,
            "codec": codec,
            "fast_bytes": fast_bytes,
            "hot_bytes": ranks * budget.hot_bytes,
            "staging_bytes": budget.staging_bytes if is_staged else 0,
            "prefetch": prediction.prefetch,
            "memory_bytes": prediction.memory_bytes,
            "moved_bytes": prediction.to_fast_bytes + prediction.to_slow_bytes,
            "step_seconds": times.seconds,
            # The interval has the prediction in it, even where all errors were on one side.
            "low_seconds": times.seconds * min(low, 1.0),
            "high_seconds": times.seconds * max(high, 1.0),
            "samples_per_second": self._inputs.workload.batch_size / times.seconds,
            "parts": times.parts,
            "is_arithmetic": not self._is_measured(prediction.placement, ranks),
        }

    def _is_measured(self, placement: str, ranks: int) -> bool:
        """Whether the times were fitted to cells of this placement and of so many ranks on this machine."""
        is_here = ranks == 1 or self._config.link_bytes_per_second is None
        return is_here and placement in self._fitted.placements and ranks in self._fitted.ranks

    def _work(
        self,
        workload: Workload,
        budget: Budget,
        prediction: Prediction,
        ranks: int,
        homes: str | None,
        codec: str | None,
    ) -> StepWork:
        shape = self._inputs.shape
        assert not isinstance(shape, DcnShape)
        # A rank computes its samples, and keeps, moves and updates the rows that live there.
        whole = self._inputs.workload
        batch = max(whole.batch_size // ranks, 1)
        uses = EpochUses.of_rates(workload.rates, workload.num_train_samples, workload.batch_size)
        lookups = batch * whole.rates.lookups_per_sample
        moved = (prediction.to_fast_bytes + prediction.to_slow_bytes) / workload.row_bytes
        # With staging whole rows move beside the loop; without it the bytes count as vectors in the loop.
        is_staged = prediction.placement in ("cache", "lookahead")
        in_place = 0.0 if is_staged else moved * workload.row_bytes / workload.vector_bytes
        in_passes = is_staged and prediction.num_passes > 1
        # What a rank serves is one lookup of each row, so its hybrid sends no vector twice.
        if ranks > 1 and prediction.placement.startswith("hybrid"):
            in_place = min(in_place, 2 * uses.rows_per_batch)
        sends_rows = prediction.placement == "hybrid-dedup" or (ranks > 1 and in_place > 0)
        # Vectors of lists are added on the host, in memory that is not kept; not those of hot-only batches.
        unset_share = {"hybrid": 1.0, "fae": 1 - budget.hot_sample_share}.get(prediction.placement, 0.0)
        is_unset = ranks == 1 and lookups > batch * shape.num_tables
        # Ranks without a named link share this machine and its threads.
        threads = self._threads
        if ranks > 1 and (self._config.link_bytes_per_second is None or self._config.is_emulated):
            threads = max(threads // ranks, 1)
        ranges = num_row_ranges(int(lookups), most_row_ranges(threads))
        work = StepWork(
            batch_size=batch,
            threads=threads,
            bottom=shape.bottom,
            top=shape.top,
            num_vectors=shape.num_vectors,
            embedding_dim=shape.embedding_dim,
            num_bags=batch * shape.num_tables,
            lookups=lookups,
            lookup_ranges=ranges,
            # Gradients that are sent row by row are summed before, by one thread.
            update_ranges=1 if sends_rows else ranges,
            distinct_rows=uses.rows_per_batch,
            row_bytes=workload.row_bytes,
            table_bytes=workload.num_rows * workload.row_bytes,
            input_bytes=batch * whole.input_bytes,
            staged_rows=uses.rows_per_batch if is_staged else 0.0,
            cached_rows=uses.rows_per_batch if prediction.placement == "cache" else 0.0,
            num_reads=2 if prediction.placement == "cache" else 1,
            moved_rows=moved if is_staged and not in_passes else 0.0,
            # Each pass moves its rows within the step, and the last one alone writes them back.
            passed_rows=prediction.to_slow_bytes / workload.row_bytes if in_passes else 0.0,
            is_ahead=prediction.is_ahead,
            # Its order follows from losses on the way.
            is_read_ahead=prediction.placement != "fae",
            initialized_rows=0.0 if in_passes else prediction.initialized_bytes / workload.row_bytes,
            in_place_vectors=in_place,
            unset_bytes=unset_share * fresh_bytes(lookups * workload.vector_bytes) if is_unset else 0.0,
        )
        if ranks == 1:
            return work
        return with_exchange(
            work,
            whole.rates,
            whole.num_train_samples,
            ranks,
            codec=codec or EXACT_CODEC,
            is_striped=homes == "striped",
        )

    def sensitivities(self, best: PlannedOption) -> list[Sensitivity]:
        """Predict the best plan with twice of each thing that money buys."""
        found = []
        # Another plan may be the best there, so all of one size are predicted again.
        for name, constants in doubled(self._model.constants).items():
            model = replace(self._model, constants=constants)
            again = _Planner(self._inputs, self._config, self._threads, model, self._fitted)
            found.append(_sensitivity(name, best, again.options(best["fast_bytes"])))
        twice = 2 * best["fast_bytes"]
        if (twice, best["ranks"]) in self._inputs.budgets:
            found.append(_sensitivity("fast memory", best, self.options(twice)))
        return found


def doubled(constants: WorkConstants) -> dict[str, WorkConstants]:
    """Return the constants of machines with twice of one thing."""
    rows, updates = constants.rows, constants.updates

    def halved(values: Sequence[float]) -> tuple[float, ...]:
        return tuple(value / 2 for value in values)

    quick_rows, quick_updates = (
        replace(
            curve,
            seconds_per_row=halved(curve.seconds_per_row),
            seconds_per_byte=halved(curve.seconds_per_byte),
        )
        for curve in (rows, updates)
    )
    return {
        "compute": replace(
            constants, products=replace(constants.products, flops=2 * constants.products.flops)
        ),
        "host bandwidth": replace(
            constants,
            rows=quick_rows,
            updates=quick_updates,
            copy_bytes_per_second=2 * constants.copy_bytes_per_second,
        ),
        "link": replace(
            constants,
            message_bytes_per_second=2 * constants.message_bytes_per_second,
            gather_bytes_per_second=2 * constants.gather_bytes_per_second,
            link_bytes_per_second=None
            if constants.link_bytes_per_second is None
            else 2 * constants.link_bytes_per_second,
        ),
    }


def _sensitivity(name: str, best: PlannedOption, options: Iterator[PlannedOption]) -> Sensitivity:
    fitting = [one["step_seconds"] for one in options if one["memory_bytes"] <= one["fast_bytes"]]
    # With twice of something the best plan is at least as quick as before.
    seconds = min([*fitting, best["step_seconds"]])
    return {"of": name, "step_seconds": seconds, "gain": best["step_seconds"] / seconds - 1}
