"""Schemas as TOML: what is read, what is refused in which words, one fingerprint for one content.

Tests `schema`, too.

Keys of a schema file: tables that features share, and columns of samples: read, written and refused.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any
from unicodedata import normalize

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotset.pipeline.errors import ConfigError
from hotset.pipeline.schema.schema import Form, Schema, find_columns
from hotset.pipeline.schema.schema_file import (
    KNOWN_LOGS,
    is_fingerprint,
    read_schema,
    schema_identity,
    schema_named,
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
        Schema(
            dense=("price", "depth", "n"),
            sparse=("tags", "the user", "z", "x"),
            kinds=("text", "integer", "hex8", "unsigned"),
            format="csv",
            lists=(("tags", "|"), ("z", ",")),
            floats=("price", "depth"),
            untransformed=("depth", "n"),
            renamed=(("n", "ids"), ("the user", "user"), ("x", "label ")),
            min_counts=(("the user", 4), ("z", 2)),
            embedding_dims=(("tags", 8),),
        ),
        Schema(
            dense=(),
            sparse=("hour", "a day", "ts", "of b"),
            kinds=("hour", "weekday", "text", "weekday"),
            label=None,
            format="csv",
            renamed=(("hour", "ts"), ("a day", "ts"), ("of b", "b")),
            time_units=(("hour", "ms"), ("of b", "s")),
            time=("ts", "ms"),
        ),
        Schema(dense=(), sparse=("a",), kinds=("text",), format="parquet", time=('a "time"', "")),
        Schema(
            dense=(),
            sparse=("a",),
            kinds=("text",),
            format="csv",
            separator="::",
            quote=None,
            escape="\\",
            skip=2,
            comment="#!",
            trim=True,
            missing=("\\N", 'n"a', "é"),
            encoding="utf-16",
        ),
        Schema(
            dense=(), sparse=("a",), kinds=("text",), format="csv", separator="\x01", quote="'", escape='"'
        ),
        Schema(dense=(), sparse=("a",), kinds=("text",), format="parquet", missing=("NULL",)),
        Schema(dense=(), sparse=("a",), kinds=("text",), format="csv", above=0.0),
        Schema(dense=(), sparse=("a",), kinds=("text",), format="csv", positive=("True", "é", 1, -0.5)),
        Schema(
            dense=(),
            sparse=("tags", "words", "hour", "day"),
            kinds=("text", "integer", "hour", "weekday"),
            format="parquet",
            lists=(("tags", ","), ("words", " | ")),
            brackets=("tags",),
            weight_separators=(("tags", ":"), ("words", "::")),
            time_formats=(("sample_time", "%d/%m/%y"), ("hour", "%H"), ("day", "%d/%b/%Y:%I %p %z")),
            time=("ts", ""),
            zone="America/Argentina/Buenos_Aires",
        ),
    ],
)
def test_what_is_written_is_read_again(schema: Schema) -> None:
    assert read_schema(write_schema(schema)) == schema
    assert read_schema(write_schema(schema, dict.fromkeys(schema.sparse, "a note"))) == schema


def test_a_feature_may_say_more_than_its_kind() -> None:
    schema = read_schema("""
