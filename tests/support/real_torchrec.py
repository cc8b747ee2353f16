"""The real TorchRec in tests, which are skipped where it is not installed."""

from __future__ import annotations

import importlib
import logging
import warnings
from importlib.util import find_spec
from typing import Any

import pytest

needs_torchrec = pytest.mark.skipif(
    find_spec("torchrec") is None, reason="TorchRec is not installed: scripts/install-torchrec installs it"
)


def torchrec_or_skip() -> Any:
    """Import TorchRec, whose own warnings and messages are no errors of ours, or skip the test."""
    if find_spec("torchrec") is None:
        pytest.skip("TorchRec is not installed: scripts/install-torchrec installs it")
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module("torchrec")
    finally:
        logging.disable(before)
