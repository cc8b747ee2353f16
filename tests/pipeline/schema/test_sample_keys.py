"""Keys of labels, weights and groups: what is read, written and refused."""

from __future__ import annotations

import pytest

from hotset.pipeline.errors import ConfigError
from hotset.pipeline.schema.schema import Schema
from hotset.pipeline.schema.schema_file import read_schema, schema_identity, write_schema

SPARSE = """
[sparse]
a = "text"
items = { kind = "integer", list = true }
ts = "hour"
u = [{ kind = "hex8" }, { kind = "text", name = "v" }]
"""


def text_of(keys: str, more: str = "") -> str:
    return f'format = "csv"\n{keys}\n{more}{SPARSE}'


def test_a_schema_may_have_all_of_them() -> None:
    keys = 'labels = ["click", "buy it"]\ntime = "ts"\nweight = "w"\ngroup = "a"'
    schema = read_schema(text_of(keys))
    assert (schema.label, schema.label_columns, schema.weight) == ("click", ("click", "buy it"), "w")
    assert schema.group == ("a", "text")  # as the feature of the column
    assert schema.columns(has_label=True)[:5] == ("click", "buy it", "ts", "w", "a")
    assert schema.columns(has_label=False)[:3] == ("ts", "w", "a")
    assert schema.of_predicted.columns(has_label=False) == ("a", "items", "ts", "u")
    names = [each.name for each in schema.sample_columns(has_label=True)]
    assert names == ["label", "label_buy it", "sample_time", "weight", "group"]
    assert read_schema(write_schema(schema)) == schema
    assert schema_identity(write_schema(schema)) == schema_identity(text_of(keys))


def test_each_label_may_say_which_values_count() -> None:
    schema = read_schema(
        text_of('labels = [{ column = "r", above = 3 }, { column = "s", positive = ["yes", 1.0] }]')
    )
    assert (schema.label, schema.above, schema.positive) == ("r", 3.0, ())
    first, other = schema.sample_columns(has_label=True)
    assert (first.name, first.above, first.positive, first.may_lack) == ("label", 3.0, (), True)
    assert (other.name, other.above, other.positive, other.may_lack) == ("label_s", None, ("yes", 1), True)
    assert read_schema(write_schema(schema)) == schema


def test_each_key_is_a_part_of_the_fingerprint() -> None:
    texts = ["", 'label = "c"', 'labels = ["c"]', 'labels = ["c", "d"]', 'weight = "w"', 'group = "a"']
    texts += ['group = { column = "a", kind = "hex8" }', 'group = { column = "b", kind = "text" }']
    assert len({schema_identity(text_of(keys)) for keys in texts}) == len(texts)


def test_a_weight_or_a_group_may_be_a_feature_too() -> None:
    dense = "dense = ['w']\n"
    schema = read_schema(text_of('weight = "w"\ngroup = { column = "a", kind = "integer" }', dense))
    assert schema.columns(has_label=True) == ("w", "a", "items", "ts", "u") and schema.dense == ("w",)


WRONG = {
    'label = "c"\nlabels = ["c"]': "label and labels exclude each other",
    'labels = "c"': "labels must be a list of columns, got 'c'",
    "labels = []": "labels must be a list of columns, got []",
    'labels = ["c", 3]': 'label must be "NAME", { column = "NAME", above = 3 } or',
    'labels = [{ column = "c", above = "x" }]': "above of label must be a number, got 'x'",
    'labels = ["c", "c"]': "column 'c' is named twice",
    'labels = ["c", "a"]': "column 'a' is named twice",
    "weight = 3": "weight must be the name of a column, got 3",
    'weight = ""': "weight must be the name of a column, got ''",
    'group = "user"': "group must say the kind of column 'user', which no feature decides",
    'group = "items"': "group must say the kind of column 'items'",
    'group = "ts"': "group must say the kind of column 'ts'",
    'group = "u"': "group must say the kind of column 'u'",
    "group = 3": 'group must be the name of a column, or { column = "NAME", kind = "text" }, got 3',
    'group = { column = "a" }': "group must be the name of a column, or {",
    'group = { column = "a", kind = "hour" }': "group must be the name of a column, or {",
    'group = { column = "a", kind = [] }': "group must be the name of a column, or {",
}


@pytest.mark.parametrize("keys", WRONG)
def test_a_wrong_key_is_one_clear_line(keys: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_schema(text_of(keys), "my.toml")
    assert str(caught.value).startswith(f"my.toml: {WRONG[keys]}") and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "name"),
    [('weight = "w"', "weight"), ('group = "a"', "group"), ('labels = ["c", "buy"]', "label_buy")],
)
def test_a_feature_cannot_have_the_name_of_such_a_column(keys: str, name: str) -> None:
    dense = f"dense = ['{name}']\n"
    with pytest.raises(
        ConfigError, match=f"a feature cannot be called '{name}': shards have a column"
    ) as caught:
        read_schema(text_of(keys, dense))
    assert "rename it" in str(caught.value.hint)
    # Where samples have no such column, it is a feature like any other.
    assert isinstance(read_schema(text_of("", dense)), Schema)