format = "csv"
[dense]
price = "float"
depth = { kind = "float", transform = "none" }
ids = { kind = "integer", name = "how many" }
[sparse]
site = "hex8"
user = { kind = "integer", min_count = 4, embedding_dim = 8, name = "member" }
[sparse.tags]
kind = "text"
list = true
separator = ";"
""")
    assert (schema.dense, schema.sparse) == (("price", "depth", "how many"), ("site", "member", "tags"))
    assert (schema.floats, schema.untransformed) == (("price", "depth"), ("depth",))
    assert (schema.lists, schema.one_hot) == ((("tags", ";"),), ("site", "member"))
    assert (schema.min_counts, schema.embedding_dims) == ((("member", 4),), (("member", 8),))
    assert schema.columns(has_label=True) == ("price", "depth", "ids", "site", "user", "tags")
    assert read_schema(write_schema(schema)) == schema


def test_settings_of_later_stages_are_no_part_of_the_fingerprint() -> None:
    plain = GOOD.replace('"text"', '{ kind = "text" }')
    more = GOOD.replace('"text"', '{ kind = "text", min_count = 3, embedding_dim = 4 }')
    assert schema_identity(GOOD) == schema_identity(plain) == schema_identity(more)
    assert write_schema(read_schema(more).without_settings) == write_schema(read_schema(GOOD))
    for other in ("list = true", "name = 'b'"):
        changed = GOOD.replace('"text"', f'{{ kind = "text", {other} }}')
        assert schema_identity(changed) not in (schema_identity(GOOD), schema_identity(more))


def test_fingerprints_are_those_that_they_always_were() -> None:
    labels = '["click", { column = "rating", above = 3 }]'
    labelled = f'format = "csv"\nlabels = {labels}\n[sparse]\na = "text"\n'
    assert schema_identity(TEXT) == "toml:3ee57c171518ed147cc3c129a12760f4"
    assert schema_identity(labelled) == "toml:6e45c15161f3e5f96a8c83717b5c9bc0"
    assert schema_identity(labelled.replace("above = 3", 'kind = "float"')) != schema_identity(labelled)


@pytest.mark.parametrize(
    "keys",
    [
        "quote = '\"'",
        "skip = 0",
        "trim = false",
        "missing = []",
        'encoding = "UTF8"',
        'encoding = "utf-8-sig"',
        'separator = ","',
    ],
)
def test_a_key_that_says_what_holds_anyway_changes_no_fingerprint(keys: str) -> None:
    assert schema_identity(keys + TEXT) == schema_identity(TEXT)
    assert write_schema(read_schema(keys + TEXT)) == write_schema(read_schema(TEXT))


def test_keys_of_the_text_are_written_above_the_columns() -> None:
    keys = 'missing = ["NULL"]\nencoding = "latin-1"\ntrim = true\nquote = "none"\ncomment = "#"\nskip = 1\n'
    text = write_schema(read_schema(keys + TEXT))
    wanted = ['quote = "none"', "skip = 1", 'comment = "#"', "trim = true", 'encoding = "iso8859-1"']
    assert text.splitlines()[3:9] == [*wanted, 'missing = ["NULL"]']
    assert schema_identity(keys + TEXT) != schema_identity(TEXT)


def test_a_form_of_the_values_changes_the_fingerprint() -> None:
    forms = [
        '{ kind = "text", list = true }',
        '{ kind = "text", list = "brackets" }',
        '{ kind = "text", list = true, separator = "," }',
        '{ kind = "text", list = true, weight_separator = ":" }',
        '{ kind = "hour" }',
        '{ kind = "hour", format = "%H" }',
    ]
    texts = [GOOD, *(GOOD.replace('"text"', form) for form in forms)]
    labels = (
        '"b"',
        '{ column = "b", above = 0 }',
        '{ column = "b", above = 1 }',
        '{ column = "b", positive = [1] }',
    )
    texts += [GOOD.replace("[", f"label = {label}\n[") for label in labels]
    texts.append(GOOD.replace("[", 'zone = "Asia/Shanghai"\n['))
    assert len({schema_identity(text) for text in texts}) == len(texts)
    for one, other in (
        ('label = { column = "b" }', 'label = "b"'),
        ('label = { column = "b", above = 3 }', 'label = { column = "b", above = 3.0 }'),
        ('label = { column = "b", positive = [1.0] }', 'label = { column = "b", positive = [1] }'),
        ('zone = "UTC"', "dense = []"),
    ):
        assert schema_identity(GOOD.replace("[", f"{one}\n[")) == schema_identity(
            GOOD.replace("[", f"{other}\n[")
        )


CSV = 'format = "csv"\n'
GOOD = CSV + '[sparse]\na = "text"'


def _with(keys: str) -> str:
    return GOOD.replace('"text"', f'{{ kind = "text", {keys} }}')


KINDS_WANTED = "column 'a' must be one of integer, unsigned, text, hex8, hour, weekday,"
MISTAKES = {
    "= 3": "is not TOML: Invalid statement (at line 1, column 1)",
    GOOD.replace("a =", "a = \na ="): "is not TOML: Invalid value (at line 3, column 5)",
    GOOD + '\na = "hex8"': "is not TOML: Cannot overwrite a value",
    '[sparse]\na = "text"': "format must be one of csv, parquet, arrow, orc, json, got None",
    GOOD.replace("csv", "tsv"): "format must be one of csv, parquet, arrow, orc, json, got 'tsv'",
    GOOD.replace("[", 'lable = "b"\n['): "unknown key 'lable' (did you mean 'label'?)",
    GOOD.replace("[", "label = 3\n["): 'label must be "NAME", { column = "NAME", above = 3 } or',
    GOOD.replace("[", "label = { above = 3 }\n["): "label must be",
    GOOD.replace("[", 'label = { column = "b", above = 3, positive = [1] }\n['): "label must be",
    GOOD.replace("[", 'label = { column = "b", more = 3 }\n['): "label must be",
    GOOD.replace("[", 'label = { column = "b", above = nan }\n['): "above of label must be a number, got nan",
    GOOD.replace("[", 'label = { column = "b", positive = [] }\n['): "positive of label must be a list of",
    GOOD.replace("[", 'label = { column = "b", positive = [true] }\n['): "texts and numbers, got [True]",
    GOOD.replace("[", "zone = 8\n["): 'zone must be the name of a time zone such as "Asia/Shanghai", got 8',
    GOOD.replace("[", 'zone = "../UTC"\n['): "zone must be the name of a time zone",
    GOOD.replace(
        "[", 'dense = "b"\n['
    ): "dense must be a list of column names, or a table of column = kind, got 'b'",
    GOOD.replace("[", 'dense = ["a"]\n['): "column 'a' is named twice",
    GOOD.replace("[", 'dense = ["b", "b"]\n['): "column 'b' is named twice",
    GOOD.replace("[", 'label = "a"\n['): "column 'a' is named twice",
    GOOD.replace("[", 'dense = ["label"]\n['): "a feature cannot be called 'label'",
    CSV: "sparse names no column",
    CSV + "sparse = 3": "sparse must be a table",
    GOOD.replace('"text"', '{ kind = "text", unit = "s" }'): "unit is for the kinds hour and weekday",
    GOOD.replace('"text"', '{ kind = "hour", unit = "h" }'): "unit must be one of s, ms, us, ns, got 'h'",
    GOOD.replace('"text"', '{ kind = "hour", list = true }'): "a list cannot have the kind hour",
    GOOD.replace('"text"', '[{ kind = "hour" }, { kind = "weekday" }]'): "feature 'a' is named twice",
    GOOD.replace('"text"', '[{ kind = "hour" }, "text"]'): f"{KINDS_WANTED} got [{{'kind': 'hour'}}, 'text']",
    GOOD.replace("text", "txt"): f"{KINDS_WANTED} got 'txt' (did you mean 'text'?)",
    GOOD.replace('"text"', "3"): f"{KINDS_WANTED} got 3",
    GOOD.replace("text", "list"): f"{KINDS_WANTED} got 'list'"
    ' (a list-valued column is written column = { kind = "text", list = true })',
    GOOD.replace('"text"', '["text"]'): f"{KINDS_WANTED} got ['text']",
    _with("lists = true"): "column 'a' has an unknown key 'lists' (did you mean 'list'?)",
    _with("list = 1"): "column 'a': list must be true, false or \"brackets\", got 1",
    _with("min_count = 0"): "column 'a': min_count must be a whole number, 1 or more, got 0",
    _with("min_count = true"): "column 'a': min_count must be a whole number, 1 or more, got True",
    _with("embedding_dim = 70000"): "column 'a': embedding_dim must be a whole number from 1 to 65536",
    _with("name = 3"): "column 'a': name must be a name, got 3",
    _with('name = "ids"'): "a feature cannot be called 'ids': shards have a column of that name",
    _with('separator = ";"'): "column 'a': separator is for a list",
    _with('weight_separator = ":"'): "column 'a': weight_separator is for a list",
    _with('list = true, separator = ";;;;;"'): "column 'a': separator must be 1 to 4 characters, none of",
    _with('list = true, separator = ""'): "column 'a': separator must be 1 to 4 characters",
    _with(
        'list = true, separator = ":", weight_separator = ":"'
    ): "separator and weight_separator are the same",
    _with('format = "%H"'): "column 'a': format is for the kinds hour and weekday",
    GOOD.replace('"text"', '{ kind = "hour", format = "%Q" }'): "format has an unknown code '%Q' (use %Y %y",
    GOOD.replace('"text"', '{ kind = "hour", format = "%H%" }'): "format has an unknown code '%'",
    GOOD.replace('"text"', '{ kind = "hour", format = "%Y-%m-%d" }'): "lacks %H or %I, which the kind hour",
    GOOD.replace('"text"', '{ kind = "weekday", format = "%d %Y" }'): "lacks %m or %b or %B, which the kind",
    GOOD.replace('"text"', '{ kind = "hour", unit = "s", format = "%H" }'): "a unit or a format, not both",
    _with('name = "b"') + '\nb = "text"': "feature 'b' is named twice",
    GOOD.replace('"text"', "{ list = true }"): f"{KINDS_WANTED} got None",
    GOOD + '\n[dense]\nb = "text"': "column 'b' must be one of integer, float, got 'text'",
    GOOD
    + '\n[dense]\nb = { kind = "float", transform = "log" }': "column 'b': transform must be log1p or none",
    GOOD + '\n[dense]\nb = { kind = "float", min_count = 2 }': "column 'b' has an unknown key 'min_count'",
    GOOD + '\n[dense]\na = "float"': "column 'a' is named twice",
    GOOD.replace(
        "a =", "is_hot ="
    ): "a feature cannot be called 'is_hot': shards have a column of that name (rename it",
    GOOD.replace("[", 'dense = ["dense"]\n['): "a feature cannot be called 'dense'",
    GOOD.replace("a =", '"../a" ='): "'../a' cannot be the name of a file",
    _with('name = "a.texts"'): "a feature cannot be called 'a.texts': the texts of a feature are in a file",
    _with('name = "file0000-a"'): "a feature cannot be called 'file0000-a'",
    _with('name = "dense.bottom.0.weight"'): "weights of dense layers begin with 'dense.' (rename",
    GOOD.replace("[", f"dense = {'1' * 10_000}\n["): "has a number that is too long: Exceeds the limit",
    GOOD.replace("a =", '"" ='): "'' cannot be the name of a file",
    GOOD.replace("[", 'separator = ";;;;;"\n['): "separator must be 1 to 4 characters of a line, got ';;;;;'",
    GOOD.replace("[", "separator = '\"'\n["): "quote and separator share the character '\"'",
    GOOD.replace("[", 'separator = ""\n['): "separator must be 1 to 4 characters of a line, got ''",
    GOOD.replace("[", 'separator = ";\\n"\n['): "separator must be 1 to 4 characters of a line, got ';\\n'",
    GOOD.replace("[", 'quote = "||"\n['): "quote must be one ASCII character, or none, got '||'",
    GOOD.replace("[", 'quote = "»"\n['): "quote must be one ASCII character, or none, got '»'",
    GOOD.replace("[", 'quote = ","\n['): "quote and separator share the character ','",
    GOOD.replace("[", "escape = '\"'\n["): "share the character '\"' (a quote that is doubled inside quotes",
    GOOD.replace("[", 'escape = ","\n['): "escape and separator share the character ','",
    GOOD.replace("[", "escape = true\n["): "escape must be one ASCII character, got True",
    GOOD.replace("[", "skip = -1\n["): "skip must be 0 to 10000 lines, got -1",
    GOOD.replace("[", "skip = true\n["): "skip must be 0 to 10000 lines, got True",
    GOOD.replace("[", 'comment = ""\n['): "comment must be 1 to 8 characters of a line, got ''",
    GOOD.replace("[", "trim = 1\n["): "trim must be true or false, got 1",
    GOOD.replace("[", 'missing = "NULL"\n['): "missing must be a list of texts, such as",
    GOOD.replace("[", 'missing = [""]\n['): "missing must be a list of texts",
    GOOD.replace("[", 'missing = ["-", "-"]\n['): "missing: text '-' is named twice",
    GOOD.replace("[", "encoding = 8\n["): "encoding must be the name of an encoding, got 8",
    **{
        GOOD.replace("[", f'encoding = "{name}"\n['): "encoding must be the name of an encoding of text, got "
        f"{name!r} (such as utf-8, utf-16, latin-1 or gbk)"
        for name in ("utf-9", "base64", "rot13", "idna", "punycode", "unicode_escape", "undefined", "zip")
    },
    GOOD.replace('csv"', 'parquet"\nquote = "none"'): "quote is for csv, and the format is parquet",
    GOOD.replace("[", "header = 1\n["): "header must be true or false, got 1",
    GOOD.replace("[", "header = false\n["): "a log with header = false needs fields",
    GOOD.replace("[", 'fields = ["a"]\n['): "fields is for a log with header = false",
    GOOD.replace("[", 'header = false\nfields = ["ab"]\n['): "fields has no column 'a'",
    GOOD.replace("[", 'header = false\nfields = ["a", "a"]\n['): "column 'a' is named twice",
    GOOD.replace("[", "header = false\nfields = [1]\n["): "fields must be a list of column names, got [1]",
    GOOD.replace('csv"', 'parquet"\nheader = true'): "header is for csv, and the format is parquet",
}


def test_a_column_of_several_features_is_read_once() -> None:
    text = (
        'format = "csv"\n[sparse]\nts = [{ kind = "hour" }, { kind = "weekday", name = "day" }]\nb = "text"\n'
    )
    schema = read_schema(text)
    assert (schema.sparse, schema.columns(has_label=True)) == (("ts", "day", "b"), ("ts", "b"))
    assert write_schema(schema, {"ts": "times"}).splitlines()[-2:] == [
        'ts = [{ kind = "hour" }, { kind = "weekday", name = "day" }]  # times',
        'b = "text"',
    ]


@pytest.mark.parametrize("text", MISTAKES)
def test_mistakes_are_one_clear_line(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_schema(text, "my.toml")
    shown = str(caught.value) + (f" ({caught.value.hint})" if caught.value.hint else "")
    assert "\n" not in str(caught.value) and str(caught.value).startswith("my.toml")
    assert MISTAKES[text] in shown


def test_a_file_counts_by_what_it_says(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    other = tmp_path / "b.toml"
    path.write_text(TEXT)
    other.write_text(TEXT.replace("a comment", "another").replace('["age"]', '[ "age" ]'))
    assert setting_of(str(path)) == setting_of(str(other))
    assert schema_of(setting_of(str(path))) == WANTED
    assert is_fingerprint(schema_identity(TEXT)) and schema_identity(TEXT) == schema_identity(
        setting_of(str(other))
    )
    assert schema_identity(TEXT) != schema_identity(TEXT.replace("hex8", "text"))


@pytest.mark.parametrize("name", KNOWN_LOGS)
def test_built_in_schemas_go_by_their_names(name: str) -> None:
    assert setting_of(name) == name == schema_identity(name)
    assert schema_of(name) is schema_named(name)
    assert not is_fingerprint(name)


def test_the_text_of_a_schema_is_one() -> None:
    text = write_schema(schema_named("avazu"))
    assert setting_of(f"# a comment\n{text}") == text
    with pytest.raises(ConfigError, match="the schema: format must be one of csv"):
        setting_of("format = 3\n")


def test_schemas_that_are_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no schema 'movielens'") as caught:
        setting_of("movielens")
    assert caught.value.hint == f"use one of {', '.join(KNOWN_LOGS)}, or a .toml file"
    with pytest.raises(ConfigError, match=r"none\.toml cannot be read: No such file"):
        setting_of(str(tmp_path / "none.toml"))
    (tmp_path / "latin.toml").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="is not UTF-8"):
        setting_of(str(tmp_path / "latin.toml"))
    (tmp_path / "bad.toml").write_text("format = 3")
    with pytest.raises(ConfigError, match=r"bad\.toml: format must be one of csv"):
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


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_a_column_whose_name_looks_the_same_is_named_with_its_characters(form: Any) -> None:
    names = [normalize(each, "catégorie") for each in (form, "NFD" if form == "NFC" else "NFC")]
    with pytest.raises(ConfigError) as caught:
        find_columns(names[:1], ["user", names[1]], "log.csv")
    hint = str(caught.value.hint)
    assert hint.endswith(", which looks the same: write it so") and hint.isascii()
    written = re.search(r'it has (".*"),', hint)
    assert written is not None and tomllib.loads(f"a = {written[1]}") == {"a": names[1]}


@pytest.mark.parametrize(
    ("fields", "hint"),
    [
        (["\t".join(["1", *"7" * 39])], "--schema criteo-kaggle"),
        (["\t".join("7" * 39)], "--schema criteo-kaggle"),
        (["1", "secret", "a b"], "its first line has 3 fields and no names; `hotset schema LOG` proposes"),
        (["1;secret"], "its first line has 1 field and no names"),
    ],
)
def test_values_of_a_log_without_names_are_not_printed(fields: list[str], hint: str) -> None:
    with pytest.raises(ConfigError, match="log has no column 'label'") as caught:
        find_columns(["label"], fields, "log")
    assert hint in str(caught.value.hint) and not {"secret", "7"} & set(str(caught.value.hint).split())


@pytest.mark.parametrize(
    "value",
    [
        "3",
        "{}",
        '""',
        '{ column = "ts", unt = "s" }',
        '{ column = "ts", unit = "h" }',
        '{ column = "ts", unit = "s", format = "%Y%m%d" }',
        '{ column = "ts", format = "%H" }',
        '{ column = "ts", format = "" }',
    ],
)
def test_a_wrong_entry_of_time_is_refused(value: str) -> None:
    text = f'format = "csv"\ndense = []\ntime = {value}\n[sparse]\na = "text"\n'
    with pytest.raises(
        ConfigError, match=r"^the schema: (time must be|time: format|(unit|format) of time must be)"
    ):
        read_schema(text)


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
