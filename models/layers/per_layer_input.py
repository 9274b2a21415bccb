"""Per-layer embeddings (Gemma 3n): each layer has its own small embedding of each token.

N is the number of layers, I the width of their inputs.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from kvhybrid.models.layers.activation import Activation
from kvhybrid.models.layers.norm import WideRMSNorm


class PerLayerInputs(nn.Module):
    """Each layer's additional input: its own embedding of each token plus a projection of the shared embedding."""

    def __init__(self, vocab_size: int, width: int, layers: int, layer_width: int, eps: float) -> None:
        super().__init__()
        self.embed_tokens_per_layer = nn.Embedding(vocab_size, layers * layer_width)
        self.per_layer_model_projection = nn.Linear(width, layers * layer_width, bias=False)
        self.per_layer_projection_norm = WideRMSNorm(layer_width, eps)

    def forward(self, token_ids_T: Tensor, x_TM: Tensor) -> Tensor:
        """``inputs_TNI`` for the tokens and their embeddings ``x_TM``."""
        layer_width = self.per_layer_projection_norm.weight.shape[0]

        def factor(value: float) -> Tensor:
            # Factors are rounded to the dtype of the weights first, as in training.
            return torch.tensor(value, dtype=x_TM.dtype, device=x_TM.device)

        # Tokens outside of this vocabulary, which is smaller than the model's, use the embedding of token 0.
        known_T = torch.where(token_ids_T < self.embed_tokens_per_layer.num_embeddings, token_ids_T, 0)
        own_TNI = (self.embed_tokens_per_layer(known_T) * factor(layer_width**0.5)).unflatten(1, (-1, layer_width))
        common_TF = self.per_layer_model_projection(x_TM) * factor(x_TM.shape[-1] ** -0.5)
        common_TNI = self.per_layer_projection_norm(common_TF.unflatten(1, (-1, layer_width)))
        inputs_TNI: Tensor = (common_TNI + own_TNI) * factor(0.5**0.5)
        return inputs_TNI


class PerLayerInput(nn.Module):
    """One layer's use of its input: ``norm(project(act(gate(x)) · input))``."""

    def __init__(self, width: int, layer_width: int, act: Activation, eps: float) -> None:
        super().__init__()
        self.act = act
        self.per_layer_input_gate = nn.Linear(width, layer_width, bias=False)
        self.per_layer_projection = nn.Linear(layer_width, width, bias=False)
        self.post_per_layer_input_norm = WideRMSNorm(width, eps)

    def forward(self, x_TM: Tensor, input_TI: Tensor) -> Tensor:
        gated_TI = self.act(self.per_layer_input_gate(x_TM)) * input_TI
        out_TM: Tensor = self.post_per_layer_input_norm(self.per_layer_projection(gated_TI))
        return out_TM
