"""``hotset preprocess --dry-run``: what a run would execute and need.

Reads manifests only; writes and locks nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..stats.ranking import peeling as peel
from .errors import ConfigError, HotsetError
from .estimate import Estimate, estimate_run, sample_log
from .folders.disk import bytes_in, free_bytes, is_discarded, refuse_discarded
from .folders.manifest import Manifest
from .folders.output import refuse_missing_files
from .folders.partial import num_recorded, write_errors_explained
from .folders.resume import (
    Continuation,
    Extend,
    ExtendFrom,
    FolderState,
    Fresh,
    GoBack,
    Refused,
    Resume,
    RunIdentity,
    Sealed,
    decide,
    identity_of_run,
)
from .folders.totals import ColumnsTotals, CountsTotals
from .preprocess import PreprocessConfig, check_resources, settled
from .raw.raw_file import RawFile
from .runtime.memory import FIXED_BYTES, default_memory_bytes
from .runtime.tasks import DEFAULT_RESOURCES, Resources, num_workers
from .schema.schema import numbers_of
from .schema.schema_file import schema_of
from .stages import count as count_stage
from .stages import encode as encode_stage
from .stages import ingest as ingest_stage
from .stages import other_vocabulary as adopt_stage
from .stages import pack as pack_stage
from .stages import rank as rank_stage
from .stages import split as split_stage
from .stages.count import grown_counts
from .stages.ingest import continued_log
from .stages.stage_order import FOLDERS, inputs_of, refuse_extension

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


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
class StageRun:
    """A stage as a run would call it."""

    stage: str
    """Name of the stage, among FOLDERS."""
    made_by: str
    """Name of the stage in the manifest."""
    version: int
    config: DataclassInstance
    inputs: tuple[str, ...]
    """Names of the folders that it reads."""
    others: tuple[dict[str, Any], ...] = ()
    """Inputs from elsewhere: raw files, or a model's vocabulary."""

    def identity(self, inputs: list[dict[str, Any]]) -> RunIdentity:
        """Return what `Output.begin` would compare."""
        return identity_of_run(self.made_by, self.version, self.config, inputs)


@dataclass(frozen=True, slots=True)
class StageState:
    """The state of one stage before a run."""

    stage: str
    folder: Path
    state: str
    why: str = ""
    """The error of a refusal; of other states a few words."""
    hint: str | None = None


def stage_states(
    out: Path, runs: Sequence[StageRun], *, redo: str | None = None, extend: bool = False
) -> list[StageState]:
    """Return the state that each stage of ``runs`` has in ``out``, in order.

    Args:
        out: DIR, which need not exist.
        runs: all stages, in order.
        redo: a stage that would be removed first, with all stages after it.
        extend: whether logs would be added.
    """
    inspector = _Inspector(out, extend)
    # `--redo` removes a stage and all stages after it before the run starts.
    names = [run.stage for run in runs]
    removed = names[names.index(redo) :] if redo in names else []
    configs = {run.stage: run.config for run in runs if run.made_by in ("ingest", "count")}
    states: list[StageState] = []
    for run in runs:
        folder = out / FOLDERS[run.stage]
        # A run ends at the first refusal, so the state of later stages is unknown.
        if states and states[-1].state in (REFUSED, NOT_REACHED):
            states.append(StageState(run.stage, folder, NOT_REACHED))
            continue
        try:
            if extend and not removed and not states:
                refuse_extension(out, configs)
            state, why = inspector.inspect(run, folder, is_removed=run.stage in removed)
            states.append(StageState(run.stage, folder, state, why))
        except HotsetError as error:
            states.append(StageState(run.stage, folder, REFUSED, str(error), error.hint))
    return states


