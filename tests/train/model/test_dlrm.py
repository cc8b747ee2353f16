"""DLRM: shapes, interaction and initial values.

Dropout by hashes: what is dropped depends on the place of a number alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from hotset.pipeline.errors import ConfigError, ShardError
from hotset.stats.id_tables import mix64_pair
from hotset.tests.support.compiled import compiled_only
from hotset.tests.support.shard_factory import write_shards
from hotset.tests.support.trained_models import assert_equal_bits, trained
from hotset.train.data.shards import ShardSet
from hotset.train.model.dlrm import Dlrm, HashDropout, PairwiseDots, draw_mask, drawing, pair_positions
from hotset.train.model.shapes import dlrm_shape


def naive_dots(vectors_BVD: torch.Tensor) -> torch.Tensor:
    num_vectors = vectors_BVD.shape[1]
    pairs = [(i, j) for i in range(num_vectors) for j in range(i)]
    return torch.stack([(vectors_BVD[:, i] * vectors_BVD[:, j]).sum(1) for i, j in pairs], dim=1)


def dots(vectors_BVD: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = PairwiseDots.apply(vectors_BVD, *pair_positions(vectors_BVD.shape[1]))  # type: ignore[no-untyped-call]
    return found


@pytest.mark.parametrize("num_vectors", [2, 3, 27])
def test_the_interaction_is_the_dot_of_every_pair(num_vectors: int) -> None:
    torch.manual_seed(0)
    vectors_BVD = torch.randn(5, num_vectors, 4, dtype=torch.float64, requires_grad=True)
    expected, found = naive_dots(vectors_BVD), dots(vectors_BVD)
    torch.testing.assert_close(found, expected)
    weights = torch.randn_like(expected)
    (wanted,) = torch.autograd.grad((expected * weights).sum(), vectors_BVD)
    (gradient,) = torch.autograd.grad((found * weights).sum(), vectors_BVD)
    torch.testing.assert_close(gradient, wanted)


def test_the_interaction_under_autocast_has_gradients_of_its_vectors() -> None:
    vectors_BVD = torch.randn(5, 4, 8, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        found = dots(vectors_BVD)
    (gradient,) = torch.autograd.grad(found.float().sum(), vectors_BVD)
    (wanted,) = torch.autograd.grad(naive_dots(vectors_BVD).sum(), vectors_BVD)
    torch.testing.assert_close(gradient, wanted, rtol=0.02, atol=0.02)


def linear_shapes(model: Dlrm, part: str) -> list[tuple[int, ...]]:
    return [tuple(p.shape) for name, p in model.named_parameters() if name.startswith(part) and p.dim() == 2]


def test_the_presets_have_the_published_widths() -> None:
    kaggle = Dlrm(dlrm_shape("auto", 13, 26, 16), 0)
    assert linear_shapes(kaggle, "bottom") == [(512, 13), (256, 512), (64, 256), (16, 64)]
    assert linear_shapes(kaggle, "top") == [(512, 27 * 26 // 2 + 16), (256, 512), (1, 256)]
    terabyte = Dlrm(dlrm_shape("auto", 13, 26, 64), 0)
    assert linear_shapes(terabyte, "bottom") == [(512, 13), (256, 512), (64, 256)]
    assert linear_shapes(terabyte, "top") == [(512, 27 * 26 // 2 + 64), (512, 512), (256, 512), (1, 256)]
    mlperf = Dlrm(dlrm_shape("auto", 13, 26, 128), 0)
    assert linear_shapes(mlperf, "bottom") == [(512, 13), (256, 512), (128, 256)]
    top = [(1024, 27 * 26 // 2 + 128), (1024, 1024), (512, 1024), (256, 512), (1, 256)]
    assert linear_shapes(mlperf, "top") == top
    small = Dlrm(dlrm_shape("auto", 13, 26, 8), 0)
    assert linear_shapes(small, "bottom") == [(64, 13), (8, 64)]
    assert linear_shapes(small, "top") == [(64, 27 * 26 // 2 + 8), (1, 64)]


def test_a_preset_of_another_dim_is_refused() -> None:
    with pytest.raises(ConfigError, match="kaggle has embedding_dim 16, the shards have 8"):
        dlrm_shape("kaggle", 13, 26, 8)


def test_without_dense_features_there_is_no_bottom() -> None:
    model = Dlrm(dlrm_shape("small", 0, 3, 4), 0)
    assert model.bottom is None
    assert model(torch.empty(5, 0), torch.randn(5, 3, 4)).shape == (5,)


def test_one_vector_has_nothing_to_interact_with() -> None:
    with pytest.raises(ShardError, match="nothing interacts"):
        dlrm_shape("small", 0, 1, 4)


def test_initial_values_depend_on_the_seed_alone() -> None:
    shape = dlrm_shape("small", 2, 3, 4)
    torch.manual_seed(5)
    first, again, other = (torch.cat([p.flatten() for p in Dlrm(shape, s).parameters()]) for s in (7, 7, 8))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.rand(1).item() == torch.rand(1, generator=torch.Generator().manual_seed(5)).item()


def test_an_empty_batch_has_no_logits() -> None:
    model = Dlrm(dlrm_shape("small", 2, 3, 4), 0)
    assert model(torch.empty(0, 2), torch.empty(0, 3, 4)).shape == (0,)


def test_other_row_widths_are_projected_in_the_order_of_the_tables() -> None:
    model = Dlrm(dlrm_shape("small", 2, 3, 4, [2, 4, 2]), 0)
    assert model.projections is not None
    narrow_BFd, wide_BFD = torch.randn(5, 2, 2), torch.randn(5, 1, 4)
    emb_BFD = model.join([narrow_BFd, wide_BFD])
    maps_FdD = model.projections.maps["2"]
    assert torch.equal(emb_BFD[:, 1], wide_BFD[:, 0])
    torch.testing.assert_close(emb_BFD[:, 0], narrow_BFd[:, 0] @ maps_FdD[0])
    torch.testing.assert_close(emb_BFD[:, 2], narrow_BFd[:, 1] @ maps_FdD[1])


def test_projections_leave_the_other_layers_as_they_are() -> None:
    plain, projecting = (
        Dlrm(dlrm_shape("small", 2, 3, 4), 0),
        Dlrm(dlrm_shape("small", 2, 3, 4, [2, 4, 2]), 0),
    )
    for name, tensor in plain.state_dict().items():
        assert torch.equal(tensor, projecting.state_dict()[name])


def test_the_mask_is_what_the_hash_says() -> None:
    mask_TU = np.full((3, 5), np.nan, np.float32)
    draw_mask(np.uint64(7), 2, 1 << 22, np.float32(4 / 3), mask_TU)
    for sample in range(3):
        of_sample = np.uint64(mix64_pair(np.uint64(7), np.uint64(2 + sample)))
        for unit in range(5):
            is_kept = int(mix64_pair(of_sample, np.uint64(unit))) >> 40 >= 1 << 22
            assert mask_TU[sample, unit] == (np.float32(4 / 3) if is_kept else 0)


def passed(share: float, step: int = 3, seed: int = 1, layer: int = 0, first: int = 0) -> torch.Tensor:
    layers = HashDropout(share, layer)
    with drawing(seed, step, first):
        found: torch.Tensor = layers(torch.ones(64, 100))
    return found


def test_a_share_is_dropped_and_the_mean_is_kept() -> None:
    found = passed(0.2)
    assert abs(float((found == 0).float().mean()) - 0.2) < 0.02
    assert abs(float(found.mean()) - 1) < 0.03
    assert set(found.flatten().tolist()) == {0.0, 1.25}


def test_seeds_steps_layers_and_samples_draw_apart() -> None:
    whole = passed(0.5)
    for other in (passed(0.5, step=4), passed(0.5, seed=2), passed(0.5, layer=1), passed(0.5, first=64)):
        assert 0.4 < float((whole != other).float().mean()) < 0.6
    # A part of a batch draws what the whole batch does.
    torch.testing.assert_close(passed(0.5, first=10)[:54], whole[10:], rtol=0, atol=0)


def test_nothing_is_dropped_in_evaluation() -> None:
    layer = HashDropout(0.5, 0).eval()
    assert torch.equal(layer(torch.ones(2, 3)), torch.ones(2, 3))


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> ShardSet:
    folder = tmp_path_factory.mktemp("data")
    # Batches of several tiles.
    return ShardSet.open(
        write_shards(folder / "shards", batch_size=600, num_hot_only=700, num_mixed=1300, skew=1.2)
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "dlrm", "dropout": 0.2},
        {"model": "dcnv2", "dropout": 0.2},
        {"model": "dlrm", "dropout": 0.2, "batch_norm": True},
        {"model": "dcnv2", "batch_norm": True},
    ],
)
@compiled_only
def test_placements_and_threads_end_with_the_same_bits(shards: ShardSet, fields: dict[str, Any]) -> None:
    fields = fields | {"embedding_optimizer": "adagrad", "bottom_mlp": (8,), "top_mlp": (8, 4)}
    reference = trained(shards, placement="all-fast", threads=1, **fields)
    assert_equal_bits(trained(shards, placement="lookahead", threads=2, **fields), reference)
    plain = trained(
        shards, placement="all-fast", threads=1, **fields | {"dropout": None, "batch_norm": False}
    )
    name = next(name for name in plain.weights() if name.endswith("weight"))
    assert not torch.equal(plain.weights()[name], reference.weights()[name])


def test_dropout_and_shares_are_for_one_batch(shards: ShardSet) -> None:
    fields: dict[str, Any] = {"model": "dlrm", "dropout": 0.2, "top_mlp": (8,)}
    whole = trained(shards, placement="all-fast", threads=1, **fields).weights()
    cut = trained(shards, placement="all-fast", threads=1, micro_batches=2, **fields).weights()
    # Shares add in another order, and drop the same.
    for name in whole:
        torch.testing.assert_close(whole[name], cut[name], rtol=1e-3, atol=1e-4)
