"""A page in headless Chromium: what it shows, says on its console, and asks the network for."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--virtual-time-budget=20000",
)
"""Chromium as root, on a machine without a display or a network."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The state of a page after it was opened."""

    dom: str
    """The document after its scripts ran."""
    console: list[str]
    """Lines that scripts wrote, errors among them."""
    requests: list[str]
    """Addresses that the page asked for."""


def open_page(page: Path, scratch: Path, *, dark: bool = False) -> Seen:
    """Load a page from disk; skips the test where there is no Chromium."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium: scripts/install-system-packages installs it")
    log = scratch / "network.json"
    own = [f"--user-data-dir={scratch / 'profile'}", f"--log-net-log={log}", "--enable-logging=stderr"]
    theme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    command = [chromium, *_FLAGS, *own, theme, "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    console = re.findall(r"CONSOLE[^\]]*\] (.*)", done.stderr)
    return Seen(done.stdout, console, _requests(log))


def _requests(log: Path) -> list[str]:
    """Addresses in Chromium's network log; what Chromium asks for by itself has no origin."""
    found = json.loads(log.read_text())
    (started,) = (
        n for name, n in found["constants"]["logEventTypes"].items() if name == "URL_REQUEST_START_JOB"
    )
    asked = [event.get("params", {}) for event in found["events"] if event["type"] == started]
    return [
        params["url"] for params in asked if params.get("initiator") != "not an origin" and "url" in params
    ]
