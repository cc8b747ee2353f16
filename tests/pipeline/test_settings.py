"""Settings by name have the names and types of the configs' fields, and others are refused with a hint."""

from __future__ import annotations

from typing import get_type_hints

import pytest

from hotset.pipeline.errors import ConfigError
from hotset.pipeline.preprocess import CONFIGS
from hotset.pipeline.settings import PreprocessSettings, refuse_unknown
from hotset.tests.support.settings import settings_of


def test_settings_are_those_of_the_stages() -> None:
    # The schema decides the defaults of the others, so it is an argument of its own.
    wanted = settings_of(*CONFIGS.values())
    del wanted["schema"]
    assert get_type_hints(PreprocessSettings) == wanted


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("epoch", "did you mean 'epochs'?"),
        ("lr", "did you mean 'dense_lr' or 'embedding_lr'?"),
        ("batch_size", "it is a setting of hotset.preprocess"),
        ("colour", None),
    ],
)
def test_an_unknown_setting_has_a_hint(name: str, hint: str | None) -> None:
    known = ("epochs", "embedding_lr", "dense_lr", "batch_norm")
    with pytest.raises(ConfigError, match=f"there is no setting '{name}'") as refused:
        refuse_unknown(["epochs", name], known, {"preprocess": ("batch_size",)})
    assert refused.value.hint == hint
