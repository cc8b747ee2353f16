"""Numbers for some features: as typed, as a manifest has them, and spread over all features.

The built-in schemas.
"""

from __future__ import annotations

import json

import pytest

from hotset.pipeline.errors import ConfigError
from hotset.pipeline.schema.schema import (
    KINDS,
    TIME_KINDS,
    FeatureSettings,
    format_feature_settings,
    numbers_of,
    parse_feature_settings,
)
from hotset.pipeline.schema.schema_file import KNOWN_LOGS, read_schema, schema_named, write_schema
from hotset.pipeline.stages.rank import RankConfig
from hotset.pipeline.stages.split import SplitConfig


def test_settings_are_typed_with_commas_and_sorted_by_name() -> None:
    settings = parse_feature_settings("C5=2,C3=10,a=b=7")
    assert list(settings) == [("C3", 10), ("C5", 2), ("a=b", 7)]
    assert parse_feature_settings(format_feature_settings(settings)) == settings
    assert not parse_feature_settings("")


@pytest.mark.parametrize("text", ["C3", "C3=", "=4", "C3=x", "C3=-1", "C3=1.5", "C3=٣"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="want a feature and a number"):
        parse_feature_settings(text)


def test_a_manifest_gives_back_equal_settings() -> None:
    config = RankConfig(feature_min_counts=FeatureSettings([("b", 2), ("a", 1)]))
    read = json.loads(json.dumps({"feature_min_counts": config.feature_min_counts}))
    assert RankConfig(feature_min_counts=FeatureSettings(read["feature_min_counts"])) == config
    assert list(config.feature_min_counts) == [("a", 1), ("b", 2)]


def test_nonsense_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="feature_min_counts must be 1 or more, got 0 for 'a'"):
        RankConfig(feature_min_counts=FeatureSettings([("a", 0)]))
    with pytest.raises(ConfigError, match="feature_dims: feature 'a' is named twice"):
        SplitConfig(feature_dims=FeatureSettings([("a", 4), ("a", 8)]))


def test_features_without_a_setting_have_the_default() -> None:
    assert numbers_of("x", FeatureSettings([("b", 5)]), ["a", "b"], 3) == {"a": 3, "b": 5}
    with pytest.raises(ConfigError, match="feature_dims names 'C33', which is not a feature") as caught:
        numbers_of("feature_dims", FeatureSettings([("C33", 5)]), ["C1", "C3"], 3)
    assert caught.value.hint == "did you mean 'C3'?"


@pytest.mark.parametrize("name", KNOWN_LOGS)
def test_a_schema_names_each_column_once_and_every_kind(name: str) -> None:
    schema = schema_named(name)
    names = schema.columns(has_label=True)
    assert len(set(names)) == len(names) == 1 + len(set(schema.column_of.values()))
    assert set(schema.kind_of.values()) <= {*KINDS, *TIME_KINDS}
    assert schema.columns(has_label=False) == names[1:]


def test_criteo_has_13_integers_and_26_categories() -> None:
    schema = schema_named("criteo-kaggle")
    assert (len(schema.dense), len(schema.sparse)) == (13, 26)
    assert schema.columns(has_label=True)[:2] == ("label", "I1") and set(schema.kind_of.values()) == {"hex8"}


def test_avazu_could_be_a_file() -> None:
    schema = schema_named("avazu")
    assert (schema.label, len(schema.dense), len(schema.sparse)) == ("click", 0, 22)
    assert "id" not in schema.sparse
    assert read_schema(write_schema(schema)) == schema


def test_an_unknown_schema_is_refused() -> None:
    with pytest.raises(ConfigError, match="no schema 'avasu'"):
        schema_named("avasu")
