"""An embedding scaled to the magnitude of hidden states."""

from __future__ import annotations

from torch import Tensor, nn


class ScaledEmbedding(nn.Embedding):
    """Gemma's: rows are multiplied by the square root of their width. A head tied to it reads them unscaled."""

    def forward(self, input: Tensor) -> Tensor:
        """``x_TM`` of token ids."""
        x_TM = super().forward(input)
        # The factor is rounded to the dtype of the weights first, as in training.
        return x_TM * x_TM.new_tensor(self.embedding_dim**0.5)
