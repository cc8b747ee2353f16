"""A stand-in for torch's writer of TensorBoard, which may not be installed: a file with a line a number."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any


class Writer:
    """Stands for torch's writer."""

    def __init__(self, folder: str, filename_suffix: str) -> None:
        self._path = Path(folder) / f"events.out.tfevents.1{filename_suffix}"
        self._path.write_text("")

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        with self._path.open("a") as file:
            file.write(f"{step} {tag} {value}\n")

    def flush(self) -> None:
        """Nothing is held."""


STUB: dict[str, Any] = {"torch.utils.tensorboard": SimpleNamespace(SummaryWriter=Writer)}
"""Modules by name, to put in the place of torch's."""


def written(folder: Path) -> list[str]:
    """Return the lines of the only file of a folder."""
    (path,) = folder.glob("events.out.tfevents.*")
    return path.read_text().splitlines()
