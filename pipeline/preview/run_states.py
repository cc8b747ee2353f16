"""What a run would find and do, stage by stage, told from manifests alone; nothing is written or locked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..counting.count_spans import has_grown
from ..errors import HotsetError, ManifestError
from ..folders.discard import is_discarded, refuse_discarded
from ..folders.manifest import MANIFEST, Manifest
from ..folders.partial_folder import BEGUN, PARTIAL, REMOVED
from ..folders.reopening import read_before
from ..folders.run_identity import identity_of, read_begun, refuse_difference, starts_with
from ..stages.stage_order import FOLDERS, refuse_extension

FINISHED = "finished"
RESUMES = "resumes"
MADE = "will be made"
AGAIN = "will be made again"
EXTENDED = "will be extended"
DEPENDS = "finished if its inputs come out as they were"
REFUSED = "refused"
NOT_REACHED = "not reached"
MAKING = (RESUMES, MADE, AGAIN, EXTENDED)
"""States in which a stage has work to do."""


@dataclass(frozen=True, slots=True)
class StageRun:
    """A stage as a run would call it."""

    stage: str
    """Its name among FOLDERS."""
    made_by: str
    """The name its manifest has."""
    version: int
    config: Any
    inputs: tuple[str, ...]
    """Names of the folders it reads."""
    others: tuple[dict[str, Any], ...] = ()
    """Inputs from elsewhere: raw files, or a model's vocabulary."""

    def identity(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """What `Output.begin` would compare."""
        own = {"stage": self.made_by, "version": self.version, "config": asdict(self.config)}
        identity: dict[str, Any] = json.loads(json.dumps(own | {"inputs": inputs}))
        return identity


@dataclass(frozen=True, slots=True)
class StageState:
    """What would become of one stage."""

    stage: str
    folder: Path
    state: str
    why: str = ""
    """Of a refusal the error, of others a few words."""
    hint: str | None = None


def stage_states(
    out: Path, runs: Sequence[StageRun], *, redo: str | None = None, extend: bool = False
) -> list[StageState]:
    """The state of each stage of ``runs``, in order, were they run on ``out`` now.

    Args:
        out: DIR, which need not exist.
        runs: all stages, in order.
        redo: a stage that would be removed first, with those behind it.
        extend: whether logs would be added.
    """
    looker = _Looker(out, extend)
    names = [run.stage for run in runs]
    removed = names[names.index(redo) :] if redo in names else []
    configs = {run.stage: run.config for run in runs if run.made_by in ("ingest", "count")}
    states: list[StageState] = []
    for run in runs:
        folder = out / FOLDERS[run.stage]
        if states and states[-1].state in (REFUSED, NOT_REACHED):
            states.append(StageState(run.stage, folder, NOT_REACHED))
            continue
        try:
            if extend and not removed and not states:
                refuse_extension(out, configs)
            state, why = looker.look_at(run, folder, is_removed=run.stage in removed)
            states.append(StageState(run.stage, folder, state, why))
        except HotsetError as error:
            states.append(StageState(run.stage, folder, REFUSED, str(error), error.hint))
    return states


class _Looker:
    """Looks at stage after stage, and remembers which folders would change."""

    def __init__(self, out: Path, extend: bool) -> None:
        self._out, self._extend = out, extend
        self._fingerprints: dict[str, str | None] = {}
        """Of each folder looked at, None where it would change."""

    def look_at(self, run: StageRun, folder: Path, *, is_removed: bool) -> tuple[str, str]:
        """The state of one stage, and why; raises what the run would be refused with."""
        state, why = self._state_of(run, folder, is_removed)
        is_kept = state == FINISHED
        self._fingerprints[folder.name] = Manifest.read(folder).fingerprint if is_kept else None
        if state in MAKING:
            for name in run.inputs:
                if self._fingerprints[name] is not None:
                    redo = "ingest" if is_discarded(self._out / "columns") else "encode"
                    refuse_discarded(self._out / name, run.stage, redo)
        return state, why

    def _state_of(self, run: StageRun, folder: Path, is_removed: bool) -> tuple[str, str]:
        is_there, begun = (folder / MANIFEST).exists(), folder / PARTIAL / BEGUN
        if is_removed:
            return (AGAIN if is_there or begun.exists() else MADE), ""
        inputs = self._inputs_of(run)
        if is_there:
            return self._sealed_state(run, folder, inputs)
        if (folder / PARTIAL / REMOVED).exists():
            return MADE, ""
        if begun.exists():
            return self._begun_state(run, folder, inputs)
        if folder.exists() and any(child.name != PARTIAL for child in folder.iterdir()):
            raise ManifestError(
                f"{folder} is not empty and was not begun by this stage",
                hint="give another --out, or remove the folder",
            )
        return MADE, ""

    def _inputs_of(self, run: StageRun) -> list[dict[str, Any]] | None:
        """As the manifest would name them; None where one of them would change."""
        fingerprints = [self._fingerprints[name] for name in run.inputs]
        if None in fingerprints:
            return None
        own = [{"name": n, "fingerprint": f} for n, f in zip(run.inputs, fingerprints, strict=True)]
        return own + list(run.others)

    def _sealed_state(
        self, run: StageRun, folder: Path, inputs: list[dict[str, Any]] | None
    ) -> tuple[str, str]:
        sealed = Manifest.read(folder)
        found = identity_of(sealed)
        wanted = run.identity(found["inputs"] if inputs is None else inputs)
        if self._is_outdated(run, found, inputs):
            return AGAIN, "made from fewer logs"
        if run.stage == "ingest" and self._extend and starts_with(found["inputs"], wanted["inputs"]):
            num_new = len(wanted["inputs"]) - len(found["inputs"])
            return EXTENDED, f"{num_new} new of {len(wanted['inputs'])} logs"
        if run.made_by == "count" and found["inputs"] != wanted["inputs"]:
            if has_grown(Manifest.read(self._out / "columns"), folder):
                refuse_difference(folder, found | {"inputs": wanted["inputs"]}, wanted)
                return EXTENDED, "counts that are there are gone on from"
        refuse_difference(folder, found, wanted)
        if inputs is None:
            is_extended = run.made_by == "count" and self._extend
            return (EXTENDED, "counts that are there are gone on from") if is_extended else (DEPENDS, "")
        if not is_discarded(folder):
            for entry in sealed.files:
                sealed.checked_path(entry)
        return FINISHED, ""

    def _begun_state(
        self, run: StageRun, folder: Path, inputs: list[dict[str, Any]] | None
    ) -> tuple[str, str]:
        found, before = read_begun(folder / PARTIAL / BEGUN), read_before(folder)
        wanted = run.identity(found["inputs"] if inputs is None else inputs)
        num_done = len(list((folder / PARTIAL).glob("*.arrow.json")))
        if self._is_outdated(run, found, inputs) and before is None:
            return AGAIN, "begun from fewer logs"
        if before is not None and identity_of(before) == wanted:
            return RESUMES, "goes back to what it was before it was extended"
        if found != wanted and self._extend and run.stage == "ingest":
            if starts_with(found["inputs"], wanted["inputs"]) or before is not None:
                refuse_difference(folder, found | {"inputs": wanted["inputs"]}, wanted)
                return EXTENDED, "more logs than it was begun with"
        if found != wanted and before is not None and run.made_by == "count":
            return EXTENDED, "counts that are there are gone on from"
        refuse_difference(folder, found, wanted)
        return RESUMES, f"{num_done} files are done"

    def _is_outdated(self, run: StageRun, found: dict[str, Any], inputs: list[dict[str, Any]] | None) -> bool:
        """Whether an extension would remove the folder and make it again."""
        if not self._extend or run.stage == "ingest" or run.made_by == "count":
            return False
        return inputs is None or found["inputs"] != inputs
