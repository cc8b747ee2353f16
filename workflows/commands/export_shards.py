"""``hotset export-shards``: shards as files that other programs train on."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from ...pipeline.errors import format_byte_size
from ...pipeline.export import ExportFormat, export_shards
from ...pipeline.folders.manifest import Manifest
from ...pipeline.runtime.tasks import Resources
from ..command_list import Command
from ..console import print_json, print_line, progress_bars, stdout_console
from ..options import Dir


@dataclass(frozen=True, kw_only=True)
class ExportShardsCommand(Command):
    """Write the samples of shards for other programs."""

    dir: Dir
    """Folder that `preprocess --out` created, or its `shards/`."""

    out: Path
    """New folder for the files."""

    to: ExportFormat = "parquet"
    """Format: `parquet` and `csv` have a column for each feature and a file for each split, `fuxictr` adds
    the feature map that FuxiCTR reads, `torchrec` adds what TorchRec's planner and FBGEMM's benchmarks ask
    about the tables."""

    workers: int = 0
    """Number of threads; 0 takes every core. Changes no byte of the output."""

    json: bool = False
    """Print one JSON object on stdout."""

    def execute(self) -> int:
        """Run ``hotset export-shards``."""
        inner = self.dir / "shards"
        shards = Manifest.read(inner if inner.is_dir() else self.dir)
        with progress_bars() as progress:
            exported = export_shards(
                shards, self.to, self.out, Resources(workers=self.workers, progress=progress)
            )
        if self.json:
            print_json({"out": str(self.out)} | asdict(exported))
            return 0
        for file in exported.files:
            print_line(stdout_console(), f"{self.out / file['name']}: {format_byte_size(file['num_bytes'])}")
        counted = ", ".join(f"{count:,} in {split}" for split, count in exported.num_samples.items())
        print_line(stdout_console(), f"samples: {counted}")
        return 0


COMMANDS: dict[str, type[Command]] = {"export-shards": ExportShardsCommand}
