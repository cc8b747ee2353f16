"""Decide whether a run begins, resumes, extends or refuses a folder.

`Output.begin` acts on the decision, and ``--dry-run`` prints it. The identity of a run is its stage, version,
config and inputs; equal identities write equal bytes.

A sealed folder is reopened if its inputs grew, and its finished files are kept:

    folder/.partial/before/manifest.json   the manifest of the folder as it was sealed
    folder/.partial/before/NAME            its files, if the stage writes others of the same names

Once the manifest is moved, the folder is unfinished like any other, and `Output` resumes it. Until it is
sealed again, a run with the previous inputs restores everything.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from ..errors import ManifestError, exact_byte_size, first_line, hint_to_rewrite
from .disk import BEGUN, LOCK, PARTIAL, REMOVED, WORKERS, remove_children, write_synced
from .manifest import MANIFEST, Manifest, check_removed_options, without_removed

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


_UNLESS_NONE = "left_out_where_none"
_KINDS = {"stage": str, "version": int, "config": dict, "inputs": list}
Inputs = list[dict[str, Any]]
"""``{"name", "fingerprint"}`` of each input folder, or name and bytes of a raw file; in order."""


class RunIdentity(TypedDict):
    """The identity of a run, as plain JSON data; equal identities write equal bytes."""

    stage: str
    version: int
    config: dict[str, Any]
    inputs: Inputs


def unless_none() -> Any:
    """A setting that older folders lack; left out of the identity while it is None."""
    return field(default=None, metadata={_UNLESS_NONE: True})


def settings_of(config: DataclassInstance) -> dict[str, Any]:
    """Return the settings of a config as a manifest has them."""
    values: dict[str, Any] = asdict(config)
    left_out = [own.name for own in fields(config) if own.metadata.get(_UNLESS_NONE)]
    return {name: value for name, value in values.items() if name not in left_out or value is not None}


def identity_of_run(
    stage: str, version: int, config: DataclassInstance, inputs: Sequence[dict[str, Any]]
) -> RunIdentity:
    """Return the identity as it is read back from JSON, so that the two can be compared."""
    identity = {"stage": stage, "version": version, "config": settings_of(config), "inputs": list(inputs)}
    parsed: RunIdentity = json.loads(json.dumps(identity))
    return parsed


def identity_of_manifest(manifest: Manifest) -> RunIdentity:
    """Return the identity of the run that sealed a folder."""
    return RunIdentity(
        stage=manifest.stage, version=manifest.version, config=manifest.config, inputs=manifest.inputs
    )


def read_begun(path: Path) -> RunIdentity:
    """Read the identity of the run that began a folder."""
    try:
        found: Any = json.loads(path.read_bytes())
        # Every key is checked here, so that no later comparison meets another type.
        for key, kind in _KINDS.items():
            if type(found[key]) is not kind:
                raise TypeError(f"{key} is not of type {kind.__name__}")
        if not all(isinstance(made_from, dict) for made_from in found["inputs"]):
            raise TypeError("an input is no object")
        found["config"] = without_removed(found["stage"], found["config"])
        identity: RunIdentity = found
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ManifestError(
            f"{path} is damaged: {first_line(error)}", hint=hint_to_rewrite(path.parent.parent)
        ) from error
    return identity


def _read_mark(path: Path) -> RunIdentity | None:
    """Read the identity in a mark for removal, which was a manifest or a record; None where it has none."""
    try:
        return read_begun(path)
    except ManifestError:  # the folder is removed all the same
        return None


def starts_with(found: Inputs, wanted: Inputs) -> bool:
    """Return whether ``wanted`` is ``found`` followed by more inputs."""
    return len(found) < len(wanted) and wanted[: len(found)] == found


def check_same_run(folder: Path, found: RunIdentity, wanted: RunIdentity) -> None:
    """Raise ManifestError that names the first difference between two runs, unless they are equal."""
    if found == wanted:
        return
    # Settings first: they are what a user most often changed, and the easiest to undo.
    stage = wanted["stage"]
    _check_config(folder, found, stage, wanted["config"])
    hint = _hint(stage)
    # Equal settings and inputs leave the version of the stage.
    if found["inputs"] == wanted["inputs"]:
        raise ManifestError(f"{folder} was written by another version of hotset", hint=hint)
    # Logs may grow at their end: that is no other input, but an extension.
    if stage == "ingest" and starts_with(found["inputs"], wanted["inputs"]):
        num_new = len(wanted["inputs"]) - len(found["inputs"])
        raise ManifestError(
            f"{folder} was made from the first {len(found['inputs'])} of these {len(wanted['inputs'])} files",
            hint=f"give --extend, which adds the last {num_new} and rebuilds what follows; or {hint}",
        )
    difference = _describe_other_inputs(found["inputs"], wanted["inputs"])
    raise ManifestError(f"{folder} was written from other inputs: {difference}", hint=hint)


def check_config(sealed: Manifest, stage: str, config: DataclassInstance) -> None:
    """Raise ManifestError if a folder was made by another stage or with other settings than ``config``."""
    wanted: dict[str, Any] = json.loads(json.dumps(asdict(config)))
    _check_config(sealed.folder, identity_of_manifest(sealed), stage, wanted)


def _hint(stage: str) -> str:
    if stage == "map-ids":
        return "give another --out, or --redo to write it again"
    return f"use another folder, or give --redo {stage}, which deletes it and what follows first"


def _check_config(folder: Path, found: RunIdentity, stage: str, config: dict[str, Any]) -> None:
    hint = _hint(stage)
    # What a folder of an older version or of other tools holds need not be complete: hence `get`.
    if found.get("stage") != stage:
        raise ManifestError(f"{folder} holds stage {found.get('stage')!r}, want {stage!r}", hint=hint)
    check_removed_options(folder, stage, found["config"], hint)
    # A setting that one of the two leaves out is None there.
    for name, setting in (dict.fromkeys(found["config"]) | config).items():
        before = found["config"].get(name)
        if before != setting:
            was = _spelled(name, before)
            now = _spelled(name, setting)
            raise ManifestError(f"{folder} was written with {name} = {was}, now {now}", hint=hint)


def _spelled(name: str, setting: object) -> str:
    """Return a setting as the command line takes it: bytes as 1MiB."""
    is_bytes = name.endswith("_bytes") and type(setting) is int
    if setting is None:
        return "none"
    return exact_byte_size(setting) if is_bytes and isinstance(setting, int) else str(setting)


def _describe_other_inputs(found: Inputs, wanted: Inputs) -> str:
    """Name the first input that differs."""
    if len(found) != len(wanted):
        return f"{len(found)} of them, now {len(wanted)}"
    before, now = next((a, b) for a, b in zip(found, wanted, strict=True) if a != b)
    if before.get("name") != now.get("name"):
        return f"{before.get('name')}, now {now.get('name')}"
    if "bytes" in now:
        return f"{now['name']} had {before.get('bytes')} bytes, now {now['bytes']}"
    return f"another {now.get('name')} than the present one"


_FOLDER = "before"
BEFORE = f"{_FOLDER}/{MANIFEST}"


@dataclass(frozen=True, slots=True)
class Continuation:
    """The way a stage continues a folder that it sealed with fewer inputs."""

    continues: Callable[[Inputs, Inputs], bool]
    """Whether the second inputs, those of this run, continue the first, those of the folder."""
    keeps_files: bool
    """Whether the files stay in place; otherwise they are set aside and read through `Output.before`."""
    is_wanted: bool
    """Whether to start a continuation; one that was started by an equal run is resumed in any case."""

    def may_continue(self, found: RunIdentity, wanted: RunIdentity) -> bool:
        """Return whether a continuation is wanted, and nothing but the inputs differs, as it may."""
        if not self.is_wanted or found["inputs"] == wanted["inputs"]:
            return False
        is_same_stage = found.get("stage") == wanted["stage"] and found.get("version") == wanted["version"]
        is_same = is_same_stage and found.get("config") == wanted["config"]
        return is_same and self.continues(found["inputs"], wanted["inputs"])


def reopen(folder: Path, begun: bytes) -> None:
    """Turn a sealed folder, locked by this run, into one that the run of identity ``begun`` resumes."""
    partial = folder / PARTIAL
    # First remove what earlier runs left, whose records would pass for this run's.
    remove_children(partial, LOCK, WORKERS)
    (partial / _FOLDER).mkdir()
    write_synced(partial / BEGUN, begun, sync=False)
    # Last, for it unseals the folder: until then a kill leaves it sealed as it was.
    os.replace(folder / MANIFEST, partial / BEFORE)


def read_before(folder: Path) -> Manifest | None:
    """Return the manifest that a reopened folder was sealed with; its files are looked for in ``before/``."""
    before = folder / PARTIAL / BEFORE
    return Manifest.read(before.parent) if before.exists() else None


def set_aside(folder: Path, before: Manifest, is_recorded: Callable[[str], bool]) -> None:
    """Move the files of a reopened folder to ``before/``; if interrupted, the next call resumes."""
    for entry in before.files:
        path = folder / entry.path
        aside = before.folder / entry.path
        # A recorded file was written since, under the same name.
        if path.exists() and not aside.exists() and not is_recorded(entry.path):
            os.replace(path, aside)


def go_back(folder: Path) -> None:
    """Seal a reopened folder as it was; what was added is removed."""
    # Restore the manifest last: before that, a kill leaves a folder that is still reopened.
    drop_added(folder)
    os.replace(folder / PARTIAL / BEFORE, folder / MANIFEST)


def drop_added(folder: Path) -> None:
    """Remove what was written since a folder was reopened, records first: none may outlive its file.

    What was set aside is put back.
    """
    before = read_before(folder)
    assert before is not None
    remove_children(folder / PARTIAL, LOCK, WORKERS, BEGUN, _FOLDER)
    kept = {entry.path for entry in before.files}
    for path in folder.iterdir():
        if path.name not in kept and path.name != PARTIAL:
            path.unlink()
    for entry in before.files:
        if (before.folder / entry.path).exists():
            os.replace(before.folder / entry.path, folder / entry.path)


@dataclass(frozen=True, slots=True)
class FolderState:
    """The state of a stage folder, as far as it decides what a run does with it."""

    folder: Path
    sealed: RunIdentity | None = None
    """Identity of the run that finished the folder; None if it is unfinished."""
    is_removed: bool = False
    """Whether the folder is marked for removal, and a kill may have interrupted that."""
    is_foreign: bool = False
    """Whether the folder holds files but no trace of a run."""
    begun: RunIdentity | None = None
    """Identity of the run that an unfinished folder was last begun by."""
    removed: RunIdentity | None = None
    """Identity of the run that last wrote a folder that is marked for removal, where it is known."""
    before: RunIdentity | None = None
    """Identity of the run that finished a reopened folder, with fewer inputs, before it was reopened."""
    is_empty: bool = False
    """Whether the run that began the folder has finished no file of it."""

    @classmethod
    def read(cls, folder: Path) -> FolderState:
        """Read the state of ``folder``, which need not exist.

        Raises:
            ManifestError: the manifest, or the record of the run that began the folder, is damaged.
            OSError: the folder cannot be read.
        """
        partial = folder / PARTIAL
        # The manifest decides alone: it comes last when a folder is sealed, and goes first when it is
        # reopened or removed.
        if (folder / MANIFEST).exists():
            return cls(folder, sealed=identity_of_manifest(Manifest.read(folder)))
        if (partial / REMOVED).exists():
            return cls(folder, is_removed=True, removed=_read_mark(partial / REMOVED))
        is_begun = (partial / BEGUN).exists()
        before = read_before(folder)
        holds_files = folder.exists() and any(child != partial for child in folder.iterdir())
        if not is_begun and before is None:
            return cls(folder, is_foreign=holds_files)
        return cls(
            folder,
            begun=read_begun(partial / BEGUN) if is_begun else None,
            before=identity_of_manifest(before) if before is not None else None,
            is_empty=before is None and not holds_files,
        )

    @property
    def last(self) -> RunIdentity | None:
        """Identity of the run that last wrote the folder, finished or not."""
        return self.sealed or self.begun or self.before or self.removed

    @property
    def is_unfinished(self) -> bool:
        """Whether a run may write the folder, or may be writing it now."""
        return self.sealed is None and not self.is_foreign


class Decision(Enum):
    """What a run does with a folder."""

    SEALED = "is finished by an equal run, and only read"
    FRESH = "write it from the start, after removing what earlier runs left"
    RESUME = "keep the files that an equal run finished, and write the others"
    EXTEND_SEALED = "reopen the finished folder of a run with fewer inputs, and continue from its files"
    EXTEND_BEGUN = "continue from the unfinished folder of a run with fewer inputs"
    EXTEND_BEFORE = "continue from the folder before it was reopened: what was added since goes"
    GO_BACK = "seal a reopened folder as it was: the run wants the inputs of before"


def decide(state: FolderState, wanted: RunIdentity, continuation: Continuation | None = None) -> Decision:
    """Return what a run does with a folder. Pure: nothing is read or written.

    The first row that matches decides. "Continued" means that the run wants to extend, and that its inputs,
    and nothing else, differ from those found in the way the stage allows.

        found                                    wanted                          decision
        ---------------------------------------  ------------------------------  -------------
        finished                                 the same                        SEALED
        finished                                 continued                       EXTEND_SEALED
        finished                                 another                         refused
        files, but no trace of a run             anything                        refused
        nothing, or marked for removal           anything                        FRESH
        reopened                                 the same as before reopening    GO_BACK
        begun                                    the same                        RESUME
        begun, by a stage that keeps its files   continued                       EXTEND_BEGUN
        reopened                                 continued from before           EXTEND_BEFORE
        begun, but no file is finished           another                         FRESH
        begun                                    another                         refused

    Raises:
        ManifestError: the folder is refused, and left as it is.
    """

    def continues(found: RunIdentity | None) -> bool:
        return found is not None and continuation is not None and continuation.may_continue(found, wanted)

    if state.sealed is not None:
        if continues(state.sealed):
            return Decision.EXTEND_SEALED
        check_same_run(state.folder, state.sealed, wanted)
        return Decision.SEALED
    if state.is_foreign:
        raise ManifestError(
            f"{state.folder} is not empty and was not begun by this stage",
            hint="use another folder, or remove this one",
        )
    if state.is_removed or (state.begun is None and state.before is None):
        return Decision.FRESH
    # Before what a run began: giving up an extension must always be possible.
    if state.before == wanted:
        return Decision.GO_BACK
    if state.begun is None or state.begun == wanted:
        return Decision.RESUME
    if continuation is not None and continuation.keeps_files and continues(state.begun):
        return Decision.EXTEND_BEGUN
    if continues(state.before):
        return Decision.EXTEND_BEFORE
    # Nothing is lost: a user who gives other settings after a refusal need not remove anything.
    if not state.is_empty:
        check_same_run(state.folder, state.begun, wanted)
    return Decision.FRESH
