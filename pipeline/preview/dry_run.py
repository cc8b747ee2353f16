"""``hotset preprocess --dry-run``: what a run would execute and need. Writes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...stats.ranking import peeling as peel
from ..errors import ConfigError, HotsetError
from ..folders.disk import bytes_in, free_bytes
from ..folders.manifest import Manifest
from ..folders.stage_totals import ColumnsTotals, CountsTotals
from ..raw.raw_file import RawFile
from ..runtime.memory import FIXED_BYTES, default_memory_bytes
from ..runtime.resources import DEFAULT_RESOURCES, Resources
from ..runtime.tasks import num_workers
from ..schema.feature_settings import numbers_of
from ..schema.schema_file import schema_of
from ..stages import adopt as adopt_stage
from ..stages import count as count_stage
from ..stages import encode as encode_stage
from ..stages import ingest as ingest_stage
from ..stages import pack as pack_stage
from ..stages import rank as rank_stage
from ..stages import split as split_stage
from ..stages.preprocess import PreprocessConfig, check_resources, settled
from ..stages.stage_order import FOLDERS, inputs_of
from .estimate import Estimate, estimate_run
from .log_sample import sample_log
from .run_states import (
    AGAIN,
    EXTENDED,
    FINISHED,
    MAKING,
    REFUSED,
    RESUMES,
    StageRun,
    StageState,
    stage_states,
)

_PEELED_LOOKUPS = 0.25
"""Share of lookups above the floor, in generated Kaggle logs of 2 M samples."""
_PEEL_SECONDS = 1.0e-6
"""Seconds of a core to peel one training sample of 26 lookups."""
_SAMPLED_SECONDS = 4e-7
"""Seconds of a core to count one training sample of 26 lookups in a sampled order."""
_VERSIONS = {
    "count": count_stage.VERSION,
    "rank": rank_stage.VERSION,
    "encode": encode_stage.VERSION,
    "split": split_stage.VERSION,
    "pack": pack_stage.VERSION,
}


@dataclass(frozen=True, slots=True)
class StagePlan:
    """One stage of a run that has not begun."""

    state: StageState
    new_bytes: float
    """Bytes that the stage would write."""
    seconds: float


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The stages that a run would execute and the resources it needs."""

    stages: list[StagePlan]
    estimate: Estimate
    text_bytes: float
    disk_needed: float
    """Bytes that the run adds to what is on disk."""
    disk_free: int
    memory_cap: int
    memory_peak: float
    refusal: HotsetError | None
    """The error that the run would end with at once."""

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain data."""
        stages = [
            {
                "stage": plan.state.stage,
                "folder": str(plan.state.folder),
                "state": plan.state.state,
                "why": plan.state.why,
                "hint": plan.state.hint,
                "bytes": round(plan.new_bytes),
                "seconds": plan.seconds,
            }
            for plan in self.stages
        ]
        refusal = self.refusal
        return {
            "stages": stages,
            "samples": round(self.estimate.num_samples),
            "rows": round(self.estimate.num_rows),
            "text_bytes": round(self.text_bytes),
            "seconds": sum(plan.seconds for plan in self.stages),
            "disk": {"needed_bytes": round(self.disk_needed), "free_bytes": self.disk_free},
            "memory": {"cap_bytes": self.memory_cap, "peak_bytes": round(self.memory_peak)},
            "refused": None if refusal is None else {"error": str(refusal), "hint": refusal.hint},
        }


def plan_run(
    raw: Sequence[Path],
    config: PreprocessConfig,
    out: Path,
    resources: Resources = DEFAULT_RESOURCES,
    *,
    redo: str | None = None,
    extend: bool = False,
    like: Path | None = None,
) -> RunPlan:
    """Return what `preprocess` with these arguments would do, from ``out`` and a sample of the logs.

    Raises:
        HotsetError: a log cannot be read, or a line of the sample is not as the schema says.
    """
    config = settled(config)
    if redo is not None and redo not in FOLDERS:
        raise ConfigError(f"there is no stage {redo!r}", hint=f"use one of {', '.join(FOLDERS)}")
    states = stage_states(out, _runs(raw, config, like), redo=redo, extend=extend)
    sample = sample_log(raw, config.ingest)
    # Columns that are there know how many samples the logs have; otherwise the sample estimates it.
    if states[0].state == FINISHED:
        logs = ColumnsTotals.of(Manifest.read(out / "columns")).raw
        sample = replace(sample, samples=[float(log.num_samples) for log in logs])
    schema = schema_of(config.ingest.schema)
    num = num_workers(resources.workers)
    # Rows depend on the smallest count, which may differ by feature.
    least = numbers_of(
        "feature_min_counts", config.rank.feature_min_counts, schema.sparse, config.rank.min_count
    )
    estimate = estimate_run(
        sample, config.ingest, config.count, config.pack, list(least.values()), workers=num
    )
    # An adopted vocabulary is a copy, so its bytes are known.
    if like is None:
        _add_order(estimate, config.rank.rank_by, len(schema.sparse))
    else:
        vocabulary = sum(entry.num_bytes for entry in Manifest.read(like / "vocabulary").files)
        estimate.folder_bytes["rank"] = vocabulary
        estimate.core_seconds["rank"] = 0.0
    # Folders that are rebuilt are removed first, so their bytes are free again.
    plans = [_plan_of(state, estimate, sample.text_bytes, out, num) for state in states]
    there = {state.stage: bytes_in(state.folder) for state in states}
    freed = sum(there[state.stage] for state in states if state.state == AGAIN)
    cap = resources.memory_bytes or default_memory_bytes()
    # Stages spill to disk beyond the cap, or work with fewer workers.
    held = [
        min(estimate.memory_bytes[plan.state.stage], max(cap - FIXED_BYTES, 0))
        for plan in plans
        if plan.state.state in MAKING
    ]
    return RunPlan(
        plans,
        estimate,
        sum(sample.text_bytes),
        max(0.0, sum(plan.new_bytes for plan in plans) - freed),
        free_bytes(out),
        cap,
        FIXED_BYTES + max(held, default=0),
        _refusal(states, raw, config, out, resources, extend=extend),
    )


def _add_order(estimate: Estimate, rank_by: str, num_features: int) -> None:
    """Add what `rank` needs for an order other than by frequency."""
    num_train = estimate.num_train
    num_rows = estimate.num_rows
    if rank_by == "peel":
        num_lookups = _PEELED_LOOKUPS * num_features * num_train
        peeling = peel.BYTES_PER_ROW * num_rows + peel.BYTES_PER_SAMPLE * num_train
        estimate.memory_bytes["rank"] += peeling + peel.BYTES_PER_LOOKUP * num_lookups
        estimate.core_seconds["rank"] += _PEEL_SECONDS * num_train
    if rank_by == "sampled":
        estimate.folder_bytes["rank"] += 16 * num_rows
        estimate.memory_bytes["rank"] += 24 * num_rows + num_train
        estimate.core_seconds["rank"] += _SAMPLED_SECONDS * num_train


def _runs(raw: Sequence[Path], config: PreprocessConfig, like: Path | None) -> list[StageRun]:
    files = [RawFile.inspect(path) for path in raw]
    logs = tuple({"name": file.path.name, "bytes": file.num_bytes} for file in files)
    identity = ingest_stage.ingest_identity(config.ingest)
    runs = [StageRun("ingest", "ingest", ingest_stage.VERSION, identity, (), logs)]
    versions = _VERSIONS | {"rank": rank_stage.version_of(config.rank)}
    for stage, version in versions.items():
        if like is None or stage not in ("count", "rank"):
            settings = getattr(config, stage)
            runs.append(StageRun(stage, stage, version, settings, inputs_of(stage, settings)))
        elif stage == "rank":
            model = {"name": "model", "fingerprint": Manifest.read(like / "vocabulary").fingerprint}
            adopted = adopt_stage.AdoptConfig()
            runs.append(StageRun("rank", "adopt", adopt_stage.VERSION, adopted, ("columns",), (model,)))
    return runs


def _plan_of(
    state: StageState, estimate: Estimate, text_bytes: Sequence[float], out: Path, workers: int
) -> StagePlan:
    whole = estimate.folder_bytes[state.stage]
    seconds = estimate.core_seconds[state.stage] / workers
    if state.state not in MAKING:
        return StagePlan(state, 0.0, 0.0)
    if state.state == RESUMES:
        # What an interrupted stage has written tells how much of its work is left.
        left = max(0.0, 1 - bytes_in(state.folder) / max(1.0, whole))
        return StagePlan(state, whole * left, seconds * left)
    if state.state == EXTENDED and state.stage == "ingest":
        # Columns grow by the new logs only; they stand behind those that were read.
        num_before = _files_in(state.folder)
        share = sum(text_bytes[num_before:]) / max(1.0, sum(text_bytes))
        return StagePlan(state, whole * share, seconds * share)
    if state.state == EXTENDED:
        # Counts are read and written as a whole, but only new samples are counted.
        before = CountsTotals.of(Manifest.read(state.folder)).num_train_samples
        share = max(0.0, 1 - before / max(1.0, estimate.num_train))
        return StagePlan(state, whole, seconds * share)
    return StagePlan(state, whole, seconds)


def _files_in(columns: Path) -> int:
    try:
        return len(Manifest.read(columns).inputs)
    except HotsetError:
        return 0


def _refusal(
    states: Sequence[StageState],
    raw: Sequence[Path],
    config: PreprocessConfig,
    out: Path,
    resources: Resources,
    *,
    extend: bool,
) -> HotsetError | None:
    try:
        # A run checks resources before it looks at any folder, so that refusal comes first.
        check_resources(raw, config, out, resources, extend=extend)
    except HotsetError as error:
        return error
    refused = next((state for state in states if state.state == REFUSED), None)
    return None if refused is None else HotsetError(refused.why, hint=refused.hint)
