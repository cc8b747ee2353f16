"""What the settings that a function takes by name should be, from the fields of its configs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Union, get_args, get_type_hints

from hotset.pipeline.errors import ByteSize, SizeOrAuto
from hotset.pipeline.schema.schema import FeatureSettings
from hotset.pipeline.settings import Bytes, Real, Whole

WIDER: dict[Any, Any] = {
    int: Whole,
    float: Real,
    ByteSize: Bytes,
    tuple[int, ...]: Sequence[int],
    tuple[str, ...]: Sequence[str],
    FeatureSettings: Mapping[str, int],
}
"""The types of fields whose settings take more than that type."""


def settings_of(*configs: Any) -> dict[str, Any]:
    """Return the type of the setting of each field of ``configs``."""
    found: dict[str, Any] = {}
    for config in configs:
        hints = get_type_hints(config)
        for own in fields(config):
            kind = hints[own.name]
            if kind == SizeOrAuto:
                found[own.name] = Bytes
                continue
            is_optional = type(None) in get_args(kind)
            members = get_args(kind) if is_optional or kind == int | str else (kind,)
            found[own.name] = Union[tuple(WIDER.get(member, member) for member in members)]  # noqa: UP007
    return found
