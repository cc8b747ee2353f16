"""The dense layers of `fused_dlrm` in a step that is taken at once, on embeddings looked up before."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from ..data.batch import Batch
from ..model.dense_dtype import DenseDtype
from ..model.dense_step import DenseStep
from .fused_dlrm import DenseInputs, FusedDlrm


class FusedAtOnce:
    """The same kernels, and so the same bits, on embeddings that were looked up before.

    Args:
        fused: the dense layers.
        kernels: by name.
        plain: a step of the same model, which predicts.
        batch_size: samples of a whole batch.
    """

    def __init__(
        self,
        fused: FusedDlrm,
        kernels: Mapping[str, Callable[..., None]],
        plain: DenseStep,
        batch_size: int,
    ) -> None:
        self._fused = fused
        self._kernels = kernels
        self._plain = plain
        self._batch_size = batch_size
        self._rates_2 = torch.empty(2, device=fused.device)
        self._rates = self._rates_2.unbind()
        self.dtype: DenseDtype = plain.dtype

    def train(self, batch: Batch, embeddings: Sequence[torch.Tensor], step: int = 0) -> torch.Tensor:
        """Pass a batch forward and backward, as `DenseStep.train`."""
        # Numbers of the host are arguments of kernels: to copy them would wait for a GPU, and what the layers
        # queue could not be queued while the vectors of the batch are still on their way.
        (emb_BFD,) = embeddings
        num_samples, num_tables, dim = emb_BFD.shape
        num_lookups = num_samples * num_tables
        on = emb_BFD.device
        # The embeddings are a small tier, in which each lookup has a slot of its own.
        slots_BF = torch.full((self._batch_size, num_tables), -1, dtype=torch.int32, device=on)
        slots_BF.view(-1)[:num_lookups] = torch.arange(num_lookups, dtype=torch.int32, device=on)
        inputs = DenseInputs(
            self._padded(batch.label_B.to(on)),
            self._padded(batch.dense_BK.to(on)),
            torch.full((1,), num_samples, dtype=torch.int32, device=on),
            emb_BFD.detach().reshape(num_lookups, dim),
            slots_BF,
            torch.empty(self._batch_size, num_tables, dim, device=on),
        )
        self._fused.queue_passes(self._run, inputs)
        emb_BFD.grad = inputs.grad_BFD[:num_samples]
        loss: torch.Tensor = self._fused.loss_1[0].clone()
        return loss

    def predict(self, batch: Batch, embeddings: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return (B,) logits."""
        return self._plain.predict(batch, embeddings)

    def prepare(self, rate: float) -> None:
        """Set the learning rate of the step of the layers."""
        for place, number in zip(self._rates, self._fused.next_rates(rate).tolist(), strict=True):
            place.fill_(number)

    def step(self) -> None:
        """Take one step of the layers."""
        self._fused.queue_step(self._run, self._rates_2)

    def _run(self, kernel: str | Callable[..., object], *arguments: object) -> None:
        (self._kernels[kernel] if isinstance(kernel, str) else kernel)(*arguments)

    def _padded(self, values: torch.Tensor) -> torch.Tensor:
        padded = values.new_zeros(self._batch_size, *values.shape[1:])
        padded[: values.shape[0]] = values
        return padded