class _Inspector:
    """Looks at stage after stage, and remembers which folders would change."""

    def __init__(self, out: Path, extend: bool) -> None:
        self._out = out
        self._extend = extend
        self._fingerprints: dict[str, str | None] = {}
        """Fingerprint of each folder inspected, None if it would change."""

    def inspect(self, run: StageRun, folder: Path, *, is_removed: bool) -> tuple[str, str]:
        """Return the state of one stage, and why; raise what the run would be refused with."""
        state, why = self._state_of(run, folder, is_removed)
        # Only an unchanged folder has a fingerprint that later stages can be compared with.
        is_kept = state == FINISHED
        self._fingerprints[folder.name] = Manifest.read(folder).fingerprint if is_kept else None
        if state in MAKING:
            # A stage with work to do reads its inputs, which must not be discarded; one that will be rebuilt
            # has its files.
            for name in run.inputs:
                if self._fingerprints[name] is not None:
                    redo = "ingest" if is_discarded(self._out / "columns") else "encode"
                    refuse_discarded(self._out / name, run.stage, redo)
        return state, why

    def _state_of(self, run: StageRun, folder: Path, is_removed: bool) -> tuple[str, str]:
        with write_errors_explained(folder):
            found = FolderState.read(folder)
        # The order of the checks is that of a run: `--redo` first, then stale folders, then `Output.begin`.
        identity = found.sealed or found.begun
        if is_removed:
            return (AGAIN if identity is not None else MADE), ""
        inputs = self._inputs_of(run)
        # An extension removes folders of fewer logs before their stages run.
        if identity is not None and found.before is None and self._is_outdated(run, identity, inputs):
            return AGAIN, "made from fewer logs" if found.sealed else "begun from fewer logs"
        # Inputs that would change are not known yet; whether all else is equal is.
        known = inputs if inputs is not None else identity["inputs"] if identity is not None else []
        wanted = run.identity(known)
        match decide(found, wanted, self._continuation_of(run, folder)):
            case Refused(error):
                raise error
            case Fresh():
                return MADE, ""
            case Resume():
                # A stage that writes its files at the end, as pack does, restarts.
                num_done = num_recorded(folder)
                return (RESUMES, f"files done: {num_done}") if num_done else (MADE, "was interrupted")
            case GoBack():
                return RESUMES, "goes back to its state before the extension"
            case Extend(source):
                return EXTENDED, _why_extended(run, source, identity, wanted)
            case Sealed():
                return self._sealed_state(run, folder, inputs)

    def _sealed_state(
        self, run: StageRun, folder: Path, inputs: list[dict[str, Any]] | None
    ) -> tuple[str, str]:
        """Return the state of a folder that an equal run sealed, from its known inputs."""
        if inputs is not None:
            refuse_missing_files(Manifest.read(folder))
            return FINISHED, ""
        is_extended = run.made_by == "count" and self._extend
        return (EXTENDED, CONTINUES_COUNTS) if is_extended else (DEPENDS, "")

    def _continuation_of(self, run: StageRun, folder: Path) -> Continuation | None:
        """Return how the stage would continue from fewer inputs, as it passes it to `Output.begin`."""
        if run.made_by == "ingest":
            return continued_log(self._extend)
        if run.made_by == "count" and self._fingerprints["columns"] is not None:
            return grown_counts(Manifest.read(self._out / "columns"), folder)
        return None

    def _inputs_of(self, run: StageRun) -> list[dict[str, Any]] | None:
        """Return inputs as the manifest would name them; None if one of them would change."""
        fingerprints = [self._fingerprints[name] for name in run.inputs]
        if None in fingerprints:
            return None
        own = [{"name": n, "fingerprint": f} for n, f in zip(run.inputs, fingerprints, strict=True)]
        return own + list(run.others)

    def _is_outdated(self, run: StageRun, found: RunIdentity, inputs: list[dict[str, Any]] | None) -> bool:
        """Return whether an extension would remove the folder and rebuild it."""
        if not self._extend or run.stage == "ingest" or run.made_by == "count":
            return False
        return inputs is None or found["inputs"] != inputs


def _why_extended(run: StageRun, source: ExtendFrom, found: RunIdentity | None, wanted: RunIdentity) -> str:
    if run.made_by == "count":
        return CONTINUES_COUNTS
    if source is not ExtendFrom.SEALED or found is None:
        return "more logs than it was begun with"
    num_new = len(wanted["inputs"]) - len(found["inputs"])
    return f"{num_new} new of {len(wanted['inputs'])} logs"


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
    """The error that the run would end with."""

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
    # Existing columns have the number of samples; otherwise it is estimated from the start of the logs.
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
        # The files of an interrupted stage show how much of its work remains.
        left = max(0.0, 1 - bytes_in(state.folder) / max(1.0, whole))
        return StagePlan(state, whole * left, seconds * left)
    if state.state == EXTENDED and state.stage == "ingest":
        # Only the new logs are added to the columns, after those that were read.
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
        # A run checks resources before it reads any folder, so that refusal is first.
        check_resources(raw, config, out, resources, extend=extend)
    except HotsetError as error:
        return error
    refused = next((state for state in states if state.state == REFUSED), None)
    return None if refused is None else HotsetError(refused.why, hint=refused.hint)
