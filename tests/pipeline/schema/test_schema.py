"""The built-in schemas."""

from __future__ import annotations

import pytest

from hotset.pipeline.errors import ConfigError
from hotset.pipeline.schema.schema import KINDS, SCHEMAS, schema_named
from hotset.pipeline.schema.schema_file import read_schema, write_schema


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_names_each_column_once_and_every_kind(name: str) -> None:
    schema = schema_named(name)
    names = schema.columns(has_label=True)
    assert len(set(names)) == len(names) == 1 + len(schema.dense) + len(schema.sparse)
    assert set(schema.kind_of.values()) <= set(KINDS)
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
