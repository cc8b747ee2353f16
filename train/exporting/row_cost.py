"""Measures what a number type of rows costs: the scores of a run with its rows packed, beside its own."""

from __future__ import annotations

from pathlib import Path

import torch

from ...pipeline.runtime.tasks import ProgressCallback, silent
from ...pipeline.schema.schema import DENSE_PREFIX
from ..evaluate import evaluate
from ..metrics.scores import Scores
from ..model_building.user_code import ModelSource
from ..options.export_config import RowType
from ..run_folder.run_reader import read_weights
from ..run_folder.weights_file import Weights
from .row_types import pack_rows, unpack_rows


def score_packed_rows(
    run: Path,
    data: Path,
    row_type: RowType,
    *,
    model_source: ModelSource | None = None,
    progress: ProgressCallback = silent,
) -> tuple[Scores, Scores]:
    """Evaluate a run on shards twice; return the scores of packed rows, and those of the rows as trained.

    Args:
        progress: told the samples of both.

    Raises:
        HotsetError: as `evaluate`.
    """
    weights = read_weights(run)

    def packed(name: str) -> torch.Tensor:
        tensor = weights[name]
        return tensor if name.startswith(DENSE_PREFIX) else unpack_rows(*pack_rows(tensor, row_type))

    dtypes = {name: weights.dtype(name) for name in weights}
    changed = Weights(weights.shapes, packed, dtypes=dtypes)

    def first(done: int, total: int) -> None:
        progress("evaluate", done, 2 * total)

    def second(done: int, total: int) -> None:
        progress("evaluate", total + done, 2 * total)

    return (
        evaluate(run, data, model_source=model_source, weights=changed, progress=first),
        evaluate(run, data, model_source=model_source, progress=second),
    )
