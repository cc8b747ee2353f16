"""TBSM against its formulas, sample by sample and element by element."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hotset.pipeline.errors import ShardError
from hotset.train.config_parts import ModelConfig
from hotset.train.model.shapes import tables_by_dim
from hotset.train.model.tbsm import Tbsm, TbsmShape

Array = NDArray[np.float64]


def shape_of(
    num_dense: int = 2, dims: tuple[int, ...] = (4, 4, 4), histories: tuple[int, ...] = (1, 2), **layers: Any
) -> TbsmShape:
    chosen: dict[str, Any] = {"top_widths": (5, 3), "history_length": 4, "attention_widths": (6,)}
    config = ModelConfig(kind="tbsm", **(chosen | {"last_widths": (7,)} | layers))
    return TbsmShape(num_dense, 4, dims, tuple(number in histories for number in range(len(dims))), config)


SHAPES = {
    "a user and two histories": shape_of(),
    "no dense features": shape_of(0),
    "a history alone": shape_of(1, (4,), (0,)),
    "other widths": shape_of(2, (4, 2, 3, 2), (1, 3)),
    "a bottom MLP": shape_of(bottom_widths=(6,)),
    "no hidden layers": shape_of(attention_widths=(), last_widths=(), top_widths=(3,)),
    "one element": shape_of(history_length=1),
}
LENGTHS = (5, 3, 1, 0)
"""Elements of the samples, the candidate among them; as far as the model takes them."""


def model_of(shape: TbsmShape) -> Tbsm:
    """A model whose ReLUs are open for some inputs at least, in float64."""
    model = Tbsm(shape, 3).double()
    generator = torch.Generator().manual_seed(4)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, mean=0.1, std=0.4, generator=generator)
    return model


def drawn(shape: TbsmShape) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Dense features with the lengths of the samples, and embeddings by width: zeros where there is none."""
    generator = torch.Generator().manual_seed(1)
    num_elements = shape.num_elements
    lengths_B = torch.tensor([min(length, num_elements) for length in LENGTHS])
    dense_BK = torch.rand(len(LENGTHS), shape.num_dense, generator=generator, dtype=torch.float64)
    embeddings = []
    for dim, tables in tables_by_dim(shape.table_dims).items():
        parts = []
        for table in tables:
            count = num_elements if shape.are_histories[table] else 1
            part = torch.randn(len(LENGTHS), count, dim, generator=generator, dtype=torch.float64)
            if shape.are_histories[table]:
                part[torch.arange(count) < (num_elements - lengths_B)[:, None]] = 0
            parts.append(part)
        embeddings.append(torch.cat(parts, dim=1))
    return torch.cat([dense_BK, lengths_B.double()[:, None]], dim=1), embeddings


def naive_logit(model: Tbsm, dense_K: Array, length: int, embeddings: list[Array]) -> float:
    """One sample by the formulas of the docstring, number by number."""
    shape = model.shape
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    count = shape.num_elements

    def mlp(name: str, num_layers: int, values: Array, *, relu_last: bool) -> Array:
        for layer in range(num_layers):
            weight, bias = (state[f"{name}.{2 * layer}.{kind}"] for kind in ("weight", "bias"))
            values = np.array([sum(row * values) for row in weight]) + bias
            if relu_last or layer < num_layers - 1:
                values = np.maximum(values, 0)
        return values

    # The embedding of each table for each element.
    of_table: dict[int, list[Array]] = {}
    for tables, emb_Sd in zip(tables_by_dim(shape.table_dims).values(), embeddings, strict=True):
        rows = list(emb_Sd)
        for table in tables:
            own = [rows.pop(0) for _ in range(count if shape.are_histories[table] else 1)]
            own = own * (1 if shape.are_histories[table] else count)
            mapped = f"maps.{table}" in state
            of_table[table] = [row @ state[f"maps.{table}"] if mapped else row for row in own]
    config = shape.config
    vectors = []
    for element in range(count):
        dense = np.append(dense_K, element / count)
        interacting = [mlp("bottom", len(config.bottom_widths) + 1, dense, relu_last=True)]
        interacting += [of_table[table][element] for table in range(len(of_table))]
        dots = [interacting[i] @ interacting[j] for i in range(len(interacting)) for j in range(i)]
        vector = mlp("top", len(config.top_widths), np.concatenate([interacting[0], dots]), relu_last=True)
        vectors.append(vector / max(np.sqrt(np.sum(vector**2)), 1e-12))
    candidate = vectors.pop()
    for element in range(count - 1):
        if element < count - length:
            vectors[element] = np.zeros_like(candidate)
    form = state["form_VV"]
    similarities = np.array([vector @ (form.T @ (form @ candidate)) for vector in vectors])
    weights = mlp("attention", len(config.attention_widths) + 1, similarities, relu_last=False)
    context = sum(vector / (1 + np.exp(-weight)) for vector, weight in zip(vectors, weights, strict=True))
    both = np.concatenate([context, candidate])
    return float(mlp("last", len(config.last_widths) + 1, both, relu_last=False)[0])


@pytest.mark.parametrize("name", SHAPES)
def test_logits_are_those_of_the_formulas(name: str) -> None:
    model = model_of(SHAPES[name])
    dense_BK, embeddings = drawn(SHAPES[name])
    with torch.no_grad():
        found_B = model.logits(dense_BK, embeddings).numpy()
    wanted_B = [
        naive_logit(
            model,
            dense_BK[sample, :-1].numpy(),
            int(dense_BK[sample, -1]),
            [emb[sample].numpy() for emb in embeddings],
        )
        for sample in range(len(LENGTHS))
    ]
    np.testing.assert_allclose(found_B, wanted_B, rtol=1e-10)
    assert np.unique(np.round(found_B, 9)).size > 1


def test_what_a_short_history_lacks_has_no_part() -> None:
    """Whatever stands there, no logit changes and no gradient goes there."""
    shape = SHAPES["a user and two histories"]
    model = model_of(shape)
    dense_BK, (emb_BSd,) = drawn(shape)
    with torch.no_grad():
        wanted_B = model.logits(dense_BK, [emb_BSd])
    # Three elements of the second sample: the two before them are missing, in both tables.
    other = emb_BSd.clone()
    other[1, [1, 2, 6, 7]] = 9.0
    other.requires_grad_()
    found_B = model.logits(dense_BK, [other])
    assert torch.equal(found_B.detach(), wanted_B)
    found_B.sum().backward()  # type: ignore[no-untyped-call]
    assert other.grad is not None
    assert not other.grad[1, [1, 2, 6, 7]].any()
    assert other.grad[1, 3:6].any() and other.grad[1, 8:].any()


def test_the_order_of_a_history_counts() -> None:
    shape = SHAPES["a user and two histories"]
    model = model_of(shape)
    dense_BK, (emb_BSd,) = drawn(shape)
    swapped = emb_BSd.clone()
    swapped[:, [2, 3, 7, 8]] = emb_BSd[:, [3, 2, 8, 7]]
    with torch.no_grad():
        assert not torch.isclose(model.logits(dense_BK, [swapped])[0], model.logits(dense_BK, [emb_BSd])[0])


def test_shards_without_lists_are_refused() -> None:
    with pytest.raises(ShardError, match="no list-valued feature"):
        Tbsm(shape_of(histories=()), 0)


def test_the_seed_decides_the_initial_values() -> None:
    first, again, other = (Tbsm(SHAPES["other widths"], seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first)
