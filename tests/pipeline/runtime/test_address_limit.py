"""A limit of addresses is told in a line before libraries end the process at it."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from hotset.pipeline.errors import SystemFaultError
from hotset.pipeline.runtime import address_limit as module
from hotset.pipeline.runtime.address_limit import addresses_left, lost_library, refuse_few_addresses
from hotset.pipeline.sizes import MIB


@pytest.fixture(autouse=True)
def _two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "usable_cores", lambda: 2)


def limit(monkeypatch: pytest.MonkeyPatch, most: int, taken: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (most, most))
    monkeypatch.setattr(module, "_addresses_taken", lambda: taken)


def test_without_a_limit_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, resource.RLIM_INFINITY, 1 << 50)
    assert addresses_left() is None and lost_library("hotset stats", OSError("lost")) is None
    refuse_few_addresses("hotset stats")


@pytest.mark.parametrize(("taken", "left"), [(0, 700 * MIB), (500 * MIB, 200 * MIB), (900 * MIB, 0)])
def test_what_is_left_is_what_is_not_taken(taken: int, left: int, monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, 700 * MIB, taken)
    assert addresses_left() == left


def test_the_limit_in_the_hint_would_do(monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, 600 * MIB, 490 * MIB)
    with pytest.raises(SystemFaultError) as caught:
        refuse_few_addresses("hotset verify")
    assert str(caught.value) == (
        "hotset verify: `ulimit -v` leaves 110 MiB of addresses beside the libraries, want 192 MiB"
    )
    assert caught.value.hint == "raise the limit: `ulimit -v 714752`"
    limit(monkeypatch, 714752 * 1024, 490 * MIB)
    refuse_few_addresses("hotset verify")
    with pytest.raises(SystemFaultError):
        refuse_few_addresses("training", more_bytes=32 * MIB)


def test_more_cores_want_more(monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, 700 * MIB, 490 * MIB)
    refuse_few_addresses("hotset verify")
    monkeypatch.setattr(module, "usable_cores", lambda: 4)
    with pytest.raises(SystemFaultError, match="want 224 MiB"):
        refuse_few_addresses("hotset verify")


def test_a_library_is_lost_to_the_limit_only_where_little_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, 1000 * MIB, 100 * MIB)
    assert lost_library("hotset stats", OSError("lost")) is None
    limit(monkeypatch, 400 * MIB, 311 * MIB)
    fault = lost_library("hotset stats", OSError("libx.so is lost\nand more"))
    assert str(fault) == "hotset stats: a library cannot be loaded with 89 MiB of addresses: libx.so is lost"


def test_this_process_has_addresses() -> None:
    assert module._addresses_taken() > 10 * MIB


@pytest.mark.slow
@pytest.mark.parametrize("command", ["verify", "train"])
@pytest.mark.parametrize("mebibytes", [200, 400, 560, 620, 1000, 1350, 1550])
def test_every_limit_leads_to_a_line_or_to_the_end(mebibytes: int, command: str, tmp_path: Path) -> None:
    arguments = [command, str(tmp_path), *(["--out", str(tmp_path / "run")] if command == "train" else [])]
    line = f"ulimit -v {mebibytes * 1024}; exec {sys.executable} -m hotset {' '.join(arguments)}"
    ran = subprocess.run(["bash", "-c", line], capture_output=True, text=True, env=os.environ, check=False)
    # The folder is empty, so that what has room enough ends with a line, too.
    assert ran.returncode == 1 and "Traceback" not in ran.stderr
    assert sum(each.startswith("error: ") for each in ran.stderr.splitlines()) == 1
