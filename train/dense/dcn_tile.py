"""The passes of DCN V2 on one tile, without a graph.

T samples of a tile, K dense features, F tables of dimension d, N numbers of a sample that are crossed, P the
same with padding, R rank, H outputs of the deep network. What is computed between the products of matrices is
in float32 whatever their type, as is the last layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from ..data.batch import at_cache_line
from ..model.shapes import DcnShape, tables_by_width
from .gradients import ParameterViews, stored_inputs
from .kernels import cross, cross_backward, last_layer_gradients, logistic_loss
from .tiles import BuildMlp, ProductTiles, mlp_layers

BuildProduct = Callable[[str], ProductTiles]
"""Makes the product with the weight of this name."""


class DcnTile:
    """The memory of one tile, used by one thread at a time.

    Args:
        shape: sizes of the model, which has linear layers and ReLU alone.
        weights: its parameters by name, float32.
        build_mlp: makes the hidden layers of an MLP.
        build_product: makes the products of the cross layers.
        most_samples: samples of the largest tile.
    """

    def __init__(
        self,
        shape: DcnShape,
        weights: Mapping[str, torch.Tensor],
        build_mlp: BuildMlp,
        build_product: BuildProduct,
        most_samples: int,
    ) -> None:
        config = shape.config
        num_inputs = self._num_inputs = shape.num_inputs
        filled_up = stored_inputs(num_inputs)
        self._is_stacked = config.structure == "stacked"
        # Bottom and deep network allocate their memory; so does each cross layer for its outputs.
        self.bottom = build_mlp(mlp_layers("bottom", shape.bottom)) if shape.bottom else None
        hidden = mlp_layers("deep", (filled_up, *config.top_widths))
        self.top = build_mlp(hidden) if hidden else None
        self._scratch = _CrossScratch(filled_up, config.cross_rank, most_samples)
        self._cross = [
            _CrossLayer(
                f"cross_layers.{number}", filled_up, config.cross_rank, weights, build_product, self._scratch
            )
            for number in range(config.cross_layers)
        ]
        # The last layer reads the deep network's outputs, those of the cross network, or both side by side.
        num_deep = hidden[-1].num_outputs if hidden else num_inputs
        num_last = (
            (num_deep if hidden else filled_up) if self._is_stacked else stored_inputs(shape.last_inputs)
        )
        self._last_weight_N = weights["last.weight"][:num_last, 0]
        self._last_bias_1 = weights["last.bias"]
        # Zeros: rows end with those that fill them up, and no pass writes there.
        self._first = torch.zeros(most_samples, filled_up)
        self._first_grads = torch.zeros(most_samples, filled_up)
        self._joined = torch.zeros(0 if self._is_stacked else most_samples, num_last)
        self._crossed_grads = torch.zeros(0 if self._is_stacked else most_samples, filled_up)
        self._deep_grads = torch.empty(0 if self._is_stacked else most_samples, num_deep)
        self._last_grads = torch.empty(most_samples, num_last)
        self._logits = torch.empty(most_samples)
        self._logit_grads = torch.empty(most_samples)
        # Dense values come first among the numbers of a sample, then the embeddings of each table group.
        num_dense = shape.bottom[-1] if shape.bottom else shape.num_dense
        self._bottom_grads = torch.empty(most_samples if self.bottom else 0, num_dense)
        self._dense_place = slice(0, num_dense)
        self._deep_place = slice(num_inputs, num_inputs + num_deep)
        self._places: list[slice] = []
        stop = num_dense
        for dim, tables in tables_by_width(shape.table_dims).items():
            self._places.append(slice(stop, stop + dim * len(tables)))
            stop = self._places[-1].stop

    def forward(self, dense_TK: torch.Tensor, embeddings: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return (T,) logits, as `StepTile.forward`."""
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
        self._last_inputs_TN = hidden_TN
        logit_T = self._logits[:num_samples]
        torch.mv(hidden_TN, self._last_weight_N, out=logit_T)
        logit_T += self._last_bias_1
        return logit_T

    def backward(
        self,
        label_T: torch.Tensor,
        scale: float,
        embedding_grads: Sequence[torch.Tensor],
        gradients: ParameterViews,
    ) -> float:
        """Write the gradients of the last tile; return its loss, as `StepTile.backward`."""
        num_samples = label_T.shape[0]
        grad_T = self._logit_grads[:num_samples].numpy()
        logit_T = self._logits[:num_samples].numpy()
        # The gradient of the loss is computed with the loss, in one pass over the logits.
        loss: float = logistic_loss(logit_T, label_T.numpy(), np.float32(scale), grad_T)
        last_grad_TN = self._last_grads[:num_samples]
        last_layer_gradients(
            grad_T,
            self._last_inputs_TN.numpy(),
            self._last_weight_N.numpy(),
            gradients.arrays["last.weight"].reshape(-1)[: self._last_weight_N.numel()],
            gradients.arrays["last.bias"],
            last_grad_TN.numpy(),
        )
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
            found = self.top.backward(last_grad_TN, gradients, to_inputs=True)
            assert found is not None
            return found, first_grad_TP
        # In parallel, the last layer's inputs are those of both networks.
        crossed_grad_TP = self._crossed_grads[:num_samples]
        crossed_grad_TP[:, : self._num_inputs].copy_(last_grad_TN[:, : self._num_inputs])
        if not self.top:
            first_grad_TP[:, : self._num_inputs].copy_(last_grad_TN[:, self._deep_place])
            return crossed_grad_TP, first_grad_TP
        deep_grad_TN = self._deep_grads[:num_samples]
        deep_grad_TN.copy_(last_grad_TN[:, self._deep_place])
        found = self.top.backward(deep_grad_TN, gradients, to_inputs=True)
        assert found is not None
        return crossed_grad_TP, found


