"""``hotset bench advise``: is the placement that the planner names the one that trains fastest?

A log is generated, or given, and preprocessed, and every placement is planned on a measured machine at some
sizes of fast memory and numbers of ranks, over links of several speeds. All plans that fit are then trained
for some steps, in rounds of a drawn order each, with the hot rows and slots that they name. Beside the
planner's choice stand that of `advise` with typical speeds, and that of the formula of TorchRec's planner,
with its constants and with measured ones.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from ....pipeline.errors import ConfigError, require_at_least
from ....pipeline.generate.generate_log import GenerateConfig, generate
from ....pipeline.runtime.resources import ProgressCallback, silent
from ....pipeline.sizes import ByteSize, format_byte_size
from ....stats.exchange.rank_masks import MOST_RANKS
from ....stats.prediction.workload import Machine
from ....train.advice import AdviceConfig, advise
from ....train.config import EmbeddingOptimizer
from ....train.data.shards import Shards
from ....train.planning.machine_file import MachineFile, StepModel
from ....train.planning.plan import PlanConfig, parse_link, plan, preferred
from ....train.planning.plan_record import PlannedOption
from ....train.ranks.ranks import OneRank
from ...console import plain_table, print_line, print_table, say
from ...machine_facts import commit, describe_machine
from ..measuring.recorded_settings import recorded_settings
from ..ranks.rank_group import RankGroup
from .planned_runs import PlannedLog, time_training, torchrec_seconds

PLANNER = "hotset"
"""The planner among those that predict."""
NO_LINK = "none"
"""The link of a single rank."""
NEAR = 1.1
"""A choice so many times slower than the best one is as good."""


@dataclass(frozen=True, kw_only=True)
class BenchAdviseConfig:
    """Settings of the benchmark of plans: the machine, the log, the sizes of memory, the links."""

    machine: Path
    """File that `characterise` wrote on this machine."""

    data: Path | None = None
    """A raw Criteo log. Default: a generated one."""

    samples: int = 200_000
    """Samples of the generated log."""

    seed: int = 0
    """Seed of the log and of the training."""

    batch_size: int = 2048
    """Samples per step, those of all ranks together."""

    fast_bytes: tuple[ByteSize, ...] = (ByteSize(48 << 20), ByteSize(96 << 20))
    """Sizes of fast memory of each rank."""

    ranks: tuple[int, ...] = (1,)
    """Numbers of ranks; those above 1 are processes on this machine."""

    links: tuple[str, ...] = ("loopback",)
    """Links between ranks above 1: loopback, or slower ones such as 200mbit, kept so by waiting."""

    optimizer: EmbeddingOptimizer = "sgd"
    """Optimizer of the embedding rows."""

    steps: int = 12
    """Number of steps that are timed in each turn, after three to warm up."""

    rounds: int = 3
    """Number of turns of each plan."""

    def __post_init__(self) -> None:
        for name in ("samples", "batch_size", "steps", "rounds"):
            require_at_least(name, getattr(self, name), 1)
        if not self.fast_bytes:
            raise ConfigError("name at least one size of fast memory")
        if not self.ranks or not all(1 <= ranks <= MOST_RANKS for ranks in self.ranks):
            raise ConfigError(f"ranks must be from 1 to {MOST_RANKS}")
        if not self.links:
            raise ConfigError("name at least one link")
        if self.links != ("loopback",) and max(self.ranks) == 1:
            raise ConfigError("a link is between ranks, and --ranks names none above 1")
        for link in self.links:
            parse_link(link)


def bench_advise(config: BenchAdviseConfig, progress: ProgressCallback = silent) -> dict[str, Any]:
    """Plan, train what was planned, and return plain data, ready for JSON.

    Returns:
        ``runs``: each plan with its predicted and measured seconds; ``too_small``: sizes in which none
        fits; ``groups``: for each number of ranks, link
        and size of memory the choice of each predictor, and how much slower it is than the best.

    Raises:
        ConfigError: the machine file has no model, or no plan fits.
    """
    machine = MachineFile.read(config.machine)
    model = machine.fitted_model(config.machine)
    with tempfile.TemporaryDirectory(prefix="hotset-advise-") as name, ExitStack() as stack:
        folder = Path(name)
        raw = config.data or folder / "log.tsv"
        if config.data is None:
            say("generating the log")
            generate(GenerateConfig(samples=config.samples, seed=config.seed), raw)
        log = PlannedLog(raw, folder, config.batch_size, config.optimizer)
        data = log.preprocessed()
        advice = AdviceConfig(fast_bytes=config.fast_bytes, batch_size=config.batch_size)
        options, links = _plans(config, advice, data, machine, model)
        typical = _typical_seconds(data, advice)
        groups = {ranks: stack.enter_context(RankGroup(ranks)) for ranks in sorted({*config.ranks} - {1})}
        # Hot rows are chosen when a log is packed, so each number of them has shards of its own.
        packed = {one["hot_bytes"]: log.packed(one["hot_bytes"]) for one in options}
        seconds = _take_turns(config, options, links, packed, machine.threads, groups, progress)
        torchrec = [
            torchrec_seconds(
                one, Shards.open(packed[one["hot_bytes"]]), model.parts.constants, _speed_of(link)
            )
            for one, link in zip(options, links, strict=True)
        ]
    # What the planner takes of those that share ranks, link and size of memory.
    keys = [(one["ranks"], link, one["fast_bytes"]) for one, link in zip(options, links, strict=True)]
    taken = [
        preferred([one for one, own in zip(options, keys, strict=True) if own == key]) for key in {*keys}
    ]
    runs = [
        {
            "placement": one["placement"],
            "ranks": one["ranks"],
            "link": link,
            "fast_bytes": one["fast_bytes"],
            "hot_bytes": one["hot_bytes"],
            "staging_bytes": one["staging_bytes"],
            "prefetch": one["prefetch"],
            "is_planned": any(one is each for each in taken),
            "measured_seconds": statistics.median(own),
            "turns": own,
            "predicted": {
                PLANNER: one["step_seconds"],
                "typical speeds": typical.get((one["fast_bytes"], one["placement"])),
            }
            | formulas,
        }
        for one, link, own, formulas in zip(options, links, seconds, torchrec, strict=True)
    ]
    return {
        "benchmark": "advise",
        "settings": recorded_settings(config),
        "runs": runs,
        "groups": choices(runs),
        "too_small": sorted({*config.fast_bytes} - {run["fast_bytes"] for run in runs}),
        "machine": describe_machine(),
        "commit": commit(),
    }


def _plans(
    config: BenchAdviseConfig, advice: AdviceConfig, data: Path, machine: MachineFile, model: StepModel
) -> tuple[list[PlannedOption], list[str]]:
    """Return every plan that fits, and the link between its ranks."""
    options: list[PlannedOption] = []
    links: list[str] = []
    several = tuple(ranks for ranks in config.ranks if ranks > 1)
    for number, link in enumerate(config.links):
        # A single rank has no link, so it is planned once.
        ranks = config.ranks if number == 0 else several
        chosen = PlanConfig(
            advice=advice, ranks=ranks, link_bytes_per_second=parse_link(link), is_emulated=True
        )
        found = plan(data, chosen, machine, model)["options"]
        # Homes by use are those that training has by default.
        own = [one for one in found if one["homes"] in (None, "by-use")]
        options += own
        links += [link if one["ranks"] > 1 else NO_LINK for one in own]
    return options, links


def _speed_of(link: str) -> float | None:
    """Return the bytes per second of a link; None for the loopback device, and for none."""
    return None if link == NO_LINK else parse_link(link)


def choices(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return for each number of ranks, link and size of memory what each predictor chooses, and its cost."""
    found = []
    for key in sorted({_group_of(run) for run in runs}):
        own = [run for run in runs if _group_of(run) == key]
        best = min(own, key=lambda run: float(run["measured_seconds"]))
        chosen = {}
        for name in own[0]["predicted"]:
            known = [run for run in own if run["predicted"][name] is not None]
            # A predictor that has no word for any of them chooses nothing.
            if known:
                choice = min(known, key=lambda run: float(run["predicted"][name]))
                # Of equal times the planner takes the one that moves less.
                if name == PLANNER:
                    (choice,) = (run for run in own if run["is_planned"])
                slower = choice["measured_seconds"] / best["measured_seconds"]
                chosen[name] = {
                    "placement": choice["placement"],
                    "times_the_best": slower,
                    "is_near": slower <= NEAR,
                }
        found.append(
            {
                "ranks": key[0],
                "link": key[1],
                "fast_bytes": key[2],
                "best": best["placement"],
                "plans": len(own),
            }
            | {"chosen": chosen}
        )
    return found


