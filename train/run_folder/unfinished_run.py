"""Decides whether a folder is free for a new run, holds one to resume, or is being written right now."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ...pipeline.errors import HotsetError
from ...pipeline.folders.manifest import MANIFEST
from ..checkpoints.checkpoint_files import CHECKPOINTS
from ..data.batch_order import BATCH_ORDER
from .run_files import (
    BEST_PREFIX,
    CONFIG,
    METRICS,
    RUN_FILES,
    STATES,
    SUMMARY,
    VOCABULARY,
    WEIGHTS,
    explained,
    make_folder,
)

_log = logging.getLogger(__name__)


def refuse_occupied(path: Path) -> None:
    """Raise HotsetError unless ``path`` is absent, an empty folder, or one that a run just began when it was
    killed."""
    if is_vacant(path):
        return
    # Name what is there, so that a user knows whether it may be deleted.
    state = "is not empty"
    if (path / CONFIG).exists():
        state = f"holds {'an unfinished' if is_unfinished(path) else 'a finished'} run"
    raise HotsetError(f"{path} {state}", hint="give another --out, or remove the folder")


def is_vacant(path: Path) -> bool:
    """Return whether a new run may be written to ``path``; raises HotsetError where it cannot be read."""
    try:
        return not path.exists() or all(child.name == f".{CONFIG}.tmp" for child in path.iterdir())
    except OSError as error:
        raise HotsetError(f"{path} cannot be written: {error.strerror}") from error


def is_unfinished(path: Path) -> bool:
    """Return whether ``path`` holds a run that was begun and not sealed.

    Runs of earlier versions have no manifest; they are finished with their summary. One that was killed
    between the two still has its checkpoints.
    """
    if not (path / CONFIG).exists() or (path / MANIFEST).exists():
        return False
    return not (path / SUMMARY).exists() or (path / CHECKPOINTS).exists()


def remove_begun(path: Path) -> None:
    """Remove what an unfinished run without a checkpoint has written, so that it can be begun again."""
    with explained(path):
        # The config goes with the others: with it gone, the folder is vacant again.
        for name in (METRICS, WEIGHTS, STATES, BATCH_ORDER, SUMMARY, CONFIG):
            (path / name).unlink(missing_ok=True)
        # Files that a kill left under their temporary names.
        for child in path.iterdir():
            is_aside = child.name in {f".{name}.tmp" for name in (*RUN_FILES, STATES, MANIFEST)}
            if is_aside or child.name.startswith(BEST_PREFIX):
                child.unlink()
        for name in (CHECKPOINTS, VOCABULARY):
            if (path / name).is_dir():
                shutil.rmtree(path / name)


@contextmanager
def claimed(path: Path) -> Iterator[None]:
    """Make the folder of a run, and lock it; one that a refused run leaves empty is removed again.

    Raises:
        HotsetError: it cannot be made, or another process trains there.
    """
    # Folders that did not exist before are ours to remove.
    made = [folder for folder in (path, *path.parents) if not folder.exists()]
    make_folder(path)
    try:
        with locked(path):
            yield
    except BaseException:
        for folder in made:
            with suppress(OSError):  # it holds what the run wrote
                folder.rmdir()
        raise


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other processes from training in the folder; given back with the process, however it ends.

    Raises:
        HotsetError: another process trains there.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise HotsetError(
                f"{path} is being written by another process",
                hint="wait until that run ends, or stop it: the same command then resumes",
            ) from None
        except OSError as error:
            # A file system without locks; runs in it are on their own.
            _log.info("%s cannot be locked: %s", path, error.strerror)
        yield
    finally:
        os.close(descriptor)
