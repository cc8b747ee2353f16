"""A mapped file that is cut short ends the command with a line that names it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_READ = """
import os, sys
from pathlib import Path
import numpy as np
from hotset.pipeline.formats.arrow_files import map_batch, write_batch
from hotset.workflows.cli import main

main(["verify", "nothing"])
path = Path(os.fsdecode(bytes.fromhex(sys.argv[1])))
write_batch(path, {"a": np.arange(40_000)})
values = np.asarray(map_batch(path).column("a"))
assert values.sum() == 40_000 * 39_999 // 2
os.truncate(path, 4096)
print(values.sum())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_command_whose_mapped_file_is_cut_short_ends_with_a_line(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"a \xff.arrow")
    ended = subprocess.run(
        [sys.executable, "-c", _READ, os.fsencode(path).hex()], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    *_, error, hint = ended.stderr.splitlines()
    shown = str(path).encode(errors="backslashreplace").decode()
    assert error == f"error: {shown} was cut short by another program while it was in use"
    assert hint.startswith("hint: leave the folder alone")
    assert "Traceback" not in ended.stderr
