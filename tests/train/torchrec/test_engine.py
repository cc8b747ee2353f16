"""Runs on TorchRec equal those of hotset's own engine, on any number of ranks, with and without replicas.

The real library trains here, without a GPU, on gloo ranks in other processes. Also `embeddings`,
which such runs are made of.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

import hotset.nn
from hotset.pipeline.errors import ByteSize, ConfigError, MissingExtraError
from hotset.tests.support.processes.made_up_tensorboard import written
from hotset.tests.support.processes.torchrec_ranks import FAULTS, Case, RankPool, losses_of, settings_of
from hotset.tests.support.real_torchrec import needs_torchrec, torchrec_or_skip
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.train import run
from hotset.train.advice import MachineSpeeds
from hotset.train.build_embeddings import resolve
from hotset.train.build_model import UserModel
from hotset.train.config_parts import CheckpointSettings
from hotset.train.data.shards import ShardSet
from hotset.train.rows.backends import RowOptimizer
from hotset.train.run_folder.weights import open_weights
from hotset.workflows.bench import ranks

PREPROCESS = ("preprocess", "-q", "--batch-size", "64", "--hot-bytes", "64KiB", "--workers", "1")
LOGS = {
    "one-hot": ShardSpec(
        num_rows=(30, 400, 900),
        num_hot=(30, 20, 40),
        # Parts of ranks are unequal, and the last mixed batch has one sample.
        batch_size=63,
        num_hot_only=640,
        num_mixed=694,
        num_evaluation=2000,
        embedding_dim=8,
        skew=1.3,
    ),
    "lists": ShardSpec(
        num_rows=(50, 40, 300, 300, 9, 20),
        num_hot=(5, 10, 20, 20, 4, 20),
        multi_hot=(1, 3, 4),
        same_table=(3,),
        table_dims=(4, 8, 8, 4, 8),
        embedding_dim=8,
        batch_size=64,
        num_hot_only=640,
        num_mixed=706,
        num_evaluation=2000,
        skew=1.3,
        has_weight=True,
    ),
}
SGD = {"embedding_optimizer": "sgd", "embedding_lr": 1.0, "dense_optimizer": "sgd"}
ADAGRAD = {"embedding_optimizer": "adagrad", "dense_optimizer": "adam", "dense_dtype": "fp32"}
ADAM = {"embedding_optimizer": "adam", "embedding_lr": 0.001, "dense_optimizer": "sgd"}
ROWWISE = {"embedding_optimizer": "rowwise-adagrad", "dense_optimizer": "adagrad"}
RUNS: dict[str, tuple[str, dict[str, Any], float]] = {
    "sgd": ("one-hot", SGD, 1e-5),
    "adagrad": ("one-hot", ADAGRAD, 1e-4),
    "lists by sgd": (
        "lists",
        SGD | {"pooling": "mean", "model": "dcnv2", "dropout": 0.3, "evaluate_every": 4},
        1e-5,
    ),
    "lists by rows": ("lists", ROWWISE | {"model": f"{__name__}:Net", "clip_gradient": 0.01}, 1e-4),
    "adam": ("one-hot", ADAM, 1e-4),
    "rates": ("one-hot", ADAGRAD | {"lr_schedule": "cosine", "warmup_steps": 5, "final_lr": 0.1}, 1e-4),
}
"""Log, settings, and the largest difference of the first 20 losses."""


SPEEDS = MachineSpeeds(
    device_name="",
    threads=1,
    flops=1.0,
    host_rows_per_second=1.0,
    row_bytes=1,
    link_bytes_per_second=1.0,
    loader_samples_per_second=1.0,
    exchange_seconds=1.0,
)


class Net(torch.nn.Module):
    """A user's module, which leaves out a layer and tables of a dimension, and needs a sample of numbers."""

    def __init__(self, inputs: hotset.ModelInputs) -> None:
        super().__init__()
        self.last = torch.nn.LazyLinear(1)
        self.unused = torch.nn.Linear(3, 3)

    def forward(self, dense: torch.Tensor, embeddings: dict[str, torch.Tensor]) -> torch.Tensor:
        if not dense.shape[0]:
            raise ValueError("a batch of no samples")
        used = [emb_BD for emb_BD in embeddings.values() if emb_BD.shape[1] == 8]
        dense = dense / dense.norm(dim=1, keepdim=True)
        found: torch.Tensor = self.last(torch.cat([dense, *used], dim=1)).squeeze(1)
        return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The logs, and the runs of hotset's own engine."""
    folder = tmp_path_factory.mktemp("torchrec")
    for name, spec in LOGS.items():
        write_shards(folder / name, spec)
    for name, (log, settings, _) in RUNS.items():
        config = settings_of(settings | {"placement": "all-fast"})
        off = run.RunOptions(checkpoints=CheckpointSettings(checkpoint_every="off"))
        run.train(folder / log, config, folder / f"{name}-hotset", off)
    return folder


