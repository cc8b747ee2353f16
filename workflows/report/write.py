"""Write the report as an HTML page, and series as Parquet."""

from __future__ import annotations

import errno
import io
import os
import resource
from pathlib import Path
from typing import Any

from ...pipeline.errors import (
    GIB,
    ConfigError,
    HotsetError,
    MissingExtraError,
    SystemFaultError,
    format_byte_size,
    install_hint,
)
from ...pipeline.folders.disk import whole_file
from ...pipeline.runtime.tasks import Resources
from ...stats.step_times import Machine
from ...train.advice import AdviceConfig, advise
from .tables import series_frames

_ADDRESSES_OF_ENGINE = 80 * GIB
"""Address space with which the drawing package's engine starts; with 64 GiB it does not."""


def check_html(out: Path) -> None:
    """Check that a report can be drawn and written.

    Raises:
        MissingExtraError: the packages that draw are not installed.
        SystemFaultError: the process may have too few addresses for them.
        ConfigError: ``out`` is a folder, or its folder does not exist.
    """
    # The engine that draws reserves addresses, few of which become memory, and ends the process without them.
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    if most != resource.RLIM_INFINITY and most < _ADDRESSES_OF_ENGINE:
        raise SystemFaultError(
            f"--html needs {format_byte_size(_ADDRESSES_OF_ENGINE)} of addresses to draw, "
            f"`ulimit -v` allows {format_byte_size(most)}",
            hint="`ulimit -v unlimited`, or --json, which draws nothing",
        )
    try:
        import altair
        import vl_convert
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"--html needs {error.name}", hint=install_hint("report")) from error
    del altair, vl_convert
    if out.is_dir() or not out.parent.is_dir():
        fault = "it is a directory" if out.is_dir() else f"{out.parent} is not a directory"
        raise ConfigError(f"{out} cannot be written: {fault}", hint="give another --html FILE")


def check_parquet(folder: Path) -> None:
    """Raise ConfigError where no folder for Parquet files can be created."""
    above = next((path for path in (folder, *folder.parents) if os.path.lexists(path)), folder)
    if not above.is_dir():
        raise _not_written(folder, f"{above} is not a directory")
    if not os.access(above, os.W_OK | os.X_OK):
        raise _not_written(folder, os.strerror(errno.EACCES))


def _not_written(folder: Path, reason: str) -> ConfigError:
    return ConfigError(f"{folder} cannot be written: {reason}", hint="give another --parquet FOLDER")


def write_html(folder: Path, statistics: dict[str, Any], out: Path, *, workers: int = 0) -> None:
    """Write the report of ``folder`` to ``out`` atomically.

    Args:
        folder: the preprocessed folder that the statistics describe.
        statistics: every series, as `frequency_statistics` returns them.
        out: replaced where it exists.

    Raises:
        HotsetError: it cannot be written, or the folder has no training samples.
    """
    # Altair and vl-convert come with an extra, without which the other outputs of `hotset stats` still work.
    from .page import build_page, render

    if not statistics["num_train_samples"]:
        raise ConfigError(
            f"{folder} has no training samples to report on", hint="report on the folder its ids come from"
        )
    try:
        advice = advise(folder, AdviceConfig(), Machine(), Resources(workers=workers))
    except HotsetError:  # no preset fits such a log; the report does without predictions
        advice = None
    page = render(build_page(folder, statistics, advice))
    with whole_file(out, overwrite=True, option="--html") as file:
        # Names of files that are not UTF-8 hold surrogates, which a page cannot.
        file.write(page.encode(errors="replace"))


def write_parquet(statistics: dict[str, Any], folder: Path) -> list[Path]:
    """Write every series as ``folder/NAME.parquet``; return the files.

    Raises:
        HotsetError: they cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _not_written(folder, error.strerror or str(error)) from error
    written = []
    for name, frame in series_frames(statistics):
        # Polars raises special errors if a disk is full, and takes no path that is not UTF-8.
        content = io.BytesIO()
        frame.write_parquet(content)
        path = folder / f"{name}.parquet"
        with whole_file(path, overwrite=True, option="--parquet") as file:
            file.write(content.getbuffer())
        written.append(path)
    return written
