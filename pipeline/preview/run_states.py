"""The state of each stage before a run, from manifests alone; nothing is written or locked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import HotsetError
from ..folders.decision import Extend, ExtendFrom, FolderState, Fresh, GoBack, Refused, Resume, Sealed, decide
from ..folders.discard import is_discarded, refuse_discarded
from ..folders.manifest import Manifest
from ..folders.output import refuse_missing_files
from ..folders.partial_folder import num_recorded, write_errors_explained
from ..folders.reopening import Continuation
from ..folders.run_identity import RunIdentity, identity_of_run
from ..stages.count import grown_counts
from ..stages.ingest import continued_log
from ..stages.stage_order import FOLDERS, refuse_extension

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
    """Return the state of each stage of ``runs``, in order, if they were run on ``out`` now.

    Args:
        out: DIR, which need not exist.
        runs: all stages, in order.
        redo: a stage that would be removed first, with those behind it.
        extend: whether logs would be added.
    """
    inspector = _Inspector(out, extend)
    # `--redo` removes a stage and all behind it before the run starts.
    names = [run.stage for run in runs]
    removed = names[names.index(redo) :] if redo in names else []
    configs = {run.stage: run.config for run in runs if run.made_by in ("ingest", "count")}
    states: list[StageState] = []
    for run in runs:
        folder = out / FOLDERS[run.stage]
        # A run ends at the first refusal, so nothing is known of the stages behind it.
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
                # A stage whose files come last, as those of pack do, begins again.
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
        """Return the state of a folder that an equal run has sealed, as far as its inputs are known."""
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
