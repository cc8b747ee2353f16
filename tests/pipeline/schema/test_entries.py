"""Features that share a table, as schema files describe them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotset.pipeline.errors import ConfigError
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


WRONG = {
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


@pytest.mark.parametrize("case", WRONG)
def test_tables_that_cannot_be_shared_are_refused_in_one_line(case: str) -> None:
    lines, message = WRONG[case]
    text = HEAD + lines + "\n"
    if case == "dense":
        text = 'format = "csv"\n[dense]\nage = { kind = "integer", table = "a" }\n[sparse]\na = "text"\n'
    with pytest.raises(ConfigError) as caught:
        read_schema(text)
    assert message in str(caught.value).splitlines()[0]
