"""A number for some features by name: ``C3=10,C5=2`` on the command line, pairs in a manifest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..errors import ConfigError
from .schema_names import nearest, refuse_twice, shown


class FeatureSettings(tuple[tuple[str, int], ...]):
    """Pairs of a feature's name and a number, ascending by name; empty sets nothing for any feature."""

    def __new__(cls, pairs: Iterable[Any] = ()) -> FeatureSettings:
        """Take ``pairs`` in any order, as tuples or as the lists of a manifest."""
        return super().__new__(cls, sorted((str(name), int(number)) for name, number in pairs))


NO_SETTINGS = FeatureSettings()


def check_settings(option: str, settings: FeatureSettings, least: int = 1) -> None:
    """Raise ConfigError where a feature is named twice or a number is too small."""
    for name, number in settings:
        if number < least:
            raise ConfigError(f"{option} must be {least} or more, got {number} for {name!r}")
    refuse_twice([name for name, _ in settings], f"{option}: feature")


def numbers_of(
    option: str, settings: FeatureSettings, features: Sequence[str], default: int
) -> dict[str, int]:
    """Return the number of every feature, ``default`` where ``settings`` have none.

    Raises:
        ConfigError: they name a feature that the log does not have.
    """
    for name, _ in settings:
        if name not in features:
            hint = nearest(name, features) or f"the features are {shown(', '.join(features))}"
            raise ConfigError(f"{option} names {name!r}, which is not a feature of this log", hint=hint)
    return dict.fromkeys(features, default) | dict(settings)


def parse_feature_settings(text: str) -> FeatureSettings:
    """Parse ``"C3=10,C5=2"``; raises ConfigError on anything else."""
    pairs = []
    for word in filter(None, text.split(",")):
        # A feature's name may have an equals sign, a number has none.
        name, equals, number = word.rpartition("=")
        if not equals or not name or not (number.isascii() and number.isdigit()):
            raise ConfigError(
                f"found {word!r}, want a feature and a number",
                hint="write FEATURE=NUMBER, separated by commas",
            )
        pairs.append((name, int(number)))
    return FeatureSettings(pairs)


def format_feature_settings(settings: FeatureSettings) -> str:
    """Write settings as `parse_feature_settings` reads them."""
    return ",".join(f"{name}={number}" for name, number in settings)
