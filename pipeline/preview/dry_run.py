"""``hotset preprocess --dry-run``: what a run would do, and take, told beforehand. Writes nothing."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ...stats.ranking import peeling as peel
from ..errors import ConfigError, HotsetError
from ..folders.manifest import Manifest
from ..raw.raw_blocks import RawFile
from ..runtime.memory import FIXED_BYTES, default_memory_bytes
from ..runtime.tasks import num_workers
from ..schema.feature_settings import numbers_of
from ..schema.schema_file import schema_of
from ..sizes import format_byte_size
from ..stages import adopt as adopt_stage
from ..stages import count as count_stage
from ..stages import encode as encode_stage
from ..stages import ingest as ingest_stage
from ..stages import pack as pack_stage
from ..stages import rank as rank_stage
from ..stages import split as split_stage
from ..stages.preflight import bytes_in, existing_folder
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
"""Share of look-ups above the floor, in generated Kaggle logs of 2 M samples."""
_PEEL_SECONDS, _SAMPLED_SECONDS = 1.4e-6, 4e-7
"""Of a core, for each training sample of 26 look-ups."""
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
    """Bytes that it would write."""
    seconds: float


@dataclass(frozen=True, slots=True)
class RunPlan:
    """What a run would do and take."""

    stages: list[StagePlan]
    estimate: Estimate
    text_bytes: float
    disk_needed: float
    """Beyond what is there, when the run ends."""
    disk_free: int
    memory_cap: int
    memory_peak: float
    refusal: HotsetError | None
    """What the run would end in at once."""

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
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
    *,
    workers: int = 0,
    memory_bytes: int | None = None,
    redo: str | None = None,
    extend: bool = False,
    like: Path | None = None,
) -> RunPlan:
    """What `preprocess` with these arguments would do, from a look at ``out`` and a sample of the logs.

    Raises:
        HotsetError: a log cannot be read, or a line of the sample is not as the schema says.
    """
    config = settled(config)
    if redo is not None and redo not in FOLDERS:
        raise ConfigError(f"no stage {redo!r}", hint=f"one of {', '.join(FOLDERS)}")
    states = stage_states(out, _runs(raw, config, like), redo=redo, extend=extend)
    sample = sample_log(raw, config.ingest)
    if states[0].state == FINISHED:
        logs = Manifest.read(out / "columns").totals["raw"]
        sample = replace(sample, samples=[float(log["samples"]) for log in logs])
    schema, num = schema_of(config.ingest.schema), num_workers(workers)
    least = numbers_of(
        "feature_min_counts", config.rank.feature_min_counts, schema.sparse, config.rank.min_count
    )
    estimate = estimate_run(
        sample, config.ingest, config.count, config.pack, list(least.values()), workers=num
    )
    if like is None:
        _add_order(estimate, config.rank.rank_by, len(schema.sparse))
    else:
        vocabulary = sum(entry.num_bytes for entry in Manifest.read(like / "vocabulary").files)
        estimate.folder_bytes["rank"] = vocabulary
        estimate.core_seconds["rank"] = 0.0
    plans = [_plan_of(state, estimate, sample.text_bytes, out, num) for state in states]
    there = {state.stage: bytes_in(state.folder) for state in states}
    freed = sum(there[state.stage] for state in states if state.state == AGAIN)
    cap = memory_bytes or default_memory_bytes()
    held = [
        estimate.memory_bytes[plan.state.stage]
        if plan.state.stage in ("ingest", "split")
        else min(estimate.memory_bytes[plan.state.stage], max(cap - FIXED_BYTES, 0))
        for plan in plans
        if plan.state.state in MAKING
    ]
    return RunPlan(
        plans,
        estimate,
        sum(sample.text_bytes),
        max(0.0, sum(plan.new_bytes for plan in plans) - freed),
        shutil.disk_usage(existing_folder(out)).free,
        cap,
        FIXED_BYTES + max(held, default=0),
        _refusal(states, raw, config, out, workers=workers, memory_bytes=memory_bytes, extend=extend),
    )


def _add_order(estimate: Estimate, rank_by: str, num_features: int) -> None:
    """What `rank` takes besides where the order is not by frequency."""
    num_train, num_rows = estimate.num_train, estimate.num_rows
    if rank_by == "peel":
        num_lookups = _PEELED_LOOKUPS * num_features * num_train
        peeling = peel.BYTES_PER_ROW * num_rows + peel.BYTES_PER_SAMPLE * num_train
        estimate.memory_bytes["rank"] += peeling + peel.BYTES_PER_LOOKUP * num_lookups
        estimate.core_seconds["rank"] += _PEEL_SECONDS * num_train
    if rank_by == "sampled":
        estimate.folder_bytes["rank"] += 8 * num_rows
        estimate.memory_bytes["rank"] += 16 * num_rows + num_train
        estimate.core_seconds["rank"] += _SAMPLED_SECONDS * num_train


def _runs(raw: Sequence[Path], config: PreprocessConfig, like: Path | None) -> list[StageRun]:
    files = [RawFile.look_at(path) for path in raw]
    logs = tuple({"name": file.path.name, "bytes": file.num_bytes} for file in files)
    identity = ingest_stage.ingest_identity(config.ingest)
    runs = [StageRun("ingest", "ingest", ingest_stage.VERSION, identity, (), logs)]
    for stage, version in _VERSIONS.items():
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
        left = max(0.0, 1 - bytes_in(state.folder) / max(1.0, whole))
        return StagePlan(state, whole * left, seconds * left)
    if state.state == EXTENDED and state.stage == "ingest":
        num_before = _files_in(state.folder)
        share = sum(text_bytes[num_before:]) / max(1.0, sum(text_bytes))
        return StagePlan(state, whole * share, seconds * share)
    if state.state == EXTENDED:
        before = Manifest.read(state.folder).totals["num_train_samples"]
        share = max(0.0, 1 - before / max(1.0, estimate.num_train))
        return StagePlan(state, whole, seconds * share)
    return StagePlan(state, whole, seconds)


def _files_in(columns: Path) -> int:
    try:
        return len(Manifest.read(columns).inputs)
    except HotsetError:
        return 0


def _refusal(
    states: Sequence[StageState], raw: Sequence[Path], config: PreprocessConfig, out: Path, **limits: Any
) -> HotsetError | None:
    try:
        check_resources(raw, config, out, **limits)
    except HotsetError as error:
        return error
    refused = next((state for state in states if state.state == REFUSED), None)
    return None if refused is None else HotsetError(refused.why, hint=refused.hint)


def show_plan(plan: RunPlan, console: Console) -> None:
    """The plan for a person."""
    table = Table(box=None, pad_edge=False)
    for name in ("stage", "folder", "bytes", "seconds", "state"):
        table.add_column(name, justify="right" if name in ("bytes", "seconds") else "left")
    for stage in plan.stages:
        state, is_work = stage.state, stage.state.state in MAKING
        why = f" ({state.why})" if state.why and state.state != REFUSED else ""
        table.add_row(
            state.stage,
            str(state.folder),
            format_byte_size(stage.new_bytes) if is_work else "",
            f"{stage.seconds:.1f}" if is_work else "",
            state.state + why,
        )
    console.print(table)
    estimate, total = plan.estimate, sum(stage.seconds for stage in plan.stages)
    console.print(
        f"\nAbout {estimate.num_samples:,.0f} samples in {format_byte_size(plan.text_bytes)} of raw data, "
        f"{estimate.num_rows:,.0f} rows; about {total:.1f} s where nothing else runs."
    )
    disk = f"{format_byte_size(plan.disk_needed)} more, {format_byte_size(plan.disk_free)} are free"
    memory = (
        f"{format_byte_size(plan.memory_peak)} at the most, the cap is {format_byte_size(plan.memory_cap)}"
    )
    console.print(f"Disk: about {disk}. Memory: about {memory}.")
    console.print("Nothing was written. These are estimates from a few MiB of the log.")
