"""``hotset advise``: predict from counts which placement and how much fast memory pay off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ....pipeline.errors import ConfigError, require_at_least
from ....pipeline.runtime.resources import Resources
from ....pipeline.sizes import ByteSize, format_byte_size
from ....stats.prediction.workload import Machine
from ....train.advice import AdviceConfig, advise
from ....train.advice_record import PlacementAdvice
from ....train.planning.machine_file import MachineFile
from ....train.planning.plan import PlanConfig, parse_link, plan
from ...console import plain_table, print_json, print_line, print_table, progress_bars, stdout_console
from ...options import Dir, parse_options
from ...printing.show_machine_plan import show_machine_plan
from ...report.report_sentences import rounded
from ...report.series_tables import predicted_bytes, predicted_seconds

_GIGA = 1e9
_TERA = 1e12
_MICRO = 1e-6


@dataclass(frozen=True, kw_only=True, slots=True)
class AdviseCommand:
    """Options of ``hotset advise``."""

    dir: Dir
    """Folder that `preprocess --out` created."""

    fast_bytes: tuple[ByteSize, ...] = ()
    """One or more sizes of fast memory to consider, for all uses together. Default: a range of sizes."""

    batch_size: int | None = None
    """Number of samples per step. Default: that of the shards in DIR."""

    model: str = "auto"
    """Model: auto, a preset of DLRM (kaggle, terabyte, mlperf, small), or dcnv2 with its default layers."""

    link_gbps: float = 20.0
    """Bandwidth between host and fast memory in GB/s, each way. PCIe 4.0 x16 gives 20 to 25 in practice."""

    host_gbps: float = 10.0
    """Bandwidth in GB/s at which all cores together access rows at random positions of host memory."""

    teraflops: float = 10.0
    """Measured speed of the dense layers, in 10**12 operations per second."""

    step_us: float = 300.0
    """Other time per step, such as launches and small kernels, in microseconds."""

    machine: Path | None = None
    """File that `characterise` wrote: times follow from it, and the four speeds above are not used."""

    ranks: tuple[int, ...] = (1,)
    """Numbers of ranks to plan for, with --machine."""

    link: str = "loopback"
    """Link between ranks, such as 200mbit or 10gbit, each on a machine of its own; loopback: they share
    this machine."""

    codecs: tuple[str, ...] = ("none",)
    """Ways to send rows between ranks to plan for: none, fp16, bf16, fp8, int8, int4."""

    device: str = "cpu"
    """Device to plan for; the file of --machine must be of it."""

    threads: int | None = None
    """Number of threads of a step; the file of --machine must be of it. Default: that of the file."""

    workers: int = 0
    """Number of threads that count; 0 takes every core."""

    json: bool = False
    """Print one JSON object on stdout."""

    def __post_init__(self) -> None:
        for name in ("link_gbps", "host_gbps", "teraflops"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(f"{name} must be above 0, got {getattr(self, name)}")
        require_at_least("step_us", self.step_us, 0)
        # The four speeds say nothing about messages between ranks, so options that need them are refused.
        if self.machine is None and (
            self.ranks != (1,) or self.link != "loopback" or self.codecs != ("none",)
        ):
            raise ConfigError(
                "several ranks, links and codecs are planned on a measured machine",
                hint="`hotset characterise --out machine.json`, then give --machine machine.json",
            )

    @property
    def typical_machine(self) -> Machine:
        """The machine that the four speeds describe, in the units of the prediction."""
        return Machine(
            link_bytes_per_second=self.link_gbps * _GIGA,
            host_bytes_per_second=self.host_gbps * _GIGA,
            flops=self.teraflops * _TERA,
            step_seconds=self.step_us * _MICRO,
        )


def run(command: str, arguments: Sequence[str]) -> int:
    """Run ``hotset advise``."""
    options = parse_options(
        AdviseCommand,
        arguments,
        command=command,
        description="Predict the time per step by placement and fast memory.",
    )
    config = AdviceConfig(fast_bytes=options.fast_bytes, batch_size=options.batch_size, model=options.model)
    if options.machine is not None:
        return _plan(options, config, options.machine)
    with progress_bars() as progress:
        resources = Resources(workers=options.workers, progress=progress)
        advice = advise(options.dir, config, options.typical_machine, resources)
    if options.json:
        print_json(advice)
    else:
        show_advice(advice, stdout_console())
    return 0


def _plan(options: AdviseCommand, advice: AdviceConfig, path: Path) -> int:
    """Plan on a measured machine."""
    machine = MachineFile.read(path)
    # A file that does not suit is refused before anything is counted.
    machine.refuse_other(path, options.device, options.threads)
    model = machine.fitted_model(path)
    config = PlanConfig(
        advice=advice,
        ranks=options.ranks,
        link_bytes_per_second=parse_link(options.link),
        codecs=options.codecs,
    )
    with progress_bars() as progress:
        resources = Resources(workers=options.workers, progress=progress)
        found = plan(options.dir, config, machine, model, resources)
    if options.json:
        print_json(found)
    else:
        show_machine_plan(found, stdout_console())
    return 0


def show_advice(advice: PlacementAdvice, console: Console) -> None:
    """Print what `advise` returned: speeds, memory, and what to do."""
    batch_size = advice["workload"]["batch_size"]
    print_table(console, _speeds(advice, batch_size), num_keys=2)
    print_table(console, _memory(advice), num_keys=2)
    for line in _sentences(advice):
        print_line(console, line)


def _table(title: str, *columns: str) -> Table:
    return plain_table(title, columns, texts=("placement",))


def _speeds(advice: PlacementAdvice, batch_size: int) -> Table:
    # One section per size of fast memory, its placements from the fastest to the slowest.
    table = _table(
        f"Predicted steps of {batch_size:,} samples",
        "fast memory", "placement", "needs", "step", "samples/s", "up/step", "down/step", "prefetch",
    )  # fmt: skip
    for option in advice["options"]:
        size = format_byte_size(option["fast_bytes"])
        # Placements that do not fit stay in the table, dimmed: how much they lack is the next question.
        for one in [*option["placements"], *option["too_large"]]:
            fits = one["memory_bytes"] <= option["fast_bytes"]
            table.add_row(
                size,
                one["placement"],
                format_byte_size(one["memory_bytes"]) + ("" if fits else ", does not fit"),
                predicted_seconds(one["step_seconds"]),
                rounded(batch_size / one["step_seconds"]),
                predicted_bytes(one["to_fast_bytes"]),
                predicted_bytes(one["to_slow_bytes"]),
                "" if one["prefetch"] is None else str(one["prefetch"]),
                style=None if fits else "dim",
            )
            size = ""  # printed once, in the first row of its section
        table.add_section()
    return table


def _memory(advice: PlacementAdvice) -> Table:
    uses = ("hot", "staging", "dense", "activations", "inputs", "transfers")
    table = _table("Fast memory of the fastest placement, by use", "fast memory", "placement", *uses)
    for option in advice["options"]:
        # They are sorted by time; a size in which nothing fits has no row here.
        if option["placements"]:
            one = option["placements"][0]
            sizes = [format_byte_size(one["memory"][use]) for use in uses]
            table.add_row(format_byte_size(option["fast_bytes"]), one["placement"], *sizes)
    return table


def _sentences(advice: PlacementAdvice) -> list[str]:
    enough = advice["enough"]
    size = format_byte_size(enough["fast_bytes"])
    # Shares of a speed make no sense where the whole model fits.
    if enough["placement"] == "all-fast":
        advised = f"Everything fits in {size} of fast memory, so no other placement than all-fast is needed."
    else:
        speed = advice["compute_seconds"] / enough["step_seconds"]
        # Beyond the largest size nothing was predicted, unless every row fits there.
        largest = advice["options"][-1]
        has_all = any(one["placement"] == "all-fast" for one in largest["placements"])
        is_known = has_all or enough["fast_bytes"] < largest["fast_bytes"]
        more = "more fast memory gains less than 1%" if is_known else "no larger size was compared"
        advised = (
            f"{enough['placement']} with {size} runs at {speed:.0%} of the speed with every row on the fast "
            f"tier; {more}."
        )
    note = (
        "Speeds that no option gives are typical, and `hotset characterise` measures those of this machine. "
        "These are predictions from counts and from the speeds given as options, not measurements."
    )
    return [advised, note]
