"""Ranks that do not write the folder of a run take part where rank 0 collects rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from hotset.train.run_folder.rank_folder import RankFolder
from hotset.train.run_folder.weights_file import Weights


def test_every_part_is_asked_for_in_the_order_of_the_file_and_nothing_is_written(tmp_path: Path) -> None:
    asked: list[str] = []

    def parts_of(name: str) -> Iterator[torch.Tensor]:
        for number in range(2):
            asked.append(f"{name}{number}")
            yield torch.empty(0, 2)

    folder = RankFolder(tmp_path / "run")
    weights = Weights({"b": (4, 2), "a": (4, 2)}, lambda _: torch.empty(0), parts_of)
    folder.save_weights(weights)
    folder.save_states(weights)
    folder.log({"step": 1})
    folder.save_batch_order([0])
    folder.finish({})
    assert asked == ["a0", "a1", "b0", "b1"] * 2
    assert list(tmp_path.iterdir()) == []
