"""The metrics of a run as a file that TensorBoard reads, by torch's writer.

A resumed run writes its file again from the metrics of its checkpoint, so that every line is there once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ...pipeline.errors import MissingExtraError, install_hint
from .run_files import explained, make_folder

_SUFFIX = ".hotset"


class TensorboardEvents:
    """The event file of one run, in a folder that no other run writes.

    Args:
        folder: created; a file that an earlier process of the run wrote there is written again.
        metrics: lines logged so far.

    Raises:
        HotsetError: it cannot be written.
        MissingExtraError: tensorboard is not installed.
    """

    def __init__(self, folder: Path, metrics: Iterable[str]) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ModuleNotFoundError as error:
            raise MissingExtraError(
                "--tensorboard needs tensorboard", hint=install_hint("tensorboard")
            ) from error
        make_folder(folder)
        self._folder = folder
        with explained(folder):
            for path in folder.glob(f"events.out.tfevents.*{_SUFFIX}"):
                path.unlink()
            self._writer: Any = SummaryWriter(str(folder), filename_suffix=_SUFFIX)
        for line in metrics:
            self.add(json.loads(line))

    def add(self, entry: Mapping[str, Any]) -> None:
        """Add the numbers of one line of metrics, at its step."""
        with explained(self._folder):
            for tag, value in _numbers(entry):
                self._writer.add_scalar(tag, value, entry["step"])
            self._writer.flush()


def _numbers(entry: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers of a line by tags such as ``train/loss`` and ``validation/hot/auc``."""
    for name, value in entry.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and name not in ("step", "samples", "num_samples"):
            yield f"{prefix or 'train/'}{name}", float(value)
