"""Row updates and training on a GPU; this file needs torch and pytest, no other package of development."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hotset.nn
from hotset.stats.row_bytes import OPTIMIZERS
from hotset.tests.support.drawn_tiers import draw_lookups, make_tier, step
from hotset.tests.support.shard_factory import write_shards
from hotset.tests.support.trained_models import FIELDS, STAGING, STATELESS, TIGHT, assert_equal_bits, trained
from hotset.train.data.shards import ShardSet
from hotset.train.device import CudaDevice, Event, StreamName
from hotset.train.rows.backends import NumbaRows, RowOptimizer, TorchRows
from hotset.train.run_log import summarize_transfers
from hotset.train.threads import WorkThreads

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dim", [10, 16, 24, 40])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_gpu_gives_the_bits_of_the_host(name: str, dim: int, rng: np.random.Generator) -> None:
    optimizer = RowOptimizer(name, 0.03)
    host, device = make_tier(optimizer, 3, 50, dim), make_tier(optimizer, 3, 50, dim, "cuda")
    for _ in range(3):
        lookups = draw_lookups(host, 500, rng)
        grad_PD = torch.from_numpy(rng.normal(size=(1500, dim)).astype(np.float32))
        step(NumbaRows(optimizer, WorkThreads(1)), host, lookups, grad_PD)
        step(TorchRows(optimizer, device.device), device, lookups, grad_PD.cuda())
    assert torch.equal(host.weights_SD, device.weights_SD.cpu())
    assert torch.equal(host.state_SW, device.state_SW.cpu())


@pytest.mark.parametrize("placement", STAGING, ids=str)
def test_staging_on_a_gpu_ends_with_the_bits_of_all_fast_there(
    placement: dict[str, Any], tmp_path: Path
) -> None:
    shards = ShardSet.open(write_shards(tmp_path / "shards", TIGHT))
    wanted = trained(shards, placement="all-fast", device="cuda", **FIELDS)
    assert_equal_bits(trained(shards, device="cuda", **placement, **FIELDS), wanted)


@pytest.mark.parametrize("placement", [*STAGING[:1], *STATELESS], ids=str)
def test_features_that_share_a_table_end_with_the_bits_of_all_fast_there(
    placement: dict[str, Any], tmp_path: Path
) -> None:
    spec = replace(TIGHT, num_rows=(300, 300, 400), num_hot=(3, 3, 5), multi_hot=(1,), same_table=(1,))
    shards = ShardSet.open(write_shards(tmp_path / "shards", spec))
    wanted = trained(shards, placement="all-fast", device="cuda", **FIELDS)
    assert_equal_bits(trained(shards, device="cuda", **placement, **FIELDS), wanted)


@pytest.mark.parametrize(
    "placement",
    [{"placement": name} for name in ("hybrid", "fae", "cache")]
    + [{"placement": "lookahead", "staging_bytes": "4kB"}],
    ids=str,
)
def test_a_loop_of_ones_own_on_a_gpu_ends_with_the_bits_of_all_fast_there(
    placement: dict[str, Any], tmp_path: Path
) -> None:
    folder = write_shards(tmp_path / "shards", TIGHT)

    def rows_of(**settings: Any) -> dict[str, Any]:
        emb = hotset.nn.Embeddings(folder, device="cuda", embedding_optimizer="adagrad", **settings)
        for batch in emb.read_ahead(hotset.ShardDataset(folder, seed=2)):
            loss = torch.stack([vectors.square().sum() for vectors in emb(batch).values()]).sum()
            assert loss.is_cuda
            loss.backward()  # type: ignore[no-untyped-call]
            emb.step()
        return emb.state_dict()

    found, wanted = rows_of(**placement), rows_of(placement="all-fast")
    assert [name for name in wanted if not torch.equal(found[name], wanted[name])] == []


@pytest.mark.parametrize("placement", STATELESS, ids=str)
@pytest.mark.parametrize("is_late", [False, True])
def test_rows_that_the_host_keeps_have_the_bits_of_all_fast(
    placement: dict[str, Any], is_late: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = ShardSet.open(write_shards(tmp_path / "shards", TIGHT))
    wanted = trained(shards, placement="all-fast", device="cuda", **FIELDS)
    if is_late:
        let_streams_be_late(monkeypatch)
    found = trained(shards, device="cuda", **placement, **FIELDS)
    assert summarize_transfers(found).mover is None
    assert_equal_bits(found, wanted)


def let_streams_be_late(monkeypatch: pytest.MonkeyPatch, punctual: StreamName | None = None) -> None:
    """Hold up all streams but one for up to a millisecond before each copy and each kernel, but for those of
    compute now and then.

    What is recorded keeps its delays, so a stream that is late there is late at every step.
    """
    delays = random.Random(1)

    def late(verb: Callable[..., None]) -> Callable[..., None]:
        def wait_first(device: CudaDevice, stream: StreamName, *arguments: Any) -> None:
            is_late = stream != "compute" or delays.random() < 0.1
            if is_late and stream != punctual:
                with torch.cuda.stream(device._streams[stream]):
                    torch.cuda._sleep(delays.randrange(1_500_000))  # type: ignore[no-untyped-call]
            verb(device, stream, *arguments)

        return wait_first

    for name in ("copy", "launch"):
        monkeypatch.setattr(CudaDevice, name, late(getattr(CudaDevice, name)))


@pytest.mark.parametrize("placement", STAGING, ids=str)
def test_late_streams_of_a_gpu_change_no_bit(
    placement: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = ShardSet.open(write_shards(tmp_path / "shards", TIGHT))
    wanted = trained(shards, placement="all-fast", device="cuda", **FIELDS)
    let_streams_be_late(monkeypatch)
    assert_equal_bits(trained(shards, device="cuda", **placement, **FIELDS), wanted)


def begin_with_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let new memory of the device hold empty lists: a kernel that runs too early would else follow whatever
    is there, to addresses that end what this process can do on a GPU."""
    allocate = CudaDevice.allocate

    def zeros(device: CudaDevice, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        tensor = allocate(device, shape, dtype).zero_()
        device.synchronize()
        return tensor

    monkeypatch.setattr(CudaDevice, "allocate", zeros)


@pytest.mark.parametrize("waiting", ["compute", "moves"])
@pytest.mark.parametrize("placement", [{"placement": "lookahead"}, *STATELESS], ids=str)
def test_a_wait_that_is_left_out_on_a_gpu_is_found(
    placement: dict[str, Any], waiting: StreamName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = ShardSet.open(write_shards(tmp_path / "shards", TIGHT))
    wanted = trained(shards, placement="all-fast", device="cuda", **FIELDS)
    # The others must be later than the one that does not wait for them.
    let_streams_be_late(monkeypatch, punctual=waiting)
    begin_with_zeros(monkeypatch)
    wait = CudaDevice.wait

    def wait_unless(device: CudaDevice, stream: StreamName, event: Event) -> None:
        if stream != waiting:
            wait(device, stream, event)

    monkeypatch.setattr(CudaDevice, "wait", wait_unless)
    with pytest.raises((AssertionError, RuntimeError)):
        assert_equal_bits(trained(shards, device="cuda", **placement, **FIELDS), wanted)
