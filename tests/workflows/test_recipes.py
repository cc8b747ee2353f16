"""Recipes: the defaults that suit a schema."""

from __future__ import annotations

import pytest

from hotset.pipeline.errors import ConfigError
from hotset.workflows.recipes import RECIPES, recipe_for

SCHEMA = """
format = "csv"
label = "click"
dense = ["age"]

[sparse]
site = "integer"
user = { kind = "integer", min_count = 4, embedding_dim = 8 }
"""


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_of_its_schema(name: str) -> None:
    assert recipe_for(name).ingest.schema == name


def test_another_schema_gets_the_defaults_and_its_own_features_settings() -> None:
    recipe, usual = recipe_for(SCHEMA), recipe_for("criteo-kaggle")
    assert recipe.ingest.schema == SCHEMA
    assert recipe.rank.min_count == usual.rank.min_count and recipe.pack == usual.pack
    assert recipe.rank.feature_min_counts == (("user", 4),)
    assert recipe.split.feature_dims == (("user", 8),)


def test_a_fingerprint_gets_the_defaults() -> None:
    assert recipe_for("toml:" + "0" * 32).rank == recipe_for("criteo-kaggle").rank


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="no schema 'movielens'"):
        recipe_for("movielens")
