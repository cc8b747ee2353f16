"""Keys of a schema file: tables that features share, and columns of samples: read, written and refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotset.pipeline.errors import ConfigError
from hotset.pipeline.schema.schema import Form, Schema
from hotset.pipeline.schema.schema_file import read_schema, schema_identity, write_schema

HEAD = 'format = "csv"\nlabel = "y"\ndense = []\n[sparse]\n'


def test_features_of_a_table_are_next_to_each_other_and_have_its_settings() -> None:
    schema = read_schema(
        HEAD
        + """
seen = { kind = "integer", list = true, table = "item", embedding_dim = 8 }
user = "integer"
item = { kind = "integer", min_count = 3 }
city = { kind = "text", table = "places" }
home = { kind = "text", table = "places", min_count = 2 }
"""
    )
    assert schema.sparse == ("seen", "item", "user", "city", "home")
    assert schema.features_of_tables == {
        "item": ("seen", "item"),
        "user": ("user",),
        "places": ("city", "home"),
    }
    assert schema.min_counts == (("item", 3), ("places", 2)) and schema.embedding_dims == (("item", 8),)
    assert read_schema(write_schema(schema)) == schema


@st.composite
def sparse_lines(draw: st.DrawFn) -> str:
    """Columns of one or two features, in tables that are named like one of their features or like none."""
    groups = draw(st.lists(st.integers(0, 3), min_size=1, max_size=8))
    members = {group: [n for n, own in enumerate(groups) if own == group] for group in groups}
    tables = {
        group: draw(st.sampled_from([f"t{group}", *(f"f{n}" for n in own)])) for group, own in members.items()
    }
    lines: list[str] = []
    left = draw(st.permutations(range(len(groups))))
    while left:
        own, left = left[: 1 + len(left) % 2], left[1 + len(left) % 2 :]
        of_column = [f'{{ kind = "integer", name = "f{n}", table = "{tables[groups[n]]}" }}' for n in own]
        lines.append(f"c{len(lines)} = [{', '.join(of_column)}]")
    return "\n".join(lines)


@given(text=sparse_lines())
def test_any_tables_are_read_as_they_are_written(text: str) -> None:
    schema = read_schema(HEAD + text)
    assert schema.sparse == tuple(name for names in schema.features_of_tables.values() for name in names)
    assert read_schema(write_schema(schema)) == schema


def test_a_table_is_part_of_the_columns_and_its_own_name_is_none() -> None:
    apart = HEAD + 'item = "integer"\nseen = "integer"\n'
    named = HEAD + 'item = { kind = "integer", table = "item" }\nseen = "integer"\n'
    shared = HEAD + 'item = "integer"\nseen = { kind = "integer", table = "item" }\n'
    assert read_schema(named) == read_schema(apart)
    assert len({schema_identity(text) for text in (apart, named, shared)}) == 2


WRONG_TABLES = {
    "kinds": (
        'item = "integer"\nseen = { kind = "text", table = "item" }',
        "features 'item' and 'seen' have one table, 'item', and the kind integer and text",
    ),
    "a table of another": (
        'item = "integer"\nseen = { kind = "integer", table = "item" }\n'
        'more = { kind = "integer", table = "seen" }',
        "feature 'more' has the table 'seen', and that feature has another one",
    ),
    "widths": (
        'a = { kind = "text", table = "t", embedding_dim = 4 }\nb = { kind = "text", table = "t" }\n'
        'c = { kind = "text", table = "t", embedding_dim = 8 }',
        "features 'a' and 'c' have one table, 't', and the embedding_dim 4 and 8",
    ),
    "least counts": (
        'a = { kind = "text", min_count = 4 }\nb = { kind = "text", table = "a", min_count = 1 }',
        "features 'a' and 'b' have one table, 'a', and the min_count 4 and 1",
    ),
    "no name": ('a = { kind = "text", table = 3 }', "column 'a': table must be a name, got 3"),
    "no file": ('a = { kind = "text", table = "b/c" }', "'b/c' cannot be the name of a file"),
    "dense": ("", "column 'age' has an unknown key 'table'"),
}


@pytest.mark.parametrize("case", WRONG_TABLES)
def test_tables_that_cannot_be_shared_are_refused_in_one_line(case: str) -> None:
    lines, message = WRONG_TABLES[case]
    text = HEAD + lines + "\n"
    if case == "dense":
        text = 'format = "csv"\n[dense]\nage = { kind = "integer", table = "a" }\n[sparse]\na = "text"\n'
    with pytest.raises(ConfigError) as caught:
        read_schema(text)
    assert message in str(caught.value).splitlines()[0]


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
    assert (first.name, first.form, first.may_lack) == ("label", Form(above=3.0), True)
    assert (other.name, other.form, other.may_lack) == ("label_s", Form(positive=("yes", 1)), True)
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
    'group = { column = "items" }': "group must say the kind of column 'items'",
    'group = { kind = "text" }': "group must be the name of a column, or {",
    'group = { column = "", kind = "text" }': "group must be the name of a column, or {",
    'group = { column = "a", kind = "text", name = "b" }': "group must be the name of a column, or {",
    'group = { column = "a", kind = "hour" }': "kind of group must be one of integer, unsigned, text, hex8",
    'group = { column = "a", kind = [] }': "kind of group must be one of integer, unsigned, text, hex8",
    'label = ""': 'label must be "NAME", { column = "NAME", above = 3 } or',
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
