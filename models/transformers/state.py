"""Recurrent states: transformers computes on tensors of its own, which are read from and written to pages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class HeldState:
    """One tensor of a state, ``holder[key]``: in a cache layer's dict, in a list of the cache, or in a module."""

    part: str
    """The page part that keeps it between steps."""
    holder: Any
    key: Any
    template: Tensor
    """Shape ``[1, …]``, dtype and device of the tensor."""

    def load(self, page: Tensor) -> None:
        """Set the tensor to the state in ``page``. The page may lack the oldest input of a convolution, which is
        never read."""
        state = torch.zeros_like(self.template)
        state[0, ..., state.shape[-1] - page.shape[-1] :] = page.to(state.dtype)
        self._set(state)

    def clear(self) -> None:
        """Set the tensor to that of a new sequence."""
        owned = isinstance(self.holder, dict)
        self._set(torch.zeros_like(self.template) if owned else None)

    def store(self, page: Tensor) -> None:
        state = self.holder[self.key] if not isinstance(self.holder, nn.Module) else getattr(self.holder, self.key)
        page.copy_(state[0, ..., state.shape[-1] - page.shape[-1] :])

    def _set(self, state: Tensor | None) -> None:
        if isinstance(self.holder, nn.Module):
            setattr(self.holder, self.key, state)
        else:
            self.holder[self.key] = state
