"""Writes what facebookresearch/dlrm's loader reads instead of Criteo's Kaggle log: three ``.npz`` files.

With ``--data-set=kaggle --raw-data-file=OUT/train.txt`` and the first of them as ``--processed-data-file`` it
finds all (dlrm_data_pytorch.py, class CriteoDataset). That program takes log(x + 1) of dense values itself,
and has seven "days": the last one is its test part, cut in two halves, and the others are trained on.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...pipeline.export import LABEL, NamedBatches, Split, refuse_other_logs
from ...pipeline.folders.disk import new_folder
from ...pipeline.folders.manifest import Manifest
from ...pipeline.folders.partial import write_errors_explained
from ...pipeline.formats.arrow_files import values_of

PROCESSED = "kaggleAdDisplayChallenge_processed.npz"
DAY_COUNT = "train_day_count.npz"
FEATURE_COUNT = "train_fea_count.npz"
_TRAINING_DAYS = 6
_SPLITS: tuple[Split, ...] = ("train", "valid", "test")


def export_dlrm(shards: Manifest, out: Path, workers: int = 0) -> None:
    """Write the samples of ``shards`` into the new folder ``out``, as `write_dlrm_files` does."""
    batches = NamedBatches(shards, first_id=0)
    refuse_other_logs(batches, "dlrm-npz")
    with new_folder(out) as folder, write_errors_explained(folder):
        for _ in write_dlrm_files(batches, folder, workers):
            pass


def write_dlrm_files(shards: NamedBatches, out: Path, workers: int = 0) -> Iterator[int]:
    """Write the three files into ``out``; yields the samples of each batch as it is written.

    ``X_cat`` (N, F) int32, ``X_int`` (N, K) float32, ``y`` (N,) int32 and ``counts`` (F,) int32, the rows of
    each table. X_int is exp(x) - 1 of the transformed dense values x, of which the loader takes the
    logarithm again; for values that were counts these are the counts, within float32's rounding.
    """
    num_samples = sum(shards.num_samples.values())
    dense = shards.totals.dense
    tables = shards.totals.tables
    counts_F = np.array([table.num_rows for table in tables], np.int32)
    # The arrays may be larger than memory, so each is appended to the archive in a separate pass.
    with zipfile.ZipFile(out / PROCESSED, "w", allowZip64=True) as archive:
        for batch, file in _array(shards, archive, workers, "X_cat", (num_samples, len(tables)), np.int32):
            file.write(_matrix(batch, [table.name for table in tables], np.int32).tobytes())
            yield len(batch)
        for batch, file in _array(shards, archive, workers, "X_int", (num_samples, len(dense)), np.float32):
            file.write(_counts_of(_matrix(batch, list(dense), np.float32)).tobytes())
        for batch, file in _array(shards, archive, workers, "y", (num_samples,), np.int32):
            file.write(values_of(batch.column(LABEL), np.int8).astype(np.int32).tobytes())
        with archive.open("counts.npy", "w") as file:
            np.lib.format.write_array(file, counts_F)
    # The loader expects the sizes in separate files.
    np.savez(out / FEATURE_COUNT, counts=counts_F)
    np.savez(out / DAY_COUNT, total_per_file=_days(shards.num_samples["train"], num_samples))


def _array(
    shards: NamedBatches,
    archive: zipfile.ZipFile,
    workers: int,
    name: str,
    shape: tuple[int, ...],
    dtype: Any,
) -> Iterator[tuple[Any, Any]]:
    """Yield each batch with the open member ``name`` of the archive, whose header is written."""
    with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
        header = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for split in _SPLITS:
            for batch in shards.batches(split, workers):
                yield batch, file


def _matrix(batch: Any, names: list[str], dtype: Any) -> NDArray[Any]:
    columns = [values_of(batch.column(name), dtype) for name in names]
    return np.stack(columns, axis=1) if columns else np.empty((len(batch), 0), dtype)


def _counts_of(dense_BK: NDArray[np.float32]) -> NDArray[np.float32]:
    found: NDArray[np.float32] = np.expm1(dense_BK.astype(np.float64)).astype(np.float32)
    return found


def _days(num_train: int, num_samples: int) -> NDArray[np.int64]:
    """Return samples of each "day": the training part in six, then the evaluation part."""
    step = math.ceil(num_train / _TRAINING_DAYS)
    ends = [min(step * day, num_train) for day in range(_TRAINING_DAYS + 1)]
    return np.array([*np.diff(ends), num_samples - num_train], np.int64)
