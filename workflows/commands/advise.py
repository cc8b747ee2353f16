"""``hotset advise`` and ``characterise``: predict what pays off, from speeds that are measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from ...pipeline.errors import ByteSize, ConfigError, require_at_least
from ...pipeline.folders.disk import check_target, whole_file
from ...pipeline.runtime.tasks import Resources, num_workers
from ...pipeline.statistics.coverage import replication_of
from ...stats.replication import Network
from ...stats.step_times import Machine
from ...train.advice import AdviceConfig, MachineSpeeds, advise
from ..command_list import JsonCommand
from ..console import print_json, print_line, print_table, progress_bars, say, stdout_console
from ..machine import cpu_model
from ..options import Dir
from ..report.sentences import TYPICAL_DEVICE, placement_sentence, splits_sentence
from ..report.tables import advice_rows, text_table
from ..report.write import check_html

_GIGA = 1e9
_TERA = 1e12
_MICRO = 1e-6
MOST_DEVICES = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class AdviseCommand(JsonCommand):
    """Predict the time per step by placement and fast memory."""

    json_object = "the predictions"

    dir: Dir
    """Folder that `preprocess --out` created."""

    engine: Literal["hotset", "torchrec"] = "hotset"
    """Engine to advise for: hotset compares placements on one device, torchrec ways to divide rows among
    several."""

    devices: tuple[int, ...] | None = None
    """With --engine torchrec: one or more numbers of devices. Default: 2, 4 and 8."""

    fast_bytes: tuple[ByteSize, ...] = ()
    """One or more sizes of fast memory to consider, for all uses together. Default: a range of sizes, or
    no limit with --engine torchrec."""

    batch_size: int | None = None
    """Number of samples per step. Default: that of the shards in DIR."""

    model: str = "auto"
    """Model: auto, a preset of DLRM (kaggle, terabyte, mlperf, small), or dcnv2 with its default layers."""

    speeds: Path | None = None
    """File of measured speeds that `characterise` wrote. Default: typical speeds, which the output names."""

    def __post_init__(self) -> None:
        """Raise ConfigError for an option of the other engine."""
        if self.engine == "hotset":
            if self.devices is not None:
                raise ConfigError("--devices needs --engine torchrec: hotset's own advice is for one device")
            return
        for option, is_given in (
            ("--batch-size", self.batch_size is not None),
            ("--model", self.model != "auto"),
        ):
            if is_given:
                raise ConfigError(f"{option} changes nothing with --engine torchrec: leave it out")
        if len(self.fast_bytes) > 1:
            raise ConfigError("give one size of --fast-bytes with --engine torchrec")
        if not all(1 <= devices <= MOST_DEVICES for devices in self.devices or ()):
            raise ConfigError(f"--devices must be from 1 to {MOST_DEVICES}")

    def measured_speeds(self) -> MachineSpeeds | None:
        """Return the speeds of the file; None where there is none.

        Raises:
            ConfigError: the file cannot be read.
        """
        return None if self.speeds is None else MachineSpeeds.read(self.speeds)

    def machine(self) -> Machine:
        """Return the speeds of the file, or typical ones.

        Raises:
            ConfigError: the file of speeds cannot be read.
        """
        speeds = self.measured_speeds()
        return Machine() if speeds is None else speeds.machine()

    @property
    def device(self) -> str:
        """The device whose steps are predicted, for the title of the output."""
        speeds = self.measured_speeds()
        if speeds is None:
            return TYPICAL_DEVICE
        cores = "an unknown number of" if speeds.cores is None else speeds.cores
        name = f"{speeds.device_name}, {cores} core{'' if cores == 1 else 's'}"
        is_here = (speeds.device_name, speeds.cores) == (cpu_model(), num_workers(0))
        return f"{'this' if is_here else 'another'} machine ({name})"

    @property
    def source(self) -> str:
        """Origin of the speeds, for the title of the output."""
        return "typical speeds" if self.speeds is None else f"speeds of {self.speeds.name}"

    def execute(self) -> int:
        """Run ``hotset advise``."""
        if self.engine == "torchrec":
            return self._compare_splits()
        config = AdviceConfig(fast_bytes=self.fast_bytes, batch_size=self.batch_size, model=self.model)
        machine = self.machine()
        with progress_bars() as progress:
            advice = advise(self.dir, config, machine, Resources(progress=progress))
        if self.json:
            print_json(advice)
        else:
            show_advice(advice, stdout_console(), self.source, self.device)
        return 0

    def _compare_splits(self) -> int:
        speeds = self.measured_speeds()
        network = Network() if speeds is None else speeds.network()
        device_bytes = self.fast_bytes[0] if self.fast_bytes else None
        # These import torch, as hotset's own advice does not.
        from ...train.data.shards import Shards
        from ...train.torchrec.sharding import count_uses

        shards = Shards.open(self.dir)
        with progress_bars() as progress:
            uses = count_uses(shards, self.devices or (2, 4, 8), progress=progress)
        found = replication_of(shards.manifest, uses, device_bytes=device_bytes, network=network)
        if self.json:
            print_json({"network": asdict(network), "device_bytes": device_bytes, "devices": found})
        else:
            show_splits(found, network, stdout_console())
        return 0


def show_splits(found: Sequence[dict[str, Any]], network: Network, console: Console) -> None:
    """Print what `replication_of` returned: a table and a verdict for each number of devices."""
    for row in found:
        devices = f"{row['devices']} device{'' if row['devices'] == 1 else 's'}"
        title = (
            f"{devices}, batches of {row['batch_size']:,} samples: bytes of embedding rows that each device "
            "hands to collectives"
        )
        print_table(console, text_table("splits", row["splits"], title))
        print_line(console, splits_sentence(row, network))
    print_line(
        console,
        f"Counted in {found[0]['num_batches']} training batches as TorchRec would exchange them; nothing was "
        "trained. Gradients of dense layers come on top, alike for all.",
    )


def show_advice(
    advice: dict[str, Any],
    console: Console,
    source: str = "typical speeds",
    device: str = TYPICAL_DEVICE,
) -> None:
    """Print what `advise` returned: speeds, memory, and what to do.

    Args:
        advice: predictions.
        console: where to print.
        source: where the speeds of the machine are from.
        device: the one whose steps are predicted.
    """
    # Placements that do not fit are rows too: how much they lack is the next question.
    every = text_table("placements", advice_rows(advice, with_too_large=True), _title(advice, source, device))
    print_table(console, every, num_keys=2)
    fastest = "Fast memory of the fastest placement, by use"
    print_table(console, text_table("memory", advice_rows(advice, only_fastest=True), fastest), num_keys=2)
    print_line(console, placement_sentence(advice, where="above", device=device))
    print_line(
        console,
        "These are predictions from counts and the speeds in the title, not measurements; "
        "`hotset characterise --out FILE` measures the speeds of this machine for --speeds FILE.",
    )


def _title(advice: dict[str, Any], source: str, device: str) -> str:
    machine = advice["machine"]
    return (
        f"Predicted for {device}: steps of {advice['workload']['batch_size']:,} samples, {source} "
        f"(link {machine['link_bytes_per_second'] / _GIGA:.3g} GB/s, "
        f"host {machine['host_bytes_per_second'] / _GIGA:.3g} GB/s, "
        f"{machine['flops'] / _TERA:.3g} TFLOP/s, {machine['step_seconds'] / _MICRO:.3g} µs a step)"
    )


@dataclass(frozen=True, kw_only=True)
class CharacteriseCommand(JsonCommand):
    """Measure training speed by model on this machine."""

    json_object = "the findings"
    on_interrupt = "finished cells are kept; run the same command to resume"
    needs_torch = True

    out: Path
    """File for the speeds, such as machine.json. Its cells go next to it, to machine.cells.jsonl."""

    minutes: float = 8.0
    """Minutes that measuring may take."""

    threads: int | None = None
    """Number of threads of a step. Default: the cores this process may use."""

    html: Path | None = None
    """File for a page with the findings: charts of speed by factor, verdicts on published observations."""

    def __post_init__(self) -> None:
        if not 0 < self.minutes < float("inf"):
            raise ConfigError(f"minutes must be above 0, got {self.minutes:g}")
        require_at_least("threads", self.threads, 1)

    def execute(self) -> int:
        """Run ``hotset characterise``."""
        # torch takes a second and more to import: not before the options are known to be right.
        from ..characterise import characterise
        from ..report.findings import findings_page, findings_record, show_findings

        # A page that cannot be drawn or written is refused before minutes of work.
        if self.html is not None:
            check_html(self.html)
            check_target(self.html, overwrite=False, option="--html")
        result = characterise(self.out, self.minutes, self.threads, say)
        say(f"wrote {self.out}")
        if self.html is not None:
            with whole_file(self.html, option="--html") as file:
                file.write(findings_page(result).encode())
            say(f"wrote {self.html}")
        if self.json:
            print_json(findings_record(result))
        else:
            show_findings(result, stdout_console())
        return 0
