"""DCN V2 without its tables: cross network and deep network, and their passes on one tile.

Shapes: B samples, T of a tile, K dense features, F tables of dimension d, N numbers of a sample (the widths
of its embeddings and dense features together), P the same with padding, R rank, H outputs of the deep
network. What a tile computes between the products of matrices is in float32 whatever their type, as is the
last layer.

Source:
    Wang et al., DCN V2: Improved Deep & Cross Network and Practical Lessons for Web-scale Learning to Rank
    Systems, arXiv 2008.13535. The bottom MLP is not in the paper: TorchRec's `DLRM_DCN` has one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn

from ...pipeline.errors import ShardError
from ..data.batch import at_cache_line
from .dlrm import DenseModel, as_logits, build_linear, build_mlp
from .gradients import ParameterViews, stored_inputs
from .kernels import Matrix, StepWeights, cross, cross_backward
from .shapes import DcnShape, tables_by_dim
from .tiles import Mlp, build_last_layer

if TYPE_CHECKING:
    from .kernels import Targets


class CrossLayer(nn.Module):
    """A cross layer of DCN V2, perhaps of low rank.

    It computes ``x' = x0 * (W x + b) + x``, where W is a full matrix, or ``W = U V'`` of rank R.

    Args:
        num_inputs: N.
        rank: R; None for a full matrix.
        generator: of the initial values: those of DLRM for matrices, zero for b.
    """

    def __init__(self, num_inputs: int, rank: int | None, generator: torch.Generator) -> None:
        super().__init__()
        self.narrow: nn.Linear | None = None
        if rank is not None:
            self.narrow = build_linear(num_inputs, rank, generator, has_bias=False)
        self.cross = build_linear(num_inputs if rank is None else rank, num_inputs, generator)
        nn.init.zeros_(self.cross.bias)

    def forward(self, first_BN: torch.Tensor, inputs_BN: torch.Tensor) -> torch.Tensor:
        """Return (B, N) outputs of the layer; ``first`` is x0, ``inputs`` is x."""
        narrow_BR = inputs_BN if self.narrow is None else self.narrow(inputs_BN)
        outputs_BN: torch.Tensor = first_BN * self.cross(narrow_BR) + inputs_BN
        return outputs_BN


class Dcn(DenseModel):
    """Logits from dense features and embeddings.

    ``x0`` is all numbers of a sample side by side: the output of the bottom MLP or the dense features, then
    the embeddings. With the stacked structure the deep network takes what the cross network gives, and the
    logit is a linear layer of its output; with the parallel one the deep network takes x0, and the logit is
    a linear layer of both outputs.

    Args:
        shape: sizes of the model.
        seed: of the initial values.

    Raises:
        ShardError: there is no number to cross.
    """

    def __init__(self, shape: DcnShape, seed: int) -> None:
        super().__init__()
        if not shape.num_inputs:
            raise ShardError("the shards have neither tables nor dense features")
        self.shape = shape
        self.num_logits = shape.num_logits
        config = shape.config
        # Every layer draws from one generator in a fixed order, so the seed alone decides all initial values.
        num_inputs = shape.num_inputs
        generator = torch.Generator().manual_seed(seed)
        self.is_per_sample = not config.batch_norm
        self.is_plain = not (config.dropout or config.batch_norm)
        norm = {"batch_norm": config.batch_norm}
        self.bottom = build_mlp(shape.bottom, generator, relu_last=True, **norm) if shape.bottom else None
        self.cross_layers = nn.ModuleList(
            CrossLayer(num_inputs, config.cross_rank, generator) for _ in range(config.cross_layers)
        )
        self.deep = build_mlp(shape.deep, generator, relu_last=True, dropout=config.dropout, **norm)
        # Stacked, the deep layers read what the cross layers give; in parallel, both read the inputs.
        self.is_stacked = config.structure == "stacked"
        self.last = build_linear(shape.last_inputs, shape.num_logits, generator)

    def logits(self, dense_BK: torch.Tensor, embeddings: Sequence[torch.Tensor]) -> torch.Tensor:
        bottom = dense_BK if self.bottom is None else self.bottom(dense_BK)
        # Dense values and all embeddings side by side are what both kinds of layers read.
        first_BN = torch.cat([bottom, *(emb_BFd.flatten(1) for emb_BFd in embeddings)], dim=1)
        crossed_BN = first_BN
        # Each layer crosses the first inputs with what has been crossed so far.
        for layer in self.cross_layers:
            crossed_BN = layer(first_BN, crossed_BN)
        if self.is_stacked:
            return as_logits(self.last(self.deep(crossed_BN)))
        return as_logits(self.last(torch.cat([crossed_BN, self.deep(first_BN)], dim=1)))


class DcnTile:
    """The memory of one tile, used by one thread at a time.

    Args:
        shape: sizes of the model, which has linear layers and ReLU alone.
        weights: of the model.
    """

    def __init__(self, shape: DcnShape, weights: StepWeights) -> None:
        most_samples = weights.most_samples
        config = shape.config
        num_inputs = self._num_inputs = shape.num_inputs
        filled_up = stored_inputs(num_inputs)
        self._is_stacked = config.structure == "stacked"
        narrow = 0 if config.cross_rank is None else stored_inputs(config.cross_rank)
        # Bottom and deep network allocate their memory; so does each cross layer for its outputs.
        self.bottom = Mlp("bottom", shape.bottom, weights) if shape.bottom else None
        hidden = (filled_up, *config.top_widths) if config.top_widths else ()
        self.top = Mlp("deep", hidden, weights) if hidden else None
        # Memory that the cross layers use in turn: gradients of products, and of narrow ones.
        scratch = (
            torch.zeros(most_samples, filled_up, dtype=torch.float32, device="cpu"),
            torch.zeros(most_samples, narrow, dtype=torch.float32, device="cpu"),
        )
        self._cross = [
            _CrossLayer(f"cross_layers.{number}", weights, *scratch) for number in range(config.cross_layers)
        ]
        # The last layer reads the deep network's outputs, those of the cross network, or both side by side.
        num_deep = hidden[-1] if hidden else num_inputs
        num_last = (
            (num_deep if hidden else filled_up) if self._is_stacked else stored_inputs(shape.last_inputs)
        )
        self._last = build_last_layer("last", num_last, weights)
        # Zeros: rows end with those that fill them up, and no pass writes there.
        self._first = torch.zeros(most_samples, filled_up, dtype=torch.float32, device="cpu")
        self._first_grads = torch.zeros(most_samples, filled_up, dtype=torch.float32, device="cpu")
        self._joined = torch.zeros(
            0 if self._is_stacked else most_samples, num_last, dtype=torch.float32, device="cpu"
        )
        self._crossed_grads = torch.zeros(
            0 if self._is_stacked else most_samples, filled_up, dtype=torch.float32, device="cpu"
        )
        self._deep_grads = torch.empty(
            0 if self._is_stacked else most_samples, num_deep, dtype=torch.float32, device="cpu"
        )
        # Dense values come first among the numbers of a sample, then the embeddings of each table group.
        num_dense = shape.bottom[-1] if shape.bottom else shape.num_dense
        self._bottom_grads = torch.empty(
            most_samples if self.bottom else 0, num_dense, dtype=torch.float32, device="cpu"
        )
        self._dense_place = slice(0, num_dense)
        self._deep_place = slice(num_inputs, num_inputs + num_deep)
        self._places: list[slice] = []
        stop = num_dense
        for dim, tables in tables_by_dim(shape.table_dims).items():
            self._places.append(slice(stop, stop + dim * len(tables)))
            stop = self._places[-1].stop

    def forward(self, dense_TK: torch.Tensor, embeddings: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return (T,) logits, as `DenseTile.forward`."""
        num_samples = dense_TK.shape[0]
        # All numbers of a sample side by side.
        first_TP = self._first[:num_samples]
        bottom_TD = self.bottom.forward(at_cache_line(dense_TK)) if self.bottom else dense_TK
        first_TP[:, self._dense_place].copy_(bottom_TD)
        for place, emb_TFd in zip(self._places, embeddings, strict=True):
            first_TP[:, place].copy_(emb_TFd.flatten(1))
        crossed_TP = first_TP
        for layer in self._cross:
            crossed_TP = layer.forward(first_TP, crossed_TP)

        hidden_TN = crossed_TP if self._is_stacked else first_TP
        if self.top:
            hidden_TN = self.top.forward(hidden_TN)
        if not self._is_stacked:
            joined_TN = self._joined[:num_samples]
            joined_TN[:, : self._num_inputs].copy_(crossed_TP[:, : self._num_inputs])
            joined_TN[:, self._deep_place].copy_(hidden_TN[:, : self._deep_grads.shape[1]])
            hidden_TN = joined_TN
        return self._last.forward(hidden_TN)

    def backward(
        self,
        target: torch.Tensor | Targets,
        scale: float,
        embedding_grads: Sequence[torch.Tensor],
        gradients: ParameterViews,
    ) -> float:
        """Write the gradients of the last tile; return its loss, as `DenseTile.backward`."""
        num_samples = target.shape[0]
        loss, last_grad_TN = self._last.backward(target, scale, gradients)
        # Through the deep network, then through the cross network, which adds to the gradient of its first
        # inputs at every layer.
        crossed_grad_TP, first_grad_TP = self._deep_backward(last_grad_TN, gradients)
        first_TP = self._first[:num_samples]
        for layer in reversed(self._cross):
            layer.backward(crossed_grad_TP, first_TP, first_grad_TP, gradients)
        first_grad_TP += crossed_grad_TP
        # The dense features are data: nothing flows back to them.
        for place, grad_TFd in zip(self._places, embedding_grads, strict=True):
            grad_TFd.view(num_samples, place.stop - place.start).copy_(first_grad_TP[:, place])
        if self.bottom:
            bottom_grad_TD = self._bottom_grads[:num_samples]
            bottom_grad_TD.copy_(first_grad_TP[:, self._dense_place])
            self.bottom.backward(bottom_grad_TD, gradients, to_inputs=False)
        return loss

    def _deep_backward(
        self, last_grad_TN: torch.Tensor, gradients: ParameterViews
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the (T, P) gradients by outputs and by first inputs.

        The outputs are those of the cross network; the inputs count as far as they come from the deep
        network. Both may be overwritten.
        """
        num_samples = last_grad_TN.shape[0]
        first_grad_TP = self._first_grads[:num_samples]
        if self._is_stacked:
            first_grad_TP.zero_()
            if not self.top:
                return last_grad_TN, first_grad_TP
            return self.top.backward(last_grad_TN, gradients, to_inputs=True), first_grad_TP
        # In parallel, the last layer's inputs are those of both networks.
        crossed_grad_TP = self._crossed_grads[:num_samples]
        crossed_grad_TP[:, : self._num_inputs].copy_(last_grad_TN[:, : self._num_inputs])
        if not self.top:
            first_grad_TP[:, : self._num_inputs].copy_(last_grad_TN[:, self._deep_place])
            return crossed_grad_TP, first_grad_TP
        deep_grad_TN = self._deep_grads[:num_samples]
        deep_grad_TN.copy_(last_grad_TN[:, self._deep_place])
        return crossed_grad_TP, self.top.backward(deep_grad_TN, gradients, to_inputs=True)


class _CrossLayer:
    """A cross layer on a tile, perhaps of low rank.

    It computes ``x' = x0 * (W x + b) + x``, with ``W = U V'`` if a rank is set.

    Args:
        name: of the layer.
        weights: of the model.
        product_grads: memory that it may use during a pass, (most_samples, P).
        narrow_grads: likewise, (most_samples, R with padding); without columns for a full matrix.
    """

    def __init__(
        self, name: str, weights: StepWeights, product_grads: torch.Tensor, narrow_grads: torch.Tensor
    ) -> None:
        self._product_grads = product_grads
        self._narrow_grads = narrow_grads
        self._narrow = None if narrow_grads.shape[1] == 0 else _Product(f"{name}.narrow.weight", weights)
        self._wide = _Product(f"{name}.cross.weight", weights)
        self._bias = f"{name}.cross.bias"
        self._bias_N = weights.values.arrays[self._bias]
        # Zeros, like the padding of all rows.
        self._narrow_outputs = torch.zeros_like(narrow_grads)
        self._products = torch.zeros_like(product_grads)
        self._outputs = torch.zeros_like(product_grads)
        self._inputs_TP = self._outputs

    def forward(self, first_TP: torch.Tensor, inputs_TP: torch.Tensor) -> torch.Tensor:
        """Return the (T, P) outputs; their memory is used again by the next tile."""
        num_samples = inputs_TP.shape[0]
        self._inputs_TP = inputs_TP
        product_TP = self._products[:num_samples]
        outputs_TP = self._outputs[:num_samples]
        multiplied = inputs_TP
        if self._narrow is not None:
            multiplied = self._narrow_outputs[:num_samples]
            self._narrow.forward(inputs_TP, multiplied)
        self._wide.forward(multiplied, product_TP)
        cross(product_TP.numpy(), self._bias_N, first_TP.numpy(), inputs_TP.numpy(), outputs_TP.numpy())
        return outputs_TP

    def backward(
        self,
        grad_TP: torch.Tensor,
        first_TP: torch.Tensor,
        first_grad_TP: torch.Tensor,
        gradients: ParameterViews,
    ) -> None:
        """Write the gradients of the parameters, and add that of x0.

        Args:
            grad_TP: gradient by the outputs, replaced by that by the inputs.
            first_TP: x0.
            first_grad_TP: gradient by x0, added to.
            gradients: where the gradient of each parameter goes, by name.
        """
        num_samples = grad_TP.shape[0]
        product_grad_TP = self._product_grads[:num_samples]
        cross_backward(
            grad_TP.numpy(),
            first_TP.numpy(),
            self._products[:num_samples].numpy(),
            product_grad_TP.numpy(),
            first_grad_TP.numpy(),
            gradients.arrays[self._bias],
        )
        # The inputs are passed on as they are, too: their gradient is added to that of the outputs.
        if self._narrow is None:
            self._wide.backward(self._inputs_TP, product_grad_TP, gradients, grad_TP, is_added=True)
            return
        narrow_TR = self._narrow_outputs[:num_samples]
        narrow_grad_TR = self._narrow_grads[:num_samples]
        self._wide.backward(narrow_TR, product_grad_TP, gradients, narrow_grad_TR, is_added=False)
        self._narrow.backward(self._inputs_TP, narrow_grad_TR, gradients, grad_TP, is_added=True)


class _Product:
    """The product of the current tile with one weight; what goes in and comes out is float32.

    Args:
        name: of the weight.
        weights: of the model.
    """

    def __init__(self, name: str, weights: StepWeights) -> None:
        self._matrix = Matrix(name, weights)
        num_inputs, self._num_outputs = weights.values[name].shape
        self._is_rounded = weights.rounded is not None
        most_samples = weights.most_samples if self._is_rounded else 0

        def rounded(width: int) -> torch.Tensor:
            return torch.empty(most_samples, width, dtype=torch.bfloat16, device="cpu")

        # The rounded inputs are kept for the gradient of the weight.
        self._inputs, self._input_grads = rounded(num_inputs), rounded(num_inputs)
        self._outputs, self._grads = rounded(self._num_outputs), rounded(self._num_outputs)

    def forward(self, inputs_TK: torch.Tensor, outputs_TN: torch.Tensor) -> None:
        """Write the product.

        Args:
            inputs_TK: as wide as the weight is stored.
            outputs_TN: perhaps wider than the product; what is beyond is left as it is.
        """
        num_samples = inputs_TK.shape[0]
        targetN = product_TN = outputs_TN[:, : self._num_outputs]
        if self._is_rounded:
            inputs_TK = self._inputs[:num_samples].copy_(inputs_TK)
            product_TN = self._outputs[:num_samples]
        product_TN = self._matrix.outputs(inputs_TK, product_TN)
        if product_TN is not targetN:
            targetN.copy_(product_TN)

    def backward(
        self,
        inputs_TK: torch.Tensor,
        grad_TN: torch.Tensor,
        gradients: ParameterViews,
        input_grad_TK: torch.Tensor,
        *,
        is_added: bool,
    ) -> None:
        """Write the gradient of the weight, and that by the inputs.

        Args:
            inputs_TK: those of the last forward pass.
            grad_TN: gradient by its outputs, as wide.
            gradients: where the gradient of each parameter goes, by name.
            input_grad_TK: written.
            is_added: whether it is added to what is there.
        """
        num_samples = inputs_TK.shape[0]
        grad_TN = grad_TN[:, : self._num_outputs]
        if not self._is_rounded:
            self._matrix.write_gradient(inputs_TK, grad_TN, gradients)
            found_TK = self._matrix.input_gradient(grad_TN, input_grad_TK, is_added=is_added)
            if found_TK is not input_grad_TK:
                input_grad_TK.copy_(found_TK)
            return
        grad_TN = self._grads[:num_samples].copy_(grad_TN)
        self._matrix.write_gradient(self._inputs[:num_samples], grad_TN, gradients)
        found_TK = self._matrix.input_gradient(grad_TN, self._input_grads[:num_samples])
        if is_added:
            input_grad_TK.add_(found_TK)
        else:
            input_grad_TK.copy_(found_TK)