def _group_of(run: dict[str, Any]) -> tuple[int, str, int]:
    return run["ranks"], run["link"], run["fast_bytes"]


def _take_turns(
    config: BenchAdviseConfig,
    options: Sequence[PlannedOption],
    links: Sequence[str],
    packed: Mapping[int, Path],
    threads: int,
    groups: Mapping[int, RankGroup],
    progress: ProgressCallback,
) -> list[list[float]]:
    """Train every plan in turns; return the seconds of its steps, turn by turn."""
    seconds: list[list[float]] = [[] for _ in options]
    # Each round has an order of its own. Plans come sorted by their predicted times, and in that order those
    # that are chosen would always follow ranks that have rested.
    drawn = np.random.default_rng(config.seed)
    for turn in range(config.rounds):
        for done, number in enumerate(drawn.permutation(len(options)).tolist()):
            one, link = options[number], links[number]
            progress("bench", turn * len(options) + done, config.rounds * len(options))
            arguments: dict[str, Any] = {
                "shards": str(packed[one["hot_bytes"]]),
                "placement": one["placement"],
                "staging_bytes": one["staging_bytes"],
                "prefetch": one["prefetch"],
                "threads": max(threads // one["ranks"], 1),
                "steps": config.steps,
                "seed": config.seed,
                "link_bytes_per_second": _speed_of(link),
            }
            # The slowest rank decides when a step is over.
            if one["ranks"] == 1:
                seconds[number].append(time_training(OneRank(), **arguments))
            else:
                seconds[number].append(max(groups[one["ranks"]].call(time_training, **arguments)))
    return seconds


def _typical_seconds(data: Path, config: AdviceConfig) -> dict[tuple[int, str], float]:
    """Return what `advise` predicts by typical speeds, by size of memory and placement."""
    return {
        (option["fast_bytes"], one["placement"]): one["step_seconds"]
        for option in advise(data, config, Machine())["options"]
        for one in option["placements"]
    }


def show_advise(result: dict[str, Any], console: Console) -> None:
    """Print predicted and measured steps, and what each predictor would have chosen."""
    names = list(result["runs"][0]["predicted"])
    table = plain_table(
        f"Steps of {result['settings']['batch_size']:,} samples, in ms",
        ("placement", "ranks", "link", "fast memory", "measured", *names),
        texts=("placement", "link"),
    )
    for run in sorted(result["runs"], key=lambda run: (*_group_of(run), run["measured_seconds"])):
        predicted = [run["predicted"][name] for name in names]
        table.add_row(
            run["placement"],
            str(run["ranks"]),
            run["link"],
            format_byte_size(run["fast_bytes"]),
            f"{1e3 * run['measured_seconds']:.3g}",
            *("-" if each is None else f"{1e3 * each:.3g}" for each in predicted),
        )
    print_table(console, table, num_keys=4)
    for size in result["too_small"]:
        print_line(console, f"{format_byte_size(size)}: no plan fits.")
    for group in result["groups"]:
        of = f"{format_byte_size(group['fast_bytes'])}, {group['ranks']} rank{'s' * (group['ranks'] > 1)}"
        if group["link"] != NO_LINK:
            of += f" over {group['link']}"
        told = "; ".join(
            f"{name} takes {one['placement']}, {one['times_the_best']:.2f} times its step"
            for name, one in group["chosen"].items()
        )
        print_line(console, f"{of}: the fastest of {group['plans']} is {group['best']}. {told}.")


CONFIG = BenchAdviseConfig
measure = bench_advise
show = show_advise
