"""``hotset generate``: a synthetic click log of any length."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...pipeline.errors import format_byte_size
from ...pipeline.generate.generate import GenerateConfig, generate
from ...stats.compile_notice import working_clock
from ..command_list import JsonCommand, config_of
from ..console import describe_rate, print_json, progress_bars


@dataclass(frozen=True, kw_only=True)
class GenerateCommand(JsonCommand, GenerateConfig):
    """Write a log with the access frequencies of a real one."""

    json_object = "samples, bytes and seconds"

    out: Path
    """File to write. A file whose name ends in .gz is compressed."""

    workers: int = 0
    """Number of threads; 0 takes every core. Changes no byte of the output."""

    overwrite: bool = False
    """Replace an existing file."""

    def execute(self) -> int:
        """Run ``hotset generate``."""
        config = config_of(GenerateConfig, self)
        # The rate is that of the whole command, the writing of the file included.
        started = working_clock()
        with progress_bars() as progress:
            generate(
                config,
                self.out,
                workers=self.workers,
                progress=lambda done: progress("generate", done, config.samples),
                overwrite=self.overwrite,
            )
        seconds = working_clock() - started
        # After the file is closed: compressed bytes are known only then.
        num_bytes = self.out.stat().st_size
        if self.json:
            print_json(
                {"out": str(self.out), "samples": config.samples, "bytes": num_bytes, "seconds": seconds}
            )
        else:
            print(
                f"{self.out}: {config.samples:,} samples, {format_byte_size(num_bytes)} "
                f"in {seconds:.1f} s, {describe_rate(config.samples / seconds)}"
            )
        return 0
