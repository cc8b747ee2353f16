"""The states of all optimizers of a finished run, for the runs that start from it."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ..checkpoints.dense_state import dense_state, is_optimizer_state
from ..run_folder.weights_file import Weights
from ..trainer import Trainer
from .saved_run import table_sizes


def optimizer_states(trainer: Trainer) -> Weights:
    """The states of all optimizers of a finished run: of rows by table, of dense layers as a checkpoint names
    them. Those of tables are read one at a time while they are written."""
    dense = {
        name: tensor
        for name, tensor in dense_state(trainer.model, trainer.dense_optimizers).items()
        if is_optimizer_state(name)
    }
    shapes: dict[str, tuple[int, ...]] = {name: tuple(tensor.shape) for name, tensor in dense.items()}
    # A table has states only where the optimizer of its rows keeps any.
    sizes = table_sizes(trainer.shards, trainer.config)
    numbers = {}
    for number, table in enumerate(trainer.shards.tables):
        width = sizes.widths[number][1]
        if width:
            shapes[table.name] = (table.num_rows, width)
            numbers[table.name] = number

    # The last step has written all rows back, so tables are read where they live.
    def tensor_of(name: str) -> torch.Tensor:
        return dense[name] if name in dense else trainer.embeddings.table(numbers[name], state=True)

    def parts_of(name: str) -> Iterator[torch.Tensor]:
        if name in dense:
            return iter([dense[name]])
        return trainer.embeddings.table_parts(numbers[name], state=True)

    return Weights(shapes, tensor_of, parts_of)
