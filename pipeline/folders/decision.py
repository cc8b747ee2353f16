"""The one place that decides what a run does with the folder it finds.

`Output.begin` acts on the decision, and ``--dry-run`` prints it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from ..errors import ManifestError
from .manifest import MANIFEST, Manifest
from .partial_folder import BEGUN, PARTIAL, REMOVED
from .reopening import Continuation, read_before
from .run_identity import RunIdentity, describe_difference, identity_of_manifest, read_begun


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
    before: RunIdentity | None = None
    """Identity of the run that finished a reopened folder, with fewer inputs, before it was reopened."""
    is_empty: bool = False
    """Whether the run that began the folder has finished no file of it."""

    @classmethod
    def read(cls, folder: Path) -> FolderState:
        """Read the state of ``folder``, which need not exist.

        Raises:
            ManifestError: the manifest, or what tells who began the folder, is damaged.
            OSError: the folder cannot be read.
        """
        partial = folder / PARTIAL
        # The manifest decides alone: it comes last when a folder is sealed, and goes first when it is
        # reopened or removed.
        if (folder / MANIFEST).exists():
            return cls(folder, sealed=identity_of_manifest(Manifest.read(folder)))
        if (partial / REMOVED).exists():
            return cls(folder, is_removed=True)
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
    def is_unfinished(self) -> bool:
        """Whether a run may write the folder, or may be writing it now."""
        return self.sealed is None and not self.is_foreign


@dataclass(frozen=True, slots=True)
class Fresh:
    """Write the folder from the start; what a removal, or a run that finished nothing, left goes first."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Keep the files that an equal run finished, and write the others."""


class ExtendFrom(Enum):
    """Which files an extension continues from."""

    SEALED = "the finished folder, which is reopened"
    BEGUN = "the unfinished folder, as it is"
    BEFORE = "the folder before it was reopened: what was added since goes"


@dataclass(frozen=True, slots=True)
class Extend:
    """Continue from the files of a run with fewer inputs."""

    source: ExtendFrom


@dataclass(frozen=True, slots=True)
class GoBack:
    """Seal a reopened folder as it was: the run wants the inputs of before."""


@dataclass(frozen=True, slots=True)
class Sealed:
    """Only read the folder: an equal run has finished it."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Leave the folder as it is and raise ``error``."""

    error: ManifestError


Decision = Fresh | Resume | Extend | GoBack | Sealed | Refused


def decide(state: FolderState, wanted: RunIdentity, continuation: Continuation | None = None) -> Decision:
    """Return what a run does with a folder. Pure: nothing is read or written.

    The first row that matches decides. "Continued" means that the run wants to extend, and that its inputs,
    and nothing else, differ from those found in the way the stage allows.

        found                                    wanted                          decision
        ---------------------------------------  ------------------------------  ---------------
        finished                                 the same                        Sealed
        finished                                 continued                       Extend(SEALED)
        finished                                 another                         Refused
        files, but no trace of a run             anything                        Refused
        nothing, or marked for removal           anything                        Fresh
        reopened                                 the same as before reopening    GoBack
        begun                                    the same                        Resume
        begun, by a stage that keeps its files   continued                       Extend(BEGUN)
        reopened                                 continued from before           Extend(BEFORE)
        begun, but no file is finished           another                         Fresh
        begun                                    another                         Refused

    Args:
        state: what the folder holds.
        wanted: identity of the run.
        continuation: how the stage continues from fewer inputs, if it can.
    """

    def continues(found: RunIdentity | None) -> bool:
        return found is not None and continuation is not None and continuation.may_continue(found, wanted)

    if state.sealed is not None:
        if continues(state.sealed):
            return Extend(ExtendFrom.SEALED)
        return _refuse_unless_equal(state.folder, state.sealed, wanted) or Sealed()
    if state.is_foreign:
        return Refused(
            ManifestError(
                f"{state.folder} is not empty and was not begun by this stage",
                hint="use another folder, or remove this one",
            )
        )
    if state.is_removed or (state.begun is None and state.before is None):
        return Fresh()
    # Before what a run began: giving up an extension must always be possible.
    if state.before == wanted:
        return GoBack()
    if state.begun is None or state.begun == wanted:
        return Resume()
    if continuation is not None and continuation.keeps_files and continues(state.begun):
        return Extend(ExtendFrom.BEGUN)
    if continues(state.before):
        return Extend(ExtendFrom.BEFORE)
    if state.is_empty:
        # Nothing is lost: a user who gives other settings after a refusal need not remove anything.
        return Fresh()
    return _refuse_unless_equal(state.folder, state.begun, wanted) or Resume()


def _refuse_unless_equal(folder: Path, found: RunIdentity, wanted: RunIdentity) -> Refused | None:
    error = describe_difference(folder, found, wanted)
    return Refused(error) if error is not None else None
