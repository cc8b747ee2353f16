"""The settings of a benchmark as its result has them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any


def recorded_settings(config: Any) -> dict[str, Any]:
    """Return the settings of a config, a dataclass, without what says where things lie on this machine.

    The folder for temporary files is left out, and other files and folders have their names alone.
    """
    settings = {name: value for name, value in asdict(config).items() if name != "scratch"}
    return {name: value.name if isinstance(value, Path) else value for name, value in settings.items()}
