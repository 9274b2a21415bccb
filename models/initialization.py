"""Seeded random weights for models without a checkpoint."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import nn


@runtime_checkable
class Fillable(Protocol):
    """A layer that initializes its own parameters."""

    def fill(self, generator: torch.Generator) -> None: ...


@torch.no_grad()
def fill_randomly(model: nn.Module, seed: int) -> None:
    """Initialize every parameter: matrices preserve the scale of their input, norms start at one.

    Embeddings are small; otherwise a model with a tied head would repeat its last token.
    """
    generator = torch.Generator().manual_seed(seed)
    # Children first, so that a layer's own `fill` overrides that of its submodules.
    for module in reversed(list(model.modules())):
        if isinstance(module, nn.Linear):
            module.weight.normal_(0.0, module.in_features**-0.5, generator=generator)
            if module.bias is not None:
                module.bias.zero_()
        elif isinstance(module, nn.Embedding):
            module.weight.normal_(0.0, 0.1 * module.embedding_dim**-0.5, generator=generator)
        elif isinstance(module, Fillable):
            module.fill(generator)
