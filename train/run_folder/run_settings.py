"""The settings of a run from its ``config.json``, each of a type and in a range that a command takes.

Imports nothing heavy: the command line prints the settings of runs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args, get_type_hints

from ...pipeline.errors import ByteSize, HotsetError, first_line
from ...pipeline.folders.manifest import read_value
from ..config import TrainConfig
from ..options.recipe_options import RecipeOptions

_MOST_BYTES = 64 * 2**20
_NESTED = "recipe"


def read_settings(path: Path) -> TrainConfig:
    """Return the settings that ``path`` holds, with defaults for those that an older version had not.

    Raises:
        HotsetError: it is missing or damaged, or holds a setting that no run has.
    """
    try:
        # The file may be anything, and may have any size.
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:
            raise FileNotFoundError("it is no file that train writes")
        config = json.loads(path.read_bytes())["config"]
        recipe = RecipeOptions(**_known(RecipeOptions, config.get(_NESTED, {}), "recipe."))
        return TrainConfig(**_known(TrainConfig, config, "") | {_NESTED: recipe})
    except (OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError, HotsetError) as error:
        state = "cannot be read" if isinstance(error, OSError) else "is damaged"
        raise HotsetError(
            f"{path} {state}: {first_line(error)}", hint="give the folder that a training run wrote"
        ) from error


def _known(kind: type, values: object, where: str) -> dict[str, Any]:
    """Return the values that are settings of ``kind``: a run of another version may have more or fewer."""
    if not isinstance(values, dict):
        raise TypeError(f"{where.removesuffix('.') or 'config'} is no object")
    kinds = {name: each for name, each in get_type_hints(kind).items() if name != _NESTED and name in values}
    return {name: _read(values[name], each, where + name) for name, each in kinds.items()}


def _read(value: object, kind: Any, path: str) -> Any:
    # A size is a plain number in JSON.
    if ByteSize not in get_args(kind):
        return read_value(value, kind, path)
    num_bytes = read_value(value, int | None, path)
    return None if num_bytes is None else ByteSize(num_bytes)
