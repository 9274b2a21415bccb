"""Cache layers of transformers that keep their tokens in pages."""

from __future__ import annotations

from functools import cache as remember
from typing import Any

import torch
from torch import Tensor

from kvhybrid.models.base import LayerCache
from kvhybrid.models.transformers.reach import Reach
from kvhybrid.specs import KVCacheSpec

LATENT = "latent"
"""The page part that has keys and values of a token as one vector."""


class PagedTokens:
    """Mixin in front of a cache layer class of transformers: full attention, a window or a chunk.

    It is bound to one sequence at a time. A layer of which nothing is planned has no pages; it only knows how long
    the sequence is, since transformers asks the first layer for that.
    """

    spec: KVCacheSpec | None = None
    pages: LayerCache
    indexer_pages: LayerCache | None = None
    reach: Reach | None = None
    """None for a layer without pages."""
    indexer_reach: Reach | None = None
    num_past: int = 0

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write ``[1, H, T, D]`` and return all keys and values that the new tokens may read."""
        reach = self.reach
        assert reach is not None, "observation found nothing that this layer keeps"
        if LATENT in self.pages:
            size = key_states.shape[-1]
            both = torch.cat([key_states, value_states], -1)
            latent = _updated(self.pages[LATENT], both, reach)
            return latent[..., :size], latent[..., size:]
        return _updated(self.pages["k"], key_states, reach), _updated(self.pages["v"], value_states, reach)

    def update_indexer(self, keys_1TD: Tensor) -> Tensor:
        """Like `update`, for the keys of a sparse attention's indexer, ``[1, T, D]``."""
        assert self.indexer_pages is not None
        assert self.indexer_reach is not None
        return _updated(self.indexer_pages[LATENT], keys_1TD[:, None], self.indexer_reach)[:, 0]

    def update_index(self, keys_1HTD: Tensor) -> Tensor:
        """The same of MiniMax-M3, ``[1, H, T, D]``."""
        assert self.indexer_pages is not None
        assert self.indexer_reach is not None
        return _updated(self.indexer_pages[LATENT], keys_1HTD, self.indexer_reach)

    def get_seq_length(self) -> int:
        return self.num_past

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """The number of keys that `update` returns, and the position of the first."""
        first = self.reach.first if self.reach is not None else 0
        return self.num_past + query_length - first, first


def paged(layer: Any) -> PagedTokens:
    """A layer like ``layer``, with its tokens in pages."""
    kind: Any = type(layer)
    made: PagedTokens = object.__new__(_paged_class(kind))
    vars(made).update(vars(layer))
    return made


@remember
def _paged_class(kind: Any) -> type[Any]:
    """``kind``, a cache layer class of transformers, with its tokens in pages."""
    # A subclass with a layer type would take the place of ``kind`` in every new cache of transformers.
    return type(f"Paged{kind.__name__}", (PagedTokens, kind), {"_layer_type": None})


def _updated(pages: Tensor, new_1HTD: Tensor, reach: Reach) -> Tensor:
    reach.write(pages, new_1HTD[0].transpose(0, 1))
    return reach.read(pages).transpose(0, 1)[None]
