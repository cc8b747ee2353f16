"""``count``: columns/ -> counts/, how often each category is looked up in the training part.

Exact. Memory holds the distinct categories, never the log. Which samples are for evaluation is decided
here, once: the last ones in log order, so that nothing of them reaches counts, ids or the hot set.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from ..stats.counting import CategoryCounter
from .arrow_files import read_batch, validity_of, values_of, write_batch
from .errors import ConfigError
from .manifest import Manifest
from .output import Output, input_of
from .tasks import ProgressCallback, num_workers, run_tasks, silent

VERSION = 1
_GROUPS_PER_WORKER = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class CountConfig:
    """What a run of the count stage may vary; part of its fingerprint."""

    eval_fraction: float = 1 / 7
    """Share of the log, its last samples, kept for evaluation, in [0, 1). 0 keeps none."""

    eval_files: int = 0
    """Keep this many of the last raw files for evaluation instead of a fraction of the log."""

    def __post_init__(self) -> None:
        if not 0 <= self.eval_fraction < 1:
            raise ConfigError(f"eval_fraction must be in [0, 1), got {self.eval_fraction}")
        if self.eval_files < 0:
            raise ConfigError(f"eval_files must be 0 or more, got {self.eval_files}")


def count(
    config: CountConfig,
    columns: Manifest,
    out: Path,
    *,
    workers: int = 0,
    progress: ProgressCallback = silent,
) -> Manifest:
    """columns -> counts: occurrences of each category of each table in the training samples.

    Reads:   ``*.arrow``, C* uint32 with nulls
    Writes:  ``{feature}.arrow``: category uint32, ascending; count int64, look-ups
    """
    output = Output.begin("count", VERSION, config, [input_of(columns)], out)
    if isinstance(output, Manifest):
        return output
    num_train = num_training_samples(config, columns)
    names = [name for name in columns.totals["sparse"] if not output.has(f"{name}.arrow")]
    num_groups = _GROUPS_PER_WORKER * num_workers(workers)
    groups = [group for first in range(num_groups) if (group := names[first::num_groups])]
    total, done = num_train * len(names), 0

    def advance(num_lookups: int) -> None:
        nonlocal done
        done += num_lookups
        progress("count", done, total)

    tasks = ((group, num_train, columns, output, advance) for group in groups)
    for _ in run_tasks(_count_group, tasks, workers=workers):
        pass
    tables = [
        {
            "name": name,
            "num_categories": output.finished[f"{name}.arrow"].num_samples,
            "num_missing": output.finished[f"{name}.arrow"].facts["num_missing"],
        }
        for name in columns.totals["sparse"]
    ]
    totals = {"num_samples": columns.num_samples, "num_train_samples": num_train, "tables": tables}
    return output.seal(totals)


def _count_group(
    names: list[str],
    num_train: int,
    columns: Manifest,
    output: Output,
    advance: Callable[[int], None],
) -> None:
    counters = {name: CategoryCounter() for name in names}
    left, kind = num_train, pa.uint32()
    for entry in columns.files:
        num_samples = min(entry.num_samples, left)
        if num_samples == 0:
            continue
        left -= num_samples
        batch = read_batch(columns, entry)
        for name, counter in counters.items():
            array = batch.column(name)
            kind = array.type
            categories = values_of(array, kind.to_pandas_dtype())[:num_samples]
            counter.add(categories, validity_of(array))
        advance(num_samples * len(names))
    for name, counter in counters.items():
        categories, counts = counter.result()
        written = {"category": pa.array(categories).cast(kind), "count": pa.array(counts)}
        name += ".arrow"
        with output.writing(name, categories.shape[0], num_missing=counter.num_missing) as path:
            write_batch(path, written)


def num_training_samples(config: CountConfig, columns: Manifest) -> int:
    """Samples of the training part, the first ones of the log.

    Raises:
        ConfigError: every file, or every sample, would be for evaluation.
    """
    num_samples = columns.num_samples
    files = [file["samples"] for file in columns.totals["raw"]]
    if config.eval_files:
        num_train = sum(files[: -config.eval_files])
        wish = f"eval_files {config.eval_files} of {len(files)} files"
    else:
        num_train = num_samples - int(num_samples * config.eval_fraction)
        wish = f"eval_fraction {config.eval_fraction} of {num_samples} samples"
    if num_train == 0:
        raise ConfigError(f"{wish} leaves no sample to train on")
    return int(num_train)
