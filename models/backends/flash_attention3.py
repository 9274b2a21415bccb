"""FlashAttention 3 (arXiv:2407.08608), for Hopper: the module flash_attn_interface."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from kvhybrid.models.backends.base import AttentionNeed
from kvhybrid.models.backends.kernels import load_kernels, require_parameters
from kvhybrid.models.backends.paged import PagedAttention, Part
from kvhybrid.models.base import LayerCache


class FlashAttention3(PagedAttention):
    """One call for prefill and decode; supports any page size."""

    name: ClassVar[str] = "flash_attention3"
    capabilities: ClassVar[frozenset[int] | None] = frozenset({9})
    soft_caps: ClassVar[bool] = True

    def __init__(self, need: AttentionNeed) -> None:
        super().__init__(need)
        backend = f"{self.noun} {self.name}"
        (self._kernel,) = load_kernels(
            backend,
            "flash_attn_interface",
            ("flash_attn_with_kvcache",),
            package="flash_attn_interface",
            install="build the folder hopper of the repository Dao-AILab/flash-attention",
        )
        require_parameters(backend, self._kernel, ("page_table", "softcap"), package="flash_attn_interface")
        # A window's left side does not count the query itself; -1 means unbounded.
        window = need.visibility.window
        self._window = (-1, -1) if window is None else (window - 1, 0)

    def call(
        self, q_THD: Tensor, cache: LayerCache, part: Part, *, with_lse: bool
    ) -> tuple[Tensor, Tensor | None]:
        found = self._kernel(
            q_THD,
            cache["k"],
            cache["v"],
            cache_seqlens=part.num_keys_S,
            page_table=part.table_SN,
            cu_seqlens_q=part.query_starts,
            max_seqlen_q=part.max_queries,
            softmax_scale=self.need.scale,
            causal=True,
            window_size=self._window,
            softcap=self.need.soft_cap or 0.0,
            return_softmax_lse=with_lse,
        )
        return (found[0], found[1]) if with_lse else (found, None)