def case_of(folder: Path, name: str, split: str, num_ranks: int, **more: Any) -> Case:
    """Return the case of a run whose tables are ``split``, ``sharded`` or ``replicated``."""
    log, settings, _ = RUNS[name]
    shards = ShardSet.open(folder / log)
    counts = {
        "split": [table.num_hot for table in shards.tables],
        "sharded": [0] * len(shards.tables),
        "replicated": [table.num_rows for table in shards.tables],
    }
    out = folder / f"{name}-{split}-{num_ranks}-{more.get('fault', '')}"
    case = {"shards": folder / log, "out": out, "config": settings, "num_replicated": counts[split]}
    return case | {"made_up": settings["embedding_optimizer"] == "adam"} | more


def check_equal(own: Path, found: Path, most: float) -> None:
    """Compare a run with that of hotset's own engine: losses, scores, and weights."""
    pairs = list(zip(losses_of(own), losses_of(found), strict=True))
    assert max(abs(one - other) for one, other in pairs[:20]) < most
    aucs = [json.loads((out / "summary.json").read_text())["auc"] for out in (own, found)]
    assert abs(aucs[0] - aucs[1]) < 5e-4
    wanted, weights = open_weights(own / "weights.safetensors"), open_weights(found / "weights.safetensors")
    assert wanted.keys() == weights.keys()
    for name in wanted:
        np.testing.assert_allclose(weights[name].numpy(), wanted[name].numpy(), atol=20 * most, rtol=0)


@needs_torchrec
@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_runs_equal_those_of_hotset(folder: Path, rank_pool: RankPool, num_ranks: int) -> None:
    names = [("sgd", "sharded"), ("lists by rows", "split")]
    if num_ranks == 2:
        names = [(name, "split") for name in RUNS] + [("sgd", "sharded"), ("lists by sgd", "replicated")]
    if num_ranks == 3:
        names += [("adam", "replicated")]
    cases = [case_of(folder, name, split, num_ranks) for name, split in names]
    assert rank_pool.run(num_ranks, cases) == [""] * num_ranks
    for (name, _), case in zip(names, cases, strict=True):
        check_equal(folder / f"{name}-hotset", Path(case["out"]), RUNS[name][2])
        seen = json.loads(Path(f"{case['out']}.seen.json").read_text())
        is_split = any(is_hot_only for is_hot_only, *_ in seen)
        assert is_split == (0 not in case["num_replicated"] or name != "sgd")
        # In hot-only steps nobody calls the sharded tables.
        for is_hot_only, counts, _ in seen:
            assert ("alltoall_base" in counts) == (not is_hot_only and num_ranks > 1), counts


