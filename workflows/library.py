"""Preprocessing and statistics from Python: `hotset.preprocess` and `hotset.statistics`.

They do what the commands of these names do, with paths as text and settings by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Unpack

from ..pipeline.errors import ByteSize, ConfigError, HotsetError, local_path, plain_value
from ..pipeline.formats.user_data import Frame, check_frame, write_frame
from ..pipeline.preprocess import PreprocessConfig
from ..pipeline.preprocess import preprocess as _preprocess
from ..pipeline.runtime.progress import shown_progress
from ..pipeline.runtime.tasks import ProgressCallback, Resources
from ..pipeline.schema.schema_file import schema_of, setting_of
from ..pipeline.settings import Bytes, PreprocessSettings, Whole, refuse_unknown
from ..pipeline.statistics.frequencies import QUICK, frequency_statistics
from ..train.config import TrainConfig
from .recipes import default_settings

if TYPE_CHECKING:
    import polars as pl


_STAGES = ("ingest", "count", "rank", "split", "pack")


def preprocess(
    raw: str | Path | Frame | pl.LazyFrame | Sequence[str | Path | Frame],
    out: str | Path,
    *,
    schema: str | Path | None = None,
    like: str | Path | None = None,
    extend: bool = False,
    trust_names: bool = False,
    workers: Whole = 0,
    memory: Bytes | None = None,
    scratch: str | Path | None = None,
    progress: bool | ProgressCallback = True,
    **settings: Unpack[PreprocessSettings],
) -> Path:
    """Turn raw logs into shards, as ``hotset preprocess`` does.

    An interrupted call is resumed by the same one.

    Args:
        raw: logs in order: paths of Criteo's text, CSV or Parquet, plain, gzip or zstd; or frames of Polars,
            pandas or Arrow, or dictionaries, which need a schema of Parquet.
        out: folder of all stages.
        schema: a built-in name, a ``.toml`` file, or its text. By default the one of the folder that is
            extended or that ``like`` names, or criteo-kaggle.
        like: folder whose vocabulary provides the ids; all samples are for evaluation then.
        extend: where ``out`` was made from the first of these logs, read only the others. Its settings are
            the defaults.
        trust_names: take logs that were read before as unchanged where name and size are the same.
        workers: number of workers; 0 takes every core.
        memory: cap of memory, in bytes or as text ("2GiB").
        scratch: folder for large temporary files, where memory holds less than a third of the samples; by
            default inside ``out``.
        progress: whether to show it on stderr: a bar on a terminal or in a notebook, a line every half minute
            in a log. Or a function, called as ``progress(stage, done, total)``.
        settings: options of the stages by name that differ from the defaults of the schema, such as
            ``hot_bytes="64MiB"``, ``batch_size=4096``, ``eval_fraction=0.1`` and ``min_count=4``.

    Returns:
        ``out``, for `hotset.fit`.

    Raises:
        HotsetError: what is wrong with the logs or the settings, in one line.

    Example:
        ``data = hotset.preprocess("train.tsv", "data", hot_bytes="64MiB", batch_size=4096)``
    """
    logs: Sequence[Any] = raw if isinstance(raw, list | tuple) else [raw]
    recipe = default_settings(
        None if schema is None else setting_of(str(schema)),
        None if like is None else local_path(like),
        local_path(out) if extend else None,
    )
    memory_bytes = plain_value("memory", (ByteSize, type(None)), memory)
    num_workers = plain_value("workers", (int,), workers)
    config = _with_settings(recipe, settings)
    with shown_progress(progress) as shown, _files_of(logs, config.ingest.schema, local_path(out)) as files:
        _preprocess(
            files,
            config,
            local_path(out),
            Resources(num_workers, memory_bytes, shown, None if scratch is None else local_path(scratch)),
            like=None if like is None else local_path(like),
            extend=extend,
            trust_names=trust_names,
        )
    return local_path(out)


@contextmanager
def _files_of(logs: Sequence[Any], schema: str, out: Path) -> Iterator[list[Path]]:
    """Yield the paths of logs; frames are in files next to ``out`` meanwhile, whose names stay the same."""
    is_frame = [not isinstance(log, str | Path) for log in logs]
    for log in logs:
        if not isinstance(log, str | Path):
            check_frame(log)
    if any(is_frame) and schema_of(schema).format != "parquet":
        raise ConfigError(
            f"a frame needs a schema of Parquet, and this one is of {schema_of(schema).format}",
            hint='write a .toml file that begins with format = "parquet"',
        )
    with ExitStack() as stack:
        if any(is_frame):
            out.parent.mkdir(parents=True, exist_ok=True)
            folder = Path(stack.enter_context(TemporaryDirectory(prefix=".hotset-", dir=out.parent)))
        files = []
        for number, log in enumerate(logs):
            files.append(folder / f"frame{number:04}.parquet" if is_frame[number] else local_path(log))
            if is_frame[number]:
                write_frame(log, files[-1])
        try:
            yield files
        except HotsetError as error:
            # Nobody but this function knows the files of frames.
            for number, path in enumerate(files):
                if is_frame[number]:
                    error.args = (str(error).replace(str(path), f"frame {number}"),)
            raise


class Statistics(dict[str, "pl.DataFrame"]):
    """Frames by series, shown in a line or, in a notebook, one below the other."""

    def __repr__(self) -> str:
        """Return the names of the series and their rows."""
        return f"Statistics({', '.join(f'{name}: {frame.height:,} rows' for name, frame in self.items())})"

    def _repr_html_(self) -> str:
        """Return the frames as a notebook shows them."""
        return "".join(f"<h4>{escape(name)}</h4>{frame._repr_html_()}" for name, frame in self.items())


def statistics(
    data: str | Path, *, series: Sequence[str] | None = None, workers: Whole = 0, progress: bool = True
) -> Statistics:
    """Return how lookups are distributed over rows, as ``hotset stats`` finds it.

    Args:
        data: folder that `preprocess` wrote.
        series: names of series, see ``hotset stats --help``; by default those that take no time.
        workers: number of workers; 0 takes every core.
        progress: whether to show it, as `preprocess` does.

    Returns:
        Frames by series: ``features`` has a row for each table, ``budgets`` one for each budget of memory. A
        series of several tables is named ``SERIES_TABLE``.

    Raises:
        HotsetError: the folder is unfinished or damaged, or there is no such series.

    Example:
        ``print(hotset.statistics("data")["features"])``
    """
    # Tables import what prints, which a machine that only takes timings may lack.
    from .report.tables import series_frames

    # A text is one name, not a list of letters.
    wanted = QUICK if series is None else [series] if isinstance(series, str) else series
    with shown_progress(progress) as shown:
        resources = Resources(plain_value("workers", (int,), workers), progress=shown)
        found = frequency_statistics(local_path(data), resources, series=wanted)
    return Statistics(series_frames(found))


def _with_settings(recipe: PreprocessConfig, settings: Mapping[str, Any]) -> PreprocessConfig:
    """Return ``recipe`` with some fields of its stages set by name."""
    refuse_unknown(
        settings, PreprocessSettings.__annotations__, {"fit": [own.name for own in fields(TrainConfig)]}
    )
    names = {field.name: stage for stage in _STAGES for field in fields(getattr(recipe, stage))}
    chosen: dict[str, dict[str, Any]] = {stage: {} for stage in _STAGES}
    for name, value in settings.items():
        chosen[names[name]][name] = value
    changed = {stage: replace(getattr(recipe, stage), **chosen[stage]) for stage in _STAGES if chosen[stage]}
    return replace(recipe, **changed)
