"""The program of docs/from-torchrec.md trains on any number of ranks, and what it is refused."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import hotset
from hotset.pipeline.errors import ConfigError
from hotset.pipeline.generate.generate import GenerateConfig, generate
from hotset.tests.support.processes.torchrec_ranks import RankPool, run_program
from hotset.tests.support.real_torchrec import needs_torchrec, torchrec_or_skip
from hotset.tests.support.shard_factory import write_shards
from hotset.train.data.shards import ShardSet

ROOT = Path(hotset.__file__).resolve().parent


def program() -> str:
    """The only program of the page."""
    (found,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/from-torchrec.md").read_text(), re.DOTALL)
    return str(found)


def run_on(pool: RankPool, num_ranks: int, folder: Path, text: str) -> tuple[str, dict[str, torch.Tensor]]:
    """Run the program in a folder; return what it prints and the tables at its end."""
    keep = 'data.rank or torch.save(tables, "tables.pt")'
    printed = pool.call(num_ranks, folder, run_program, folder, f"{text}\n{keep}")
    return "".join(printed), torch.load(folder / "tables.pt")


@needs_torchrec
@pytest.mark.slow
def test_the_program_of_the_page_trains_on_one_rank_as_on_two(tmp_path: Path, rank_pool: RankPool) -> None:
    assert len(program().splitlines()) <= 40
    generate(GenerateConfig(samples=2000, seed=1, scale=300), tmp_path / "log.tsv", workers=1)
    data = hotset.preprocess(tmp_path / "log.tsv", tmp_path / "DIR", batch_size=128, workers=1)
    shards = hotset.Shards(data)
    hot = shards.tables["num_hot"].to_list()
    # Whatever is replicated, and on however many ranks: sums are only in other orders. A large eps leaves
    # steps small whose gradients are next to 0.
    other = (
        program().replace("eps=1e-8", "eps=1e-4").replace("lr=0.02)\nothers", "lr=0.02, eps=1e-4)\nothers")
    )
    assert other.count("eps=1e-4") == 2
    replicated = other.replace('RankData("DIR")', f'RankData("DIR", num_replicated={hot})')
    found = [run_on(rank_pool, 1, tmp_path, replicated), run_on(rank_pool, 2, tmp_path, other)]
    losses = [float(text.split("log loss ")[1].split(",")[0]) for text, _ in found]
    assert abs(losses[0] - losses[1]) < 1e-3 and losses[0] < 0.7
    tables = found[0][1]
    assert tables.keys() == set(shards.tables["table"])
    for name, rows in found[1][1].items():
        torch.testing.assert_close(rows, tables[name], rtol=0, atol=1e-4)
    # Rows that are looked up are trained, replicated ones and others.
    counts = shards.counts("C3")
    moved = (tables["C3"] != initial_rows(data, "C3")).any(dim=1).numpy()
    np.testing.assert_array_equal(moved, counts > 0)


def initial_rows(data: Path, name: str) -> torch.Tensor:
    """The values that rows have before the first step."""
    rows = hotset.nn.Embeddings(data, placement="all-fast", seed=0).state_dict()
    return torch.as_tensor(rows[f"{name}.weight"])


class Sharded(torch.nn.Module):
    """What `RankData` asks of a sharded model, around a net with a layer that is called cold, too."""

    def __init__(self, rows: Any) -> None:
        super().__init__()
        self.embeddings = hotset.torchrec.HotColdEmbeddings(rows)
        self.tower = torch.nn.ModuleDict({"cold": torch.nn.Linear(2, 1)})
        self.fused_optimizer = SimpleNamespace(params={})

    @property
    def module(self) -> torch.nn.Module:
        return self


def test_a_plain_optimizer_steps_all_but_sharded_rows(tmp_path: Path) -> None:
    torchrec_or_skip()
    shards = ShardSet.open(write_shards(tmp_path / "shards"))
    rows = hotset.torchrec.ReplicatedRows(shards.tables, tuple(table.num_hot for table in shards.tables))
    data = object.__new__(hotset.torchrec.RankData)
    net = Sharded(rows)
    shapes = [tuple(each.shape) for each in data.plain_parameters(net)]
    assert shapes == [tuple(each.shape) for each in net.embeddings.hot.values()] + [(1, 2), (1,)]
    with pytest.raises(ConfigError, match="one of sgd, adagrad, rowwise-adagrad, got 'adam'"):
        data.shard(net, lr=0.1, optimizer="adam")  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_process_group_is_needed(tmp_path: Path) -> None:
    torchrec_or_skip()
    with pytest.raises(ConfigError, match="needs a process group: call torch"):
        hotset.torchrec.RankData(tmp_path)
