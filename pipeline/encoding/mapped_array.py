"""A large array that tasks in other processes read: a file that each process maps once.

Sent along with every task it would be copied as often; mapped, all processes of a machine share its pages.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..folders.output import Output
from ..runtime.memory import spill_errors_explained

_mapped: dict[Path, NDArray[Any]] = {}


@dataclass(frozen=True, slots=True)
class ArrayFile:
    """Where an array lies; small enough to go with every task."""

    path: Path
    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def write(cls, values: NDArray[Any], output: Output, name: str) -> ArrayFile:
        """Write ``values`` beside what ``output`` writes, until the folder is sealed.

        Raises:
            ManifestError: the device has no room for them.
        """
        path = output.scratch_path(name)
        with spill_errors_explained(output):
            values.tofile(path)
        return cls(path, values.shape, values.dtype.str)

    def open(self) -> NDArray[Any]:
        """The array, read-only; mapped once for all tasks of this process, as long as its file is there."""
        if self.path not in _mapped:
            for path in [path for path in _mapped if not path.exists()]:
                del _mapped[path]
            _mapped[self.path] = np.asarray(np.memmap(self.path, self.dtype, "r", shape=self.shape))
        return _mapped[self.path]

    def remove(self) -> None:
        """No task will open it any more."""
        self.path.unlink(missing_ok=True)
