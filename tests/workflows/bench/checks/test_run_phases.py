"""The folder of a killed run says what the run was doing."""

from __future__ import annotations

from pathlib import Path

from hotset.workflows.bench.checks.run_phases import newest_checkpoint, phase_of


def test_the_phase_of_a_killed_run_is_read_from_its_folder(tmp_path: Path) -> None:
    assert phase_of(tmp_path) == "start"
    (tmp_path / "config.json").write_text("{}")
    assert phase_of(tmp_path) == "steps"
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "rows-000000003-00000.safetensors").write_bytes(b"half")
    assert phase_of(tmp_path) == "checkpoint"
    (tmp_path / ".weights.safetensors.tmp").write_bytes(b"")
    assert phase_of(tmp_path) == "end"


def test_a_later_checkpoint_has_a_later_name(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path) == ""
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    (folder / "dense-000000003.safetensors").touch()
    assert newest_checkpoint(tmp_path) == ""
    names = ["step-000000003.json", "step-000000012.json"]
    for name in names:
        (folder / name).touch()
        assert newest_checkpoint(tmp_path) == name
