"""``hotset advise``: which placement, how much fast memory, and what each needs, predicted from counts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table

from ...pipeline.errors import ConfigError
from ...pipeline.sizes import ByteSize, format_byte_size
from ...stats.prediction.workload import Machine
from ...train.advice import AdviceConfig, advise
from ..console import print_json, progress_bars, stdout_console
from ..options import parse_options

_GIGA, _TERA, _MICRO = 1e9, 1e12, 1e-6


@dataclass(frozen=True, kw_only=True, slots=True)
class AdviseCommand:
    """What to predict for."""

    dir: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="DIR")]
    """Folder that `preprocess --out` made."""

    fast_bytes: tuple[ByteSize, ...] = ()
    """Fast memory to consider, one size or several, all uses together; none means a ladder of sizes."""

    batch_size: int = 2048
    """Samples of a step."""

    model: str = "auto"
    """DLRM preset: auto, kaggle, terabyte or small."""

    link_gbps: float = 20.0
    """Bandwidth between host and fast memory, each way (GB/s). PCIe 4.0 x16 gives 20 to 25 in practice."""

    host_gbps: float = 10.0
    """Bandwidth of rows read and written at random places of host memory, all cores together (GB/s)."""

    teraflops: float = 10.0
    """Speed of the dense layers as they really run (10**12 operations a second)."""

    step_us: float = 300.0
    """Time of a step besides: launches, small kernels (microseconds)."""

    workers: int = 0
    """Threads; 0 takes every core."""

    json: bool = False
    """Print one JSON object on stdout."""

    def __post_init__(self) -> None:
        for name in ("link_gbps", "host_gbps", "teraflops"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(f"{name} must be above 0, got {getattr(self, name)}")
        if not 0 <= self.step_us < float("inf"):
            raise ConfigError(f"step_us must be 0 or more, got {self.step_us}")

    @property
    def machine(self) -> Machine:
        """The machine as the mathematics takes it."""
        return Machine(
            link_bytes_per_second=self.link_gbps * _GIGA,
            host_bytes_per_second=self.host_gbps * _GIGA,
            flops=self.teraflops * _TERA,
            step_seconds=self.step_us * _MICRO,
        )


def run(command: str, words: list[str]) -> int:
    """Run ``hotset advise``."""
    options = parse_options(
        AdviseCommand,
        words,
        command=command,
        description="Predict the step time of each placement and size of fast memory, from counts alone.",
    )
    config = AdviceConfig(fast_bytes=options.fast_bytes, batch_size=options.batch_size, model=options.model)
    with progress_bars() as progress:
        advice = advise(options.dir, config, options.machine, workers=options.workers, progress=progress)
    if options.json:
        print_json(advice)
    else:
        show_advice(advice, stdout_console())
    return 0


def show_advice(advice: dict[str, Any], console: Console) -> None:
    """Print what `advise` returned: speeds, memory, and what to do."""
    batch_size = advice["workload"]["batch_size"]
    console.print(_speeds(advice, batch_size), "")
    console.print(_memory(advice), "")
    for line in _sentences(advice):
        console.print(line, soft_wrap=True)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="left" if column == "placement" else "right")
    return table


def _speeds(advice: dict[str, Any], batch_size: int) -> Table:
    table = _table(
        f"Predicted steps of {batch_size:,} samples",
        "fast memory", "placement", "step", "samples/s", "up a step", "down a step", "prefetch", "needs", "",
    )  # fmt: skip
    for option in advice["options"]:
        size = format_byte_size(option["fast_bytes"])
        for one in [*option["placements"], *option["too_large"]]:
            fits = one["memory_bytes"] <= option["fast_bytes"]
            table.add_row(
                size,
                one["placement"],
                f"{one['step_seconds'] * 1e6:,.0f} us",
                f"{batch_size / one['step_seconds']:,.0f}",
                format_byte_size(one["to_fast_bytes"]),
                format_byte_size(one["to_slow_bytes"]),
                "" if one["prefetch"] is None else str(one["prefetch"]),
                format_byte_size(one["memory_bytes"]),
                "" if fits else "does not fit",
                style=None if fits else "dim",
            )
            size = ""
        table.add_section()
    return table


def _memory(advice: dict[str, Any]) -> Table:
    uses = ("hot", "staging", "dense", "activations", "inputs", "transfers")
    table = _table("Fast memory of the fastest placement, by use", "fast memory", "placement", *uses)
    for option in advice["options"]:
        if option["placements"]:
            one = option["placements"][0]
            sizes = [format_byte_size(one["memory"][use]) for use in uses]
            table.add_row(format_byte_size(option["fast_bytes"]), one["placement"], *sizes)
    return table


def _sentences(advice: dict[str, Any]) -> list[str]:
    enough, ideal = advice["enough"], advice["compute_seconds"]
    return [
        f"{enough['placement']} with {format_byte_size(enough['fast_bytes'])} runs at "
        f"{ideal / enough['step_seconds']:.0%} of the speed with every row at hand; "
        "more fast memory stops paying there: it gains under 1 %.",
        "These are expectations from counts and the speeds given as options, not measurements.",
    ]
