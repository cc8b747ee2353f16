"""``hotset preprocess --dry-run``: what a run would execute and need.

Reads manifests only; writes and locks nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .errors import ConfigError, HotsetError
from .estimate import Estimate, estimate_run, sample_log
from .folders.disk import bytes_in, free_bytes
from .folders.manifest import Manifest
from .folders.output import refuse_missing_files
from .folders.partial import num_recorded, write_errors_explained
from .folders.resume import (
    Continuation,
    Decision,
    FolderState,
    Inputs,
    RunIdentity,
    decide,
    identity_of_run,
)
from .folders.totals import ColumnsTotals, CountsTotals
from .preprocess import (
    FOLDERS,
    PreprocessConfig,
    Stage,
    check_resources,
    refuse_extension,
    refuse_without_inputs,
    resolved,
    stages_of,
)
from .runtime.memory import FIXED_BYTES, default_memory_bytes
from .runtime.tasks import DEFAULT_RESOURCES, Resources, num_workers
from .stages.count import grown_counts
from .stages.ingest import continued_log

FINISHED = "finished"
RESUMES = "will be resumed"
MADE = "will be built"
AGAIN = "will be rebuilt"
EXTENDED = "will be extended"
DEPENDS = "up to date if its inputs do not change"
REFUSED = "refused"
NOT_REACHED = "not reached"
MAKING = (RESUMES, MADE, AGAIN, EXTENDED)
"""States in which a stage has work to do."""
CONTINUES_COUNTS = "continues from the existing counts"


@dataclass(frozen=True, slots=True)
class StagePlan:
    """One stage of a run that has not begun."""

    stage: str
    folder: Path
    state: str
    why: str = ""
    """The error of a refusal; of other states a few words."""
    hint: str | None = None
    new_bytes: float = 0.0
    """Bytes that the stage would write."""
    seconds: float = 0.0

    @property
    def has_work(self) -> bool:
        """Whether the run would write the folder."""
        return self.state in MAKING


def stage_states(
    out: Path, stages: Sequence[Stage], *, redo: str | None = None, extend: bool = False
) -> list[StagePlan]:
    """Return the state that each stage has in DIR ``out``, which need not exist; in order."""
    inspector = _Inspector(out, extend)
    # `--redo` removes a stage and all stages after it before the run starts.
    names = [stage.name for stage in stages]
    removed = names[names.index(redo) :] if redo in names else []
    configs = {stage.name: stage.config for stage in stages if stage.made_by in ("ingest", "count")}
    states: list[StagePlan] = []
    for stage in stages:
        folder = out / FOLDERS[stage.name]
        # A run ends at the first refusal, so the state of later stages is unknown.
        if states and states[-1].state in (REFUSED, NOT_REACHED):
            states.append(StagePlan(stage.name, folder, NOT_REACHED))
            continue
        try:
            if extend and not removed and not states:
                refuse_extension(out, configs)
            state, why = inspector.inspect(stage, folder, is_removed=stage.name in removed)
            states.append(StagePlan(stage.name, folder, state, why))
        except HotsetError as error:
            states.append(StagePlan(stage.name, folder, REFUSED, str(error), error.hint))
    return states


class _Inspector:
    """Looks at stage after stage, and remembers which folders would change."""

    def __init__(self, out: Path, extend: bool) -> None:
        self._out = out
        self._extend = extend
        self._fingerprints: dict[str, str | None] = {}
        """Fingerprint of each folder inspected, None if it would change."""

    def inspect(self, stage: Stage, folder: Path, *, is_removed: bool) -> tuple[str, str]:
        """Return the state of one stage, and why; raise what the run would be refused with."""
        state, why = self._state_of(stage, folder, is_removed)
        # Only an unchanged folder has a fingerprint that later stages can be compared with.
        is_kept = state == FINISHED
        self._fingerprints[folder.name] = Manifest.read(folder).fingerprint if is_kept else None
        if state in MAKING:
            # A stage with work to do reads its inputs, which must not be discarded; one that will be rebuilt
            # has its files.
            kept = (name for name in stage.inputs if self._fingerprints[name] is not None)
            refuse_without_inputs(stage.name, self._out, kept)
        return state, why

    def _state_of(self, stage: Stage, folder: Path, is_removed: bool) -> tuple[str, str]:
        with write_errors_explained(folder):
            found = FolderState.read(folder)
        # The order of the checks is that of a run: `--redo` first, then stale folders, then `Output.begin`.
        identity = found.sealed or found.begun
        if is_removed:
            return (AGAIN if identity is not None else MADE), ""
        inputs = self._inputs_of(stage)
        # An extension removes folders of fewer logs before their stages run.
        is_later = stage.made_by not in ("ingest", "count")
        if self._extend and is_later and identity is not None and found.before is None:
            if inputs is None or identity["inputs"] != inputs:
                return AGAIN, "made from fewer logs" if found.sealed else "begun from fewer logs"
        # Inputs that would change are not known yet; whether all else is equal is.
        known = inputs if inputs is not None else identity["inputs"] if identity is not None else []
        wanted = identity_of_run(stage.made_by, stage.version, stage.config, known)
        decision = decide(found, wanted, self._continuation_of(stage, folder))
        match decision:
            case Decision.FRESH:
                return MADE, ""
            case Decision.RESUME:
                # A stage that writes its files at the end, as pack does, restarts.
                num_done = num_recorded(folder)
                return (RESUMES, f"files done: {num_done}") if num_done else (MADE, "was interrupted")
            case Decision.GO_BACK:
                return RESUMES, "goes back to its state before the extension"
            case Decision.SEALED if inputs is not None:
                refuse_missing_files(Manifest.read(folder))
                return FINISHED, ""
            case Decision.SEALED:
                is_extended = stage.made_by == "count" and self._extend
                return (EXTENDED, CONTINUES_COUNTS) if is_extended else (DEPENDS, "")
        return EXTENDED, _why_extended(stage, decision, identity, wanted)

    def _continuation_of(self, stage: Stage, folder: Path) -> Continuation | None:
        """Return how the stage would continue from fewer inputs, as it passes it to `Output.begin`."""
        if stage.made_by == "ingest":
            return continued_log(self._extend)
        if stage.made_by == "count" and self._fingerprints["columns"] is not None:
            return grown_counts(Manifest.read(self._out / "columns"), folder)
        return None

    def _inputs_of(self, stage: Stage) -> Inputs | None:
        """Return inputs as the manifest would name them; None if one of them would change."""
        fingerprints = [self._fingerprints[name] for name in stage.inputs]
        if None in fingerprints:
            return None
        own = [{"name": n, "fingerprint": f} for n, f in zip(stage.inputs, fingerprints, strict=True)]
        return own + list(stage.others)


def _why_extended(stage: Stage, decision: Decision, found: RunIdentity | None, wanted: RunIdentity) -> str:
    if stage.made_by == "count":
        return CONTINUES_COUNTS
    if decision is not Decision.EXTEND_SEALED or found is None:
        return "more logs than it was begun with"
    num_new = len(wanted["inputs"]) - len(found["inputs"])
    return f"{num_new} new of {len(wanted['inputs'])} logs"


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
    """The error that the run would end with."""

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain data."""
        stages = [
            {
                "stage": plan.stage,
                "folder": str(plan.folder),
                "state": plan.state,
                "why": plan.why,
                "hint": plan.hint,
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
    config = resolved(config)
    if redo is not None and redo not in FOLDERS:
        raise ConfigError(f"there is no stage {redo!r}", hint=f"use one of {', '.join(FOLDERS)}")
    states = stage_states(out, stages_of(raw, config, like), redo=redo, extend=extend)
    sample = sample_log(raw, config.ingest)
    # Existing columns have the number of samples; otherwise it is estimated from the start of the logs.
    if states[0].state == FINISHED:
        logs = ColumnsTotals.of(Manifest.read(out / "columns")).raw
        sample = replace(sample, samples=[float(log.num_samples) for log in logs])
    num = num_workers(resources.workers)
    estimate = estimate_run(sample, config, workers=num)
    # An adopted vocabulary is a copy, so its bytes are known.
    if like is not None:
        vocabulary = sum(entry.num_bytes for entry in Manifest.read(like / "vocabulary").files)
        estimate.folder_bytes["rank"] = vocabulary
        estimate.core_seconds["rank"] = 0.0
    plans = [_with_work(state, estimate, sample.text_bytes, num) for state in states]
    # Folders that are rebuilt are removed first, so their bytes are free again.
    freed = sum(bytes_in(state.folder) for state in states if state.state == AGAIN)
    cap = resources.memory_bytes or default_memory_bytes()
    # Stages spill to disk beyond the cap, or work with fewer workers.
    held = [
        min(estimate.memory_bytes[plan.stage], max(cap - FIXED_BYTES, 0)) for plan in plans if plan.has_work
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


def _with_work(plan: StagePlan, estimate: Estimate, text_bytes: Sequence[float], workers: int) -> StagePlan:
    """Return the plan with the bytes and seconds of the work that the stage has left."""
    if not plan.has_work:
        return plan
    num_bytes = estimate.folder_bytes[plan.stage]
    share = 1.0
    if plan.state == RESUMES:
        # The files of an interrupted stage show how much of its work remains.
        share = max(0.0, 1 - bytes_in(plan.folder) / max(1.0, num_bytes))
        num_bytes *= share
    elif plan.state == EXTENDED and plan.stage == "ingest":
        # Only the new logs are added to the columns, after those that were read.
        num_before = _files_in(plan.folder)
        share = sum(text_bytes[num_before:]) / max(1.0, sum(text_bytes))
        num_bytes *= share
    elif plan.state == EXTENDED:
        # Counts are read and written as a whole, but only new samples are counted.
        before = CountsTotals.of(Manifest.read(plan.folder)).num_train_samples
        share = max(0.0, 1 - before / max(1.0, estimate.num_train))
    seconds = share * estimate.core_seconds[plan.stage] / workers
    return replace(plan, new_bytes=num_bytes, seconds=seconds)


def _files_in(columns: Path) -> int:
    try:
        return len(Manifest.read(columns).inputs)
    except HotsetError:
        return 0


def _refusal(
    states: Sequence[StagePlan],
    raw: Sequence[Path],
    config: PreprocessConfig,
    out: Path,
    resources: Resources,
    *,
    extend: bool,
) -> HotsetError | None:
    try:
        # A run checks resources before it reads any folder, so that refusal is first.
        check_resources(raw, config, out, resources, extend=extend)
    except HotsetError as error:
        return error
    refused = next((state for state in states if state.state == REFUSED), None)
    return None if refused is None else HotsetError(refused.why, hint=refused.hint)
