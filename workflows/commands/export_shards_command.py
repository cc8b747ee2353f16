"""``hotset export-shards``: shards as files that other programs train on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ...pipeline.export.export_shards import ExportFormat, export_shards
from ...pipeline.folders.manifest import Manifest
from ...pipeline.runtime.resources import Resources
from ...pipeline.sizes import format_byte_size
from ..console import print_json, print_line, progress_bars, stdout_console
from ..options import Dir, parse_options


@dataclass(frozen=True, kw_only=True)
class ExportShardsCommand:
    """Options of ``hotset export-shards``."""

    dir: Dir
    """Folder that `preprocess --out` created, or its `shards/`."""

    out: Path
    """New folder for the files."""

    to: ExportFormat = "parquet"
    """Format: `parquet` and `csv` have a column for each feature and a file for each split, `fuxictr` adds
    the feature map that FuxiCTR reads, `dlrm-npz` is what facebookresearch/dlrm loads instead of Criteo's
    Kaggle log, `torchrec` adds what TorchRec's planner and FBGEMM's benchmarks ask about the tables."""

    workers: int = 0
    """Number of threads; 0 takes every core. Changes no byte of the output."""

    json: bool = False
    """Print one JSON object on stdout."""


def run(command: str, arguments: Sequence[str]) -> int:
    """Run ``hotset export-shards``."""
    options = parse_options(
        ExportShardsCommand,
        arguments,
        command=command,
        description="Write the samples of shards for other programs.",
    )
    inner = options.dir / "shards"
    shards = Manifest.read(inner if inner.is_dir() else options.dir)
    with progress_bars() as progress:
        exported = export_shards(
            shards, options.to, options.out, Resources(workers=options.workers, progress=progress)
        )
    if options.json:
        print_json({"out": str(options.out)} | asdict(exported))
        return 0
    for file in exported.files:
        print_line(stdout_console(), f"{options.out / file.name}: {format_byte_size(file.num_bytes)}")
    counted = ", ".join(f"{count:,} in {split}" for split, count in exported.num_samples.items())
    print_line(stdout_console(), f"samples: {counted}")
    return 0
