"""Settings by name, for type checkers and editors: those of the stages, and types that all settings share.

Functions take settings as keyword arguments. A checker runs no code, so their names and types are written out
here and next to those of training; tests hold all to the fields of the configs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeAlias, TypedDict

import numpy as np

from .errors import ConfigError
from .schema.schema import nearest

Whole: TypeAlias = int | np.integer[Any]
"""A whole number, of Python or NumPy."""
Real: TypeAlias = float | np.floating[Any] | np.integer[Any]
"""A number, of Python or NumPy."""
LastBatch: TypeAlias = Literal["keep", "drop", "merge"]
"""What becomes of a training batch with fewer samples than the others."""
Bytes: TypeAlias = int | np.integer[Any] | str
"""A number of bytes, or a text such as ``"64MiB"``."""


class PreprocessSettings(TypedDict, total=False):
    """Settings of `hotset.preprocess`: the fields of the stages' configs, which explain them."""

    label: bool
    on_bad_line: str
    block_bytes: Bytes
    eval_fraction: Real
    eval_files: Whole
    valid_fraction: Real | None
    valid_files: Whole | None
    count_last: Whole
    texts: Whole
    rank_by: Literal["frequency", "peel", "sampled"]
    min_count: Whole
    feature_min_counts: Mapping[str, int]
    peel_row_bytes: Mapping[str, int]
    sampling_rate: Real
    sampling_seed: Whole
    with_replacement: bool
    hot_bytes: Bytes
    mode: Literal["budget", "fae-paper", "fae-code"]
    embedding_dim: Whole
    feature_dims: Mapping[str, int]
    embedding_optimizer: Literal["sgd", "momentum", "adagrad", "rowwise-adagrad", "adam"]
    batch_size: Whole
    order: Literal["grouped", "original"]
    seed: Whole


def refuse_unknown(
    given: Iterable[str], known: Iterable[str], elsewhere: Mapping[str, Iterable[str]] | None = None
) -> None:
    """Raise ConfigError where a name that is given is no setting.

    Args:
        known: names of the settings.
        elsewhere: those of other functions of hotset, by the name of the function.
    """
    names = sorted(known)
    for name in given:
        if name in names:
            continue
        # Words that are used elsewhere, such as lr and optimizer, are the end of several names here.
        longer = [repr(each) for each in names if each.endswith(f"_{name}")]
        owner = next((owner for owner, theirs in (elsewhere or {}).items() if name in theirs), None)
        hint = nearest(name, names)
        if owner is not None:
            hint = f"it is a setting of hotset.{owner}"
        elif longer:
            hint = f"did you mean {' or '.join(longer)}?"
        raise ConfigError(f"there is no setting {name!r}", hint=hint)