@needs_torchrec
@pytest.mark.slow
def test_the_pipeline_changes_no_bit(tmp_path: Path, rank_pool: RankPool) -> None:
    spec = replace(LOGS["lists"], num_hot_only=192, num_mixed=770, num_evaluation=200)
    shards = write_shards(tmp_path / "shards", spec)
    num_replicated = [table.num_hot for table in ShardSet.open(shards).tables]
    config = RUNS["lists by sgd"][1] | {"evaluate_every": 7, "max_steps": 15, "log_every": 4}
    piped: Case = {"shards": shards, "num_replicated": num_replicated, "config": config, "every": 3}
    # The clock interrupts each step, when the next batch is on its way.
    clocked = piped | {"config": config | {"evaluate_every": "0.0001s"}}
    cases = {"piped": piped, "clocked": clocked, "plain": piped | {"is_plain": True}}
    runs = [case | {"out": tmp_path / name} for name, case in cases.items()]
    assert rank_pool.run(2, runs) == ["", ""]
    for name in ("piped", "clocked"):
        found, wanted = ((tmp_path / each / "weights.safetensors").read_bytes() for each in (name, "plain"))
        assert found == wanted
        assert losses_of(tmp_path / name) == losses_of(tmp_path / "plain")
    piped_steps, plain_steps = (
        json.loads((tmp_path / f"{name}.seen.json").read_text()) for name in ("piped", "plain")
    )
    assert not any(num_left for *_, num_left in plain_steps)
    kinds = [is_hot_only for is_hot_only, *_ in piped_steps]
    lengths = []
    for step, (is_hot_only, _, num_left) in enumerate(piped_steps):
        # Runs end before a hot-only step and an evaluation; no rank knows that all can read the second batch.
        left = 0 if step == 0 or is_hot_only else [*kinds[step + 1 : step // 7 * 7 + 7], True].index(True)
        assert num_left == min(2, left), step
        lengths.append(left)
    assert max(lengths) > 2 and any(kinds)


@needs_torchrec
@pytest.mark.slow
def test_the_run_folder_is_an_ordinary_one(
    tmp_path: Path, rank_pool: RankPool, capsys: pytest.CaptureFixture[str]
) -> None:
    # A GPU's image, which runs another test of this file, lacks what the command prints with.
    from hotset.workflows.cli import main

    log, data, out = (str(tmp_path / name) for name in ("log.tsv", "data", "run"))
    assert main(["generate", "-q", "--samples", "3000", "--seed", "1", "--scale", "1000", "--out", log]) == 0
    assert main([*PREPROCESS, log, "--out", data]) == 0
    settings = {"embedding_optimizer": "adagrad", "hot_bytes": 2000, "evaluate_every": 20}
    case = {"shards": data, "out": out, "config": settings, "tensorboard": str(tmp_path / "board")}
    # Where messages take a second, all rows are replicated.
    SPEEDS.write(tmp_path / "speeds.json")
    quick = {"shards": data, "out": tmp_path / "quick", "speeds": tmp_path / "speeds.json"}
    quick["config"] = {"embedding_optimizer": "adagrad", "max_steps": 3, "hot_bytes": 1 << 30}
    assert rank_pool.run(2, [case, quick]) == ["", ""]
    assert [each[0] for each in json.loads((tmp_path / "quick.seen.json").read_text())] == [True] * 3
    losses = [line.split()[2] for line in written(tmp_path / "board") if " train/loss " in line]
    assert losses == [f"{loss}" for loss in losses_of(Path(out))] and len(losses) > 20
    assert sum(" evaluation/auc " in line for line in written(tmp_path / "board")) >= 2
    assert main(["verify", "-q", out, "--shards", data]) == 0
    assert main(["evaluate", "-q", out, data]) == 0
    assert main(["predict", "-q", out, log, "--out", str(tmp_path / "scores.parquet")]) == 0
    assert main(["export", "-q", out, "--out", str(tmp_path / "model")]) == 0
    capsys.readouterr()
    assert main(["runs", str(tmp_path)]) == 0
    assert re.search(r"^run +0\.\d{4} ", capsys.readouterr().out, re.MULTILINE)
    assert json.loads((tmp_path / "run/summary.json").read_text())["placement"] == "torchrec"


@needs_torchrec
@pytest.mark.slow
def test_a_version_that_cannot_prefetch_is_noticed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    torchrec_or_skip()
    from torchrec.distributed import train_pipeline

    from hotset.train.torchrec.engine import Caches, pipeline_class

    assert pipeline_class(is_prefetched=True) is train_pipeline.PrefetchTrainPipelineSparseDist
    monkeypatch.delattr(train_pipeline, "PrefetchTrainPipelineSparseDist")
    assert pipeline_class(is_prefetched=True) is None
    assert pipeline_class(is_prefetched=False) is train_pipeline.TrainPipelineSparseDist
    # Its tables fetch rows themselves.
    tables = torch.nn.Module()
    tables.register_buffer("lxu_cache_weights", torch.zeros(2, 4))
    embeddings: Any = SimpleNamespace(cold={"4": SimpleNamespace(_lookups=[tables])})
    assert not Caches(embeddings, torch.device("cpu")).prefetched
    assert "each step fetches its own into the cache" in caplog.text


@needs_torchrec
@pytest.mark.slow
def test_prefetching_into_caches_changes_no_bit(tmp_path: Path, rank_pool: RankPool) -> None:
    """The pipeline of TorchRec for GPUs, whose streams and tables are made up here."""
    spec = replace(LOGS["lists"], num_hot_only=192, num_mixed=770, num_evaluation=200)
    shards = write_shards(tmp_path / "shards", spec)
    num_replicated = [table.num_hot for table in ShardSet.open(shards).tables]
    config = ADAM | {"pooling": "mean", "evaluate_every": 7, "max_steps": 15}
    cached: Case = {"shards": shards, "num_replicated": num_replicated, "config": config, "every": 4}
    cached |= {"made_up": True, "is_cached": True}
    clocked = cached | {"config": config | {"evaluate_every": "0.0001s"}}
    cases = {"plain": cached | {"is_plain": True}, "prefetched": cached, "clocked": clocked}
    for num_ranks, names in ((2, cases), (1, ("plain", "prefetched"))):
        outs = {name: tmp_path / f"{name}-{num_ranks}" for name in names}
        errors = rank_pool.run(num_ranks, [cases[name] | {"out": out} for name, out in outs.items()])
        assert errors == [""] * num_ranks
        for name, out in outs.items():
            assert losses_of(out) == losses_of(outs["plain"])
            weights = [each / "weights.safetensors" for each in (out, outs["plain"])]
            assert weights[0].read_bytes() == weights[1].read_bytes()
            facts = json.loads(Path(f"{out}.tables.json").read_text())
            assert (facts["num_prefetched"] > 0) == (name != "plain") and not facts["num_locked"], facts
        seen = json.loads(Path(f"{outs['prefetched']}.seen.json").read_text())
        assert max(num_left for *_, num_left in seen) == 2 and any(is_hot_only for is_hot_only, *_ in seen)
        # Nothing is on its way in hot-only steps, nor where an evaluation comes.
        assert not any(left for step, (is_hot, _, left) in enumerate(seen, 1) if is_hot or step % 7 == 0)


@pytest.fixture(scope="module")
def lists(tmp_path_factory: pytest.TempPathFactory) -> ShardSet:
    return ShardSet.open(write_shards(tmp_path_factory.mktemp("lists") / "shards", LOGS["lists"]))


@pytest.mark.parametrize(
    "settings",
    [
        {"placement": "cache"},
        {"slow_bytes": 1000},
        {"prefetch": 3},
        {"cache_policy": "lru"},
        {"cache_warmup": 0.1},
        {"cache_batches": 2},
        {"fae_variant": "code"},
        {"kernels": "torch"},
        {"micro_batches": 2},
        {"freeze": ("C1",)},
        {"embedding_decay": 0.1},
        {"embedding_optimizer": "momentum"},
        {"model": "tbsm"},
        {"batch_norm": True},
        {"device": "late"},
        {"device": "cuda:0"},
    ],
    ids=str,
)
def test_settings_of_the_own_engine_are_refused(lists: ShardSet, settings: dict[str, Any]) -> None:
    config = replace(settings_of({}), engine="torchrec", embedding_optimizer="sgd")
    resolve(lists, config, 2)
    assert resolve(lists, replace(config, placement="fae"), 2).placement == "fae"
    name = next(iter(settings)).replace("_", "-")
    own = {"engine": "torchrec", "embedding_optimizer": "sgd"}
    with pytest.raises(ConfigError, match=f"--engine torchrec|{name}"):
        resolve(lists, settings_of(own | settings), 2)


def test_a_run_without_torchrec_is_refused_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = write_shards(tmp_path / "shards", LOGS["lists"])
    monkeypatch.setitem(sys.modules, "torchrec", None)
    monkeypatch.delitem(sys.modules, "hotset.train.torchrec.embeddings", raising=False)
    with pytest.raises(MissingExtraError, match="TorchRec, which is not installed"):
        run.train(shards, settings_of({"engine": "torchrec"}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_adam_of_rows_is_for_gpus(lists: ShardSet) -> None:
    settings = {"engine": "torchrec", "embedding_optimizer": "adam"}
    with pytest.raises(ConfigError, match=r"rows with adam on cpu: FBGEMM's is for GPUs alone") as raised:
        resolve(lists, settings_of(settings), 2)
    assert raised.value.hint == "give --embedding-optimizer sgd, adagrad or rowwise-adagrad"
    # Without a GPU the device is what is missing.
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="CUDA"):
            resolve(lists, settings_of(settings | {"device": "cuda"}), 2)


@needs_torchrec
@pytest.mark.slow
def test_fbgemm_takes_adam_that_counts_the_steps_of_a_row() -> None:
    """On the device without memory: the kernels run on GPUs alone."""
    torchrec_or_skip()
    from fbgemm_gpu import split_table_batched_embeddings_ops_training as fbgemm
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation

    from hotset.train.torchrec.rank_rows import _STATES
    from hotset.train.torchrec.sharding import _settings_of

    optimizer = RowOptimizer("adam", 0.25)
    specs = [(rows, 4, EmbeddingLocation.DEVICE, fbgemm.ComputeDevice.CUDA) for rows in (10, 1)]
    tables = fbgemm.SplitTableBatchedEmbeddingBagsCodegen(
        specs, device=torch.device("meta"), **_settings_of(optimizer, optimizer.eps)
    )
    given = tables.optimizer_args
    assert (given.beta1, given.beta2, given.eps) == (0.9, 0.999, optimizer.eps) and not given.weight_decay
    # TorchRec calls the first state momentum1, whatever FBGEMM does.
    first, *others = tables.get_optimizer_state()[0].items()
    assert [name for name, _ in others] == list(_STATES["adam"][1:])
    assert [each.shape for _, each in (first, *others)] == [(10, 4), (10, 4), (10,)]


@needs_torchrec
@pytest.mark.slow
def test_replicated_rows_take_the_steps_of_fbgemms_adam() -> None:
    torchrec_or_skip()
    from hotset.tests.support.processes.made_up_fbgemm import ADAM as BETAS
    from hotset.tests.support.processes.made_up_fbgemm import adam_of_rows
    from hotset.train.torchrec.batches import GroupLookups
    from hotset.train.torchrec.embeddings import ReplicatedOptimizer

    rng = torch.Generator().manual_seed(0)
    rows = torch.nn.Parameter(torch.randn(7, 3, generator=rng))
    found = ReplicatedOptimizer({"3": rows}, RowOptimizer("adam", 0.25))
    wanted = [rows.detach().double(), torch.zeros(7, 3), torch.zeros(7, 3), torch.zeros(7)]
    nothing = torch.empty(0, dtype=torch.int64)
    for step, rate in enumerate([0.25, 0.25, 0.125, 0.25]):
        # The last row is never looked up. Small gradients show where eps is; that of a row may be zero.
        used = torch.tensor([[0, 1, 5], [1, 2], [], [1, 3, 4, 5]][step], dtype=torch.int64)
        grad = torch.zeros(7, 3)
        grad[used] = torch.randn(len(used), 3, generator=rng) * torch.tensor([1.0, 1e-8, 0.0])
        grad[1] *= step != 1  # a step by the averages alone
        rows.grad, before = grad.clone(), rows.detach().clone()
        group = GroupLookups(3, nothing, nothing, nothing, nothing, nothing, nothing, used_hot_U=used)
        found.step(rate, [group])
        stepped = adam_of_rows([each[used] for each in wanted], grad[used], lr=rate, eps=1e-8, **BETAS)
        wanted = [each.double().index_copy(0, used, own) for each, own in zip(wanted, stepped, strict=True)]
        states = torch.cat([*wanted[1:3], wanted[3].unsqueeze(1)], dim=1)
        torch.testing.assert_close(rows.detach().double(), wanted[0], rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(found.states["3"].double(), states, rtol=1e-6, atol=1e-30)
        others = [row for row in range(7) if row not in used]
        assert torch.equal(rows.detach()[others], before[others])


def compare_divisions(folder: Path, device: str) -> None:
    """Train with Adam in one process, however rows are divided, and compare with hotset's own engine."""
    shards = write_shards(folder / "shards", LOGS["one-hot"])
    off = run.RunOptions(checkpoints=CheckpointSettings(checkpoint_every="off"))
    adam = ADAM | {"device": device, "dense_dtype": "fp32"}
    run.train(shards, settings_of(adam | {"placement": "all-fast"}), folder / "hotset", off)
    tables = ShardSet.open(shards).tables
    every, hot = [table.num_rows for table in tables], [table.num_hot for table in tables]
    divisions: dict[str, tuple[list[int], dict[str, Any]]] = {
        "replicated": (every, {}),
        "sharded": ([0] * len(tables), {}),
        "split": (hot, {}),
        # A third of the sharded rows on the device.
        "cached": (hot, {} if device == "cpu" else {"staging_bytes": ByteSize(40_000)}),
    }
    for name, (num_replicated, more) in divisions.items():
        config = settings_of(adam | more | {"engine": "torchrec"})
        with patch(
            "hotset.train.torchrec.engine.choose_num_replicated", lambda *_, n=num_replicated: tuple(n)
        ):
            run.train(shards, config, folder / name, off)
        check_equal(folder / "hotset", folder / name, 1e-4)


@needs_torchrec
@pytest.mark.gpu
def test_adam_of_rows_on_a_gpu(tmp_path: Path) -> None:
    """Replicated, sharded and cached rows take the steps of hotset's own engine. It was never run yet."""
    torchrec_or_skip()
    compare_divisions(tmp_path, "cuda")


def test_batch_normalization_needs_one_rank() -> None:
    torchrec_or_skip()
    from hotset.train.torchrec.engine import _check_layers

    inputs = hotset.ModelInputs(3, (), 8)
    layers = UserModel(torch.nn.Sequential(torch.nn.BatchNorm1d(3)), "Net", inputs)
    _check_layers(layers, 1)
    with pytest.raises(ConfigError, match="no batch normalization on several ranks"):
        _check_layers(layers, 2)


@needs_torchrec
@pytest.mark.slow
def test_planted_faults_are_found(folder: Path, rank_pool: RankPool) -> None:
    *wrong, unread, hanging = [case_of(folder, "sgd", "split", 2, fault=fault) for fault in FAULTS]
    assert rank_pool.run(2, wrong) == ["", ""]
    for case in wrong:
        with pytest.raises(AssertionError):
            check_equal(folder / "sgd-hotset", Path(case["out"]), 1e-5)
    # The ranks agree before its ids are exchanged ahead.
    unread["num_replicated"] = [0] * len(unread["num_replicated"])
    errors = rank_pool.run(2, [unread], timeout=5)
    assert "ShardsElsewhereError: another rank names a shard" in errors[0]
    assert "ShardError: batch 20 is damaged" in errors[1]
    assert hanging["fault"] == "kinds differ between ranks"
    errors = rank_pool.run(2, [hanging], timeout=5)
    assert all("lost another rank" in each or "lost rank" in each for each in errors), errors


@needs_torchrec
@pytest.mark.slow
def test_scripts_find_no_fault(tmp_path: Path, rank_pool: RankPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hot-only steps make no all-to-all, bytes are those that are predicted, and losses those of hotset."""
    monkeypatch.setattr(ranks, "call_on_ranks", rank_pool.call)
    folders = [tmp_path / name for name in ("spied", "compared")]
    for folder in folders:
        folder.mkdir()
    words = ["--samples", "3000", "--ranks", "2"]
    spied = ["spy", "--batch-sizes", "256", "--budgets", "1", *words]
    found = ranks.measure(ranks.PARSER.parse_args(spied), folders[0])
    assert found["faults"] == [] and len(found["spied"]) == 3
    (fae,) = (each for each in found["spied"] if "hot_only" in each)
    assert fae["mixed"]["counted"]["all_to_all"] > 0 == fae["hot_only"]["all_to_all_calls"]
    few = ["--steps", "6", "--batch-size", "128", "--optimizers", "adagrad", *words]
    found = ranks.compare_engines(ranks.PARSER.parse_args(["engines", *few]), folders[1])
    assert found["faults"] == [] and len(found["runs"]) == 6
