"""The FlashAttention 2 kernel that ships with torch, via torch.nn.attention.varlen."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from kvhybrid.models.backends.base import AttentionNeed
from kvhybrid.models.backends.kernels import load_kernels, require_parameters
from kvhybrid.models.backends.paged import PagedAttention, Part
from kvhybrid.models.base import LayerCache


class TorchVarlen(PagedAttention):
    """Needs no other package than torch; no soft-cap."""

    name: ClassVar[str] = "torch_varlen"
    page_multiple: ClassVar[int] = 256

    def __init__(self, need: AttentionNeed) -> None:
        super().__init__(need)
        backend = f"{self.noun} {self.name}"
        self._kernel, aux = load_kernels(
            backend,
            "torch.nn.attention.varlen",
            ("varlen_attn", "AuxRequest"),
            package="a newer torch",
            install=f"this is {torch.__version__}",
        )
        require_parameters(backend, self._kernel, ("seqused_k", "block_table"), package="torch")
        self._with_lse = aux(lse=True)
        # A window's left side does not count the query itself; -1 means unbounded.
        window = need.visibility.window
        self._window = (-1 if window is None else window - 1, 0)

    def call(
        self, q_THD: Tensor, cache: LayerCache, part: Part, *, with_lse: bool
    ) -> tuple[Tensor, Tensor | None]:
        found = self._kernel(
            q_THD,
            cache["k"],
            cache["v"],
            part.query_starts,
            part.key_starts,
            part.max_queries,
            part.max_keys,
            return_aux=self._with_lse if with_lse else None,
            scale=self.need.scale,
            window_size=self._window,
            enable_gqa=self.need.num_heads != self.need.num_kv_heads,
            seqused_k=part.num_keys_S,
            block_table=part.table_SN,
        )
        return (found[0], found[1]) if with_lse else (found, None)
