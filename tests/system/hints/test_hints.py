"""Every hint in the code is followed by a case: one of `hints.txt`, or a test of this folder."""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hotset.tests.support.hints import (
    ROOT,
    Shell,
    claimed,
    interrupt,
    names_in,
    places,
    reached,
    table,
    write_map,
)
from hotset.tests.support.resealed import write_manifest


def test_every_hint_is_followed_by_a_case() -> None:
    found = claimed()
    lacking = {place.name for place in places().values() if place.needs_case} - set(found)
    assert sorted(lacking) == []
    assert sorted(set(found) - places().keys()) == []
    assert [name for name, number in Counter(found).items() if number > 1] == []


@pytest.mark.slow
@pytest.mark.parametrize("case", table(), ids=lambda case: case.splitlines()[0])
def test_a_hint_helps(case: str, shell: Shell) -> None:
    named, *lines = case.splitlines()
    words: dict[str, str] = {}
    for line in lines:
        text = line
        for name, word in words.items():
            text = text.replace(f"<{name}>", word)
        mark, _, command = text.partition(" ")
        if text.startswith("$ hotset "):
            shell.works(*shlex.split(command)[1:])
        elif mark == "$":
            subprocess.run(["bash", "-c", command], check=True)
        elif mark == "!":
            shell.refused(*shlex.split(command)[1:])
        elif mark == "hint:":
            wanted = re.escape(line.removeprefix("hint: ")).replace(r"\.\.\.", ".*?")
            found = re.fullmatch(re.sub(r"<(\w+)>", r"(?P<\1>\\S+)", wanted), shell.hint)
            assert found, shell.hint
            words |= found.groupdict()
            # An extra that a hint names can be installed.
            for extra in re.findall(r"pip install .*\[(\w+)\]", shell.hint):
                assert f"\n{extra} = [" in (ROOT / "pyproject.toml").read_text()
        else:
            WORDS[mark](shell, *command.split(" ", 2)) if command else WORDS[mark](shell)
    if "::" in named:
        assert set(names_in(named)) <= reached, f"not reached: {sorted(set(names_in(named)) - reached)}"


# The words of a case.


def obey(shell: Shell, *words: str) -> None:
    """Run all commands of the last hint, with words of the user's in place of those in capitals."""
    shell.obey(shell.hint, **dict(each.split("=") for word in words for each in word.split()))


def reverse(_: Shell, path: str) -> None:
    """Turn the bytes of a file round, so that its size stays."""
    Path(path).write_bytes(Path(path).read_bytes()[::-1])


def flip(_: Shell, path: str, position: str) -> None:
    """Change a bit of a file."""
    content = bytearray(Path(path).read_bytes())
    content[int(position)] ^= 1
    Path(path).write_bytes(content)


def edit(_: Shell, path: str, key: str, value: str = "") -> None:
    """Set a value of a JSON file; without one it is removed."""
    parts = json.loads(Path(path).read_text())
    _set(parts, key, value)
    Path(path).write_text(json.dumps(parts))


def seal(_: Shell, folder: str, key: str, value: str = "") -> None:
    """Set a value of a manifest, and seal it again."""
    parts = json.loads(Path(folder, "manifest.json").read_text())
    _set(parts, key, value)
    write_manifest(Path(folder), parts)


def _set(parts: Any, key: str, value: str) -> None:
    *outer, last = [int(each) if each.lstrip("-").isdigit() else each for each in key.split(".")]
    for name in outer:
        parts = parts[name]
    if value:
        parts[last] = json.loads(value)
    else:
        del parts[last]


def patch(shell: Shell, target: str, value: str, result: str = "") -> None:
    """Replace what is named: by a value, a function that returns it (->), or one that raises it (!)."""
    if value == "->":
        shell.patch.setattr(target, lambda *_: eval(result))
    elif value.startswith("!"):
        shell.patch.setattr(target, _raising(f"{value} {result}"[1:]))
    else:
        shell.patch.setattr(target, ast.literal_eval(value))


def _raising(error: str) -> Callable[..., None]:
    def fail(*_: object, **__: object) -> None:
        raise eval(error)

    return fail


def restore(shell: Shell) -> None:
    """Undo `patch` and `without`."""
    shell.patch.undo()


def without(shell: Shell, module: str) -> None:
    """Let a module be missing."""
    shell.patch.setitem(sys.modules, module, None)


def parquet(_: Shell, kind: str) -> None:
    """Write mine.parquet and its schema: with a list-valued feature, or without a label."""
    rows = [{"y": number % 2, "a": number, "tags": [number, number + 1]} for number in range(40)]
    schema = 'label = "y"\n[sparse]\na = "integer"\ntags = { kind = "integer", list = true }\n'
    if kind == "unlabeled":
        rows, schema = [{"a": row["a"]} for row in rows], '[sparse]\na = "integer"\n'
    pq.write_table(pa.Table.from_pylist(rows), "mine.parquet")
    Path("mine.toml").write_text(f'format = "parquet"\n{schema}')


def recipe(shell: Shell, path: str) -> None:
    """Write the recipe that the command prints."""
    Path(path).write_text(shell.works("recipe"))


WORDS: dict[str, Callable[..., None]] = {
    each.__name__: each
    for each in (obey, reverse, flip, edit, seal, patch, restore, without, parquet, recipe)
} | {"interrupt": lambda _, out: interrupt(out), "map": lambda _, old, new: write_map(old, new)}
