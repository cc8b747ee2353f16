"""Raw logs to shards: the stages in order, what is sealed already being skipped."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..pipeline.count import CountConfig, count
from ..pipeline.encode import EncodeConfig, encode
from ..pipeline.errors import ConfigError
from ..pipeline.ingest import IngestConfig, ingest
from ..pipeline.manifest import MANIFEST, Manifest
from ..pipeline.pack import PackConfig, pack
from ..pipeline.rank import RankConfig, rank
from ..pipeline.removal import remove_folders
from ..pipeline.split import SplitConfig, split
from ..pipeline.tasks import ProgressCallback, silent

FOLDERS = {
    "ingest": "columns",
    "count": "counts",
    "rank": "vocabulary",
    "encode": "samples",
    "split": "plan",
    "pack": "shards",
}
"""Stages in order, and the folder each writes inside DIR."""

INPUTS = {
    "count": ("columns",),
    "rank": ("counts",),
    "encode": ("columns", "vocabulary"),
    "split": ("vocabulary", "samples"),
    "pack": ("columns", "samples", "plan"),
}
"""Folders each stage after `ingest` reads."""

_STAGES: dict[str, Callable[..., Manifest]] = {
    "count": count,
    "rank": rank,
    "encode": encode,
    "split": split,
    "pack": pack,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class PreprocessConfig:
    """The configs of all stages."""

    ingest: IngestConfig = field(default_factory=IngestConfig)
    """Raw logs to typed columns."""
    count: CountConfig = field(default_factory=CountConfig)
    """How often each category is looked up."""
    rank: RankConfig = field(default_factory=RankConfig)
    """Ids in the order of importance."""
    encode: EncodeConfig = field(default_factory=EncodeConfig)
    """Categories to ids."""
    split: SplitConfig = field(default_factory=SplitConfig)
    """Hot rows under a byte budget."""
    pack: PackConfig = field(default_factory=PackConfig)
    """Shuffled batches."""


@dataclass(frozen=True, slots=True)
class StageReport:
    """One stage of a run."""

    stage: str
    manifest: Manifest
    seconds: float
    num_samples: int
    """Samples of the log."""
    was_sealed: bool
    """Made by an earlier run and only looked at now."""


def preprocess(
    raw: Sequence[Path],
    config: PreprocessConfig,
    out: Path,
    *,
    workers: int = 0,
    memory_bytes: int | None = None,
    progress: ProgressCallback = silent,
    on_stage: Callable[[StageReport], None] = lambda report: None,
    until: str = "pack",
) -> Manifest:
    """Run every stage into its folder inside ``out``; returns the manifest of the last.

    Args:
        raw: logs, in order.
        config: a recipe, or a variant of one.
        out: the folder that is DIR elsewhere.
        workers: threads; 0 takes every core. Does not change a byte of the output.
        memory_bytes: anonymous resident memory `count`, `rank`, `encode` and `pack` keep within; None takes a
            quarter of the machine's.
        progress: told how far each stage is.
        on_stage: told when a stage is done.
        until: the last stage to run.

    Raises:
        HotsetError: whatever a stage refuses; ``out`` stays resumable.
    """
    for stage in FOLDERS:
        started, was_sealed = time.perf_counter(), (out / FOLDERS[stage] / MANIFEST).exists()
        if stage == "ingest":
            made = ingest(raw, config.ingest, out / "columns", workers=workers, progress=progress)
            num_samples = made.num_samples
        else:
            stage_config = getattr(config, stage)
            made = run_stage(
                stage, stage_config, out, workers=workers, memory_bytes=memory_bytes, progress=progress
            )
        on_stage(StageReport(stage, made, time.perf_counter() - started, num_samples, was_sealed))
        if stage == until:
            break
    return made


def run_stage(
    stage: str,
    config: object,
    folder: Path,
    *,
    workers: int = 0,
    memory_bytes: int | None = None,
    progress: ProgressCallback = silent,
) -> Manifest:
    """Run one stage after `ingest` inside ``folder``, from the folders of the stages before it."""
    inputs = [Manifest.read(folder / name) for name in INPUTS[stage]]
    memory = {} if stage == "split" else {"memory_bytes": memory_bytes}
    function = _STAGES[stage]
    return function(config, *inputs, folder / FOLDERS[stage], workers=workers, progress=progress, **memory)


def remove_from(stage: str, folder: Path) -> list[Path]:
    """Remove a stage's folder and those of all that follow; returns what was removed."""
    if stage not in FOLDERS:
        raise ConfigError(f"no stage {stage!r}", hint=f"one of {', '.join(FOLDERS)}")
    names = list(FOLDERS)
    doomed = [folder / FOLDERS[name] for name in names[names.index(stage) :]]
    removed = [path for path in reversed(doomed) if path.exists()]
    remove_folders(removed)
    return removed
