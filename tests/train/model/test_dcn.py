"""DCN V2 against a naive twin in NumPy; tests `shapes`, too."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hotset.pipeline.errors import ShardError
from hotset.train.config_parts import ModelConfig
from hotset.train.model.dcn import CrossLayer, Dcn
from hotset.train.model.shapes import DcnShape, tables_by_dim

Array = NDArray[np.float64]


def config_of(structure: str = "stacked", rank: int | None = None, **more: object) -> ModelConfig:
    values: dict[str, object] = {"kind": "dcnv2", "top_widths": [6, 5], "cross_layers": 2}
    values |= {"structure": structure, "cross_rank": rank}
    return ModelConfig.from_json(values | more)


DIMS = (4, 2, 4, 3)
SHAPES = {
    f"{structure}, rank {rank}": DcnShape(2, DIMS, config_of(structure, rank))
    for structure in ("stacked", "parallel")
    for rank in (None, 1, 3)
} | {
    "no dense features": DcnShape(0, DIMS, config_of()),
    "no deep network": DcnShape(2, DIMS, config_of("parallel", top_widths=[])),
    "no tables": DcnShape(3, (), config_of()),
    "bottom MLP": DcnShape(2, DIMS, config_of(bottom_widths=[5, 3])),
    "no dense features for the bottom MLP": DcnShape(0, DIMS, config_of(bottom_widths=[5, 3])),
}


def drawn(shape: DcnShape, num_samples: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    widths = tables_by_dim(shape.table_dims)
    dense_BK = torch.rand(num_samples, shape.num_dense, generator=generator, dtype=torch.float64)
    return dense_BK, [
        torch.randn(num_samples, len(tables), dim, generator=generator, dtype=torch.float64)
        for dim, tables in widths.items()
    ]


def naive_linear(model: Dcn, name: str, values: Array) -> Array:
    state = {key: tensor.numpy() for key, tensor in model.state_dict().items()}
    weight = state[f"{name}.weight"]
    bias = state.get(f"{name}.bias", np.zeros(len(weight)))
    found: Array = np.array([np.sum(row * values) for row in weight]) + bias
    return found


def naive_logit(model: Dcn, dense_K: Array, embeddings: list[Array]) -> float:
    """One sample by the formulas of the paper, number by number."""
    config = model.shape.config

    def mlp(name: str, num_layers: int, values: Array) -> Array:
        for number in range(num_layers):
            values = np.maximum(naive_linear(model, f"{name}.{2 * number}", values), 0)
        return values

    if model.shape.bottom:
        dense_K = mlp("bottom", len(config.bottom_widths), dense_K)
    first_N = np.concatenate([dense_K, *(emb_Fd.reshape(-1) for emb_Fd in embeddings)])
    crossed_N = first_N
    for number in range(config.cross_layers):
        narrow = crossed_N
        if config.cross_rank is not None:
            narrow = naive_linear(model, f"cross_layers.{number}.narrow", crossed_N)
        product_N = naive_linear(model, f"cross_layers.{number}.cross", narrow)
        crossed_N = np.array([a * b + c for a, b, c in zip(first_N, product_N, crossed_N, strict=True)])
    deep = mlp("deep", len(config.top_widths), crossed_N if config.structure == "stacked" else first_N)
    outputs = deep if config.structure == "stacked" else np.concatenate([crossed_N, deep])
    return float(naive_linear(model, "last", outputs)[0])


@pytest.mark.parametrize("name", SHAPES)
def test_logits_are_those_of_the_formulas(name: str) -> None:
    model = Dcn(SHAPES[name], 3).double()
    for parameter in model.parameters():  # biases of zero would hide that one is left out
        torch.nn.init.normal_(parameter, std=0.5, generator=torch.Generator().manual_seed(4))
    dense_BK, embeddings = drawn(SHAPES[name], 3)
    with torch.no_grad():
        found_B = model.logits(dense_BK, embeddings).numpy()
    wanted_B = [
        naive_logit(model, dense_BK[sample].numpy(), [emb[sample].numpy() for emb in embeddings])
        for sample in range(3)
    ]
    np.testing.assert_allclose(found_B, wanted_B, rtol=1e-10)


def test_a_full_rank_factorization_is_the_full_layer() -> None:
    """With V the unit matrix, U is W."""
    generator = torch.Generator().manual_seed(0)
    full, factored = (CrossLayer(5, rank, generator) for rank in (None, 5))
    assert factored.narrow is not None
    with torch.no_grad():
        factored.narrow.weight.copy_(torch.eye(5))
        factored.cross.weight.copy_(full.cross.weight)
    first_BN, inputs_BN = torch.randn(2, 3, 5, generator=generator)
    torch.testing.assert_close(factored(first_BN, inputs_BN), full(first_BN, inputs_BN))


def test_initial_values_are_those_of_the_seed() -> None:
    first, same, other = (Dcn(SHAPES["stacked, rank 1"], seed).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert not torch.equal(first["deep.0.weight"], other["deep.0.weight"])


def test_a_log_without_any_number_is_refused() -> None:
    with pytest.raises(ShardError, match="neither tables nor dense features"):
        Dcn(DcnShape(0, (), config_of()), 0)


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_counts_the_weights_and_layers_of_its_model(name: str) -> None:
    model = Dcn(SHAPES[name], 0)
    assert SHAPES[name].num_weights == sum(each.numel() for each in model.parameters())
    layers = [
        (each.in_features, each.out_features) for each in model.modules() if isinstance(each, torch.nn.Linear)
    ]
    assert sorted(SHAPES[name].layers) == sorted(layers)


@pytest.mark.parametrize("name", ["stacked, rank None", "parallel, rank 3"])
def test_a_shape_counts_the_numbers_that_a_forward_pass_keeps(name: str) -> None:
    shape, model = SHAPES[name], Dcn(SHAPES[name], 0).double()
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if (start := tensor.untyped_storage().data_ptr()) not in own:
            kept[start] = tensor
        return tensor

    dense_BK, embeddings = drawn(shape, 8)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model.logits(dense_BK, [emb_BFd.requires_grad_() for emb_BFd in embeddings])
    found = sum(tensor.untyped_storage().nbytes() for tensor in kept.values()) / 8 / 8
    counted = shape.interaction_floats + sum(outputs for _, outputs in shape.layers)
    # The logit is not kept, and the inputs of the last layer of the parallel structure are joined once more.
    assert counted == pytest.approx(found, abs=1 + shape.last_inputs)
