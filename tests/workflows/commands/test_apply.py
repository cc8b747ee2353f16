"""``hotset apply`` as a user types it.

Tests `changed_rows`, too.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from hotset.pipeline.runtime.tasks import ProgressCallback
from hotset.tests.support.scored_runs import run_on_lists
from hotset.train.serving import changes as module
from hotset.train.serving.changes import TableChanges
from hotset.workflows.cli import main

COUNTS = [TableChanges("site", 1200, 3, 40, 2), TableChanges("tags", 7, 0, 0, 0)]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, ...]]:
    """What changes were applied, without a program, which takes seconds to record."""
    found: list[tuple[Path, ...]] = []

    def applied(*folders: Path, progress: ProgressCallback) -> list[TableChanges]:
        found.append(folders)
        return COUNTS

    monkeypatch.setattr(module, "apply_changes", applied)
    return found


def test_the_folders_go_where_they_are_named(
    calls: list[tuple[Path, ...]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "new")
    assert main(["apply", "changes", "--to", "exported", "--out", out]) == 0
    assert calls == [(Path("exported"), Path("changes"), Path(out))]
    shown = capsys.readouterr()
    assert shown.err == f"wrote {out}\n"
    lines = [line.split() for line in shown.out.splitlines()]
    assert lines == [
        ["table", "rows", "new", "changed", "gone"],
        ["site", "1,200", "3", "40", "2"],
        ["tags", "7", "0", "0", "0"],
    ]
    assert main(["apply", "changes", "--to", "exported", "--out", out, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["out"] == out
    assert found["changes"]["site"] == {"num_rows": 1200, "num_new": 3, "num_changed": 40, "num_gone": 2}


def test_a_folder_is_never_written_over(
    calls: list[tuple[Path, ...]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["apply", "changes", "--to", "exported", "--out", str(tmp_path)]) == 1
    assert f"error: {tmp_path} exists\n" in capsys.readouterr().err and calls == []
    with pytest.raises(SystemExit) as stopped:
        main(["apply", str(tmp_path / "a"), "--to", str(tmp_path / "b")])
    assert stopped.value.code == 2 and calls == []
    assert "error: --out is missing" in capsys.readouterr().err


def test_folders_that_are_no_exports_are_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["apply", str(tmp_path / "none"), "--to", str(tmp_path), "--out", str(tmp_path / "new")]
    assert main(command) == 1
    (line, *hints) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {tmp_path}") and all(each.startswith("hint: ") for each in hints)
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_an_exported_run_is_led_to_the_next_from_the_command_line(tmp_path: Path) -> None:
    runs = {}
    for seed, name in enumerate(("old", "new")):
        (tmp_path / name).mkdir()
        runs[name] = run_on_lists(tmp_path / name, seed=seed).run
        assert main(["export", str(runs[name]), "--out", str(tmp_path / f"{name}-exported")]) == 0
    command: list[Any] = ["export", runs["new"], "--since", runs["old"], "--out", tmp_path / "changes"]
    assert main([str(word) for word in command]) == 0
    command = ["apply", tmp_path / "changes", "--to", tmp_path / "old-exported", "--out", tmp_path / "led"]
    assert main([str(word) for word in command]) == 0
    found, wanted = (
        torch.export.load(tmp_path / name / "model.pt2").state_dict for name in ("led", "new-exported")
    )
    assert all(torch.equal(found[name], wanted[name]) for name in wanted) and found.keys() == wanted.keys()