class _CrossScratch:
    """Memory that the cross layers of a tile use in turn.

    Args:
        width: P.
        rank: R; None for full matrices.
        most_samples: samples of the largest tile.
    """

    def __init__(self, width: int, rank: int | None, most_samples: int) -> None:
        self.most_samples = most_samples
        self.product_grads = torch.zeros(most_samples, width)
        self.narrow_grads = torch.zeros(most_samples, 0 if rank is None else stored_inputs(rank))


class _CrossLayer:
    """A cross layer on a tile, perhaps of low rank.

    It computes ``x' = x0 * (W x + b) + x``, with ``W = U V'`` if a rank is set.

    Args:
        name: of the layer.
        width: P.
        rank: R; None for a full matrix.
        weights: parameters by name.
        build_product: makes its products.
        scratch: memory that it may use during a pass.
    """

    def __init__(
        self,
        name: str,
        width: int,
        rank: int | None,
        weights: Mapping[str, torch.Tensor],
        build_product: BuildProduct,
        scratch: _CrossScratch,
    ) -> None:
        self._scratch = scratch
        self._narrow = None if rank is None else build_product(f"{name}.narrow.weight")
        self._wide = build_product(f"{name}.cross.weight")
        self._bias = f"{name}.cross.bias"
        self._bias_N = weights[self._bias].numpy()
        # Zeros, like the padding of all rows.
        self._narrow_outputs = torch.zeros_like(scratch.narrow_grads)
        self._products = torch.zeros(scratch.most_samples, width)
        self._outputs = torch.zeros(scratch.most_samples, width)
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
        product_grad_TP = self._scratch.product_grads[:num_samples]
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
        narrow_grad_TR = self._scratch.narrow_grads[:num_samples]
        self._wide.backward(narrow_TR, product_grad_TP, gradients, narrow_grad_TR, is_added=False)
        self._narrow.backward(self._inputs_TP, narrow_grad_TR, gradients, grad_TP, is_added=True)
