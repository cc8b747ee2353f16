"""Schemas as TOML: what is read, what is refused in which words, one fingerprint for one content."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotset.pipeline.errors import ConfigError
from hotset.pipeline.schema import SCHEMAS, Schema
from hotset.pipeline.schema_file import (
    find_columns,
    identity_of,
    is_fingerprint,
    read_schema,
    schema_of,
    setting_of,
    write_schema,
)

TEXT = """
format = "csv"  # a comment
label = "click"
dense = ["age"]

[sparse]
site = "hex8"
"user id" = "text"
"""
WANTED = Schema(
    dense=("age",), sparse=("site", "user id"), kinds=("hex8", "text"), label="click", format="csv"
)


def test_a_schema_is_read() -> None:
    assert read_schema(TEXT) == WANTED
    assert WANTED.columns(has_label=True) == ("click", "age", "site", "user id")
    assert WANTED.columns(has_label=False) == ("age", "site", "user id")
    assert WANTED.kind_of == {"site": "hex8", "user id": "text"}


@pytest.mark.parametrize(
    "schema",
    [
        WANTED,
        Schema(dense=(), sparse=("a",), kinds=("integer",), label=None, format="parquet"),
        Schema(
            dense=('q"\\', "é\t\x7f"),
            sparse=("a.b", "#"),
            kinds=("unsigned", "text"),
            label="y",
            format="csv",
            separator="\t",
            fields=("y", "#", "a.b", 'q"\\', "é\t\x7f", "unused"),
        ),
    ],
)
def test_what_is_written_is_read_again(schema: Schema) -> None:
    assert read_schema(write_schema(schema)) == schema
    assert read_schema(write_schema(schema, dict.fromkeys(schema.sparse, "a note"))) == schema


CSV = 'format = "csv"\n'
GOOD = CSV + '[sparse]\na = "text"'
MISTAKES = {
    "= 3": "is no TOML: Invalid statement (at line 1, column 1)",
    GOOD.replace("a =", "a = \na ="): "is no TOML: Invalid value (at line 3, column 5)",
    GOOD + '\na = "hex8"': "is no TOML: Cannot overwrite a value",
    '[sparse]\na = "text"': "format must be csv or parquet, got None",
    GOOD.replace("csv", "tsv"): "format must be csv or parquet, got 'tsv'",
    GOOD.replace("[", 'labels = "b"\n['): "unknown key 'labels' (did you mean 'label'?)",
    GOOD.replace("[", "label = 3\n["): "label must be the name of a column, got 3",
    GOOD.replace("[", 'dense = "b"\n['): "dense must be a list of column names, got 'b'",
    GOOD.replace("[", 'dense = ["a"]\n['): "column 'a' is named twice",
    GOOD.replace("[", 'dense = ["b", "b"]\n['): "column 'b' is named twice",
    GOOD.replace("[", 'label = "a"\n['): "column 'a' is named twice",
    GOOD.replace("[", 'dense = ["label"]\n['): "a column that is not the label cannot be called 'label'",
    CSV: "sparse names no column",
    CSV + "sparse = 3": "sparse must be a table",
    GOOD.replace("text", "txt"): "column 'a' must be one of integer, unsigned, text, hex8, got 'txt'"
    " (did you mean 'text'?)",
    GOOD.replace('"text"', "3"): "column 'a' must be one of integer, unsigned, text, hex8, got 3",
    GOOD.replace("text", "list"): "column 'a' is list-valued, which is not supported yet",
    GOOD.replace('"text"', '["text"]'): "column 'a' is list-valued, which is not supported yet",
    GOOD.replace("a =", '"../a" ='): "column '../a' cannot be the name of a file",
    GOOD.replace("a =", '"" ='): "column '' cannot be the name of a file",
    GOOD.replace("[", 'separator = ";;"\n['): "separator must be one ASCII character, got ';;'",
    GOOD.replace("[", "separator = '\"'\n["): "separator must be one ASCII character, got '\"'",
    GOOD.replace("[", "header = 1\n["): "header must be true or false, got 1",
    GOOD.replace("[", "header = false\n["): "a log with header = false needs fields",
    GOOD.replace("[", 'fields = ["a"]\n['): "fields is for a log with header = false",
    GOOD.replace("[", 'header = false\nfields = ["ab"]\n['): "fields has no column 'a'",
    GOOD.replace("[", 'header = false\nfields = ["a", "a"]\n['): "column 'a' is named twice",
    GOOD.replace("[", "header = false\nfields = [1]\n["): "fields must be a list of column names, got [1]",
    GOOD.replace('csv"', 'parquet"\nheader = true'): "header is for csv, and the format is parquet",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_mistakes_are_one_clear_line(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_schema(text, "my.toml")
    shown = str(caught.value) + (f" ({caught.value.hint})" if caught.value.hint else "")
    assert "\n" not in str(caught.value) and str(caught.value).startswith("my.toml")
    assert MISTAKES[text] in shown


def test_a_file_counts_by_what_it_says(tmp_path: Path) -> None:
    path, other = tmp_path / "a.toml", tmp_path / "b.toml"
    path.write_text(TEXT)
    other.write_text(TEXT.replace("a comment", "another").replace('["age"]', '[ "age" ]'))
    assert setting_of(str(path)) == setting_of(str(other))
    assert schema_of(setting_of(str(path))) == WANTED
    assert is_fingerprint(identity_of(TEXT)) and identity_of(TEXT) == identity_of(setting_of(str(other)))
    assert identity_of(TEXT) != identity_of(TEXT.replace("hex8", "text"))


@pytest.mark.parametrize("name", SCHEMAS)
def test_built_in_schemas_go_by_their_names(name: str) -> None:
    assert setting_of(name) == name == identity_of(name)
    assert schema_of(name) is SCHEMAS[name]
    assert not is_fingerprint(name)


def test_schemas_that_are_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no schema 'movielens'") as caught:
        setting_of("movielens")
    assert caught.value.hint == "one of criteo-kaggle, criteo-1tb, avazu, or a .toml file"
    with pytest.raises(ConfigError, match=r"none\.toml cannot be read: No such file"):
        setting_of(str(tmp_path / "none.toml"))
    (tmp_path / "latin.toml").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="is not UTF-8"):
        setting_of(str(tmp_path / "latin.toml"))
    (tmp_path / "bad.toml").write_text("format = 3")
    with pytest.raises(ConfigError, match=r"bad\.toml: format must be csv"):
        setting_of(str(tmp_path / "bad.toml"))


def test_columns_are_found_or_the_nearest_is_named() -> None:
    assert find_columns(["c", "a"], ["a", "b", "c", "b"], "log.csv") == [2, 0]
    with pytest.raises(ConfigError, match=r"log\.csv has no column 'site'") as caught:
        find_columns(["site"], ["user", "sites"], "log.csv")
    assert caught.value.hint == "did you mean 'sites'?"
    with pytest.raises(ConfigError) as caught:
        find_columns(["site"], ["x"], "log.csv")
    assert caught.value.hint == "it has ['x']"
    with pytest.raises(ConfigError, match="has two columns 'b'"):
        find_columns(["b"], ["b", "b"], "log.csv")
