"""FlashAttention 4, written in CuTe for Hopper and Blackwell: the package flash-attn-4, a beta."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from kvhybrid.models.backends.base import AttentionNeed
from kvhybrid.models.backends.kernels import load_kernels, require_parameters
from kvhybrid.models.backends.paged import PagedAttention, Part
from kvhybrid.models.base import LayerCache


class FlashAttention4(PagedAttention):
    """One call for prefill and decode; supports any page size."""

    name: ClassVar[str] = "flash_attention4"
    capabilities: ClassVar[frozenset[int] | None] = frozenset({9, 10, 11})
    head_multiple: ClassVar[int] = 16
    soft_caps: ClassVar[bool] = True

    def __init__(self, need: AttentionNeed) -> None:
        super().__init__(need)
        backend = f"{self.noun} {self.name}"
        (self._kernel,) = load_kernels(
            backend,
            "flash_attn.cute",
            ("flash_attn_varlen_func",),
            package="flash-attn-4",
            install="pip install --pre 'kvhybrid[gpu4]'",
        )
        # The package flash-attn has an early version under the same name.
        require_parameters(backend, self._kernel, ("max_seqlen_k", "return_lse"), package="flash-attn-4")
        # A window's left side does not count the query itself; None means unbounded.
        window = need.visibility.window
        self._window = (None, None) if window is None else (window - 1, 0)

    def call(
        self, q_THD: Tensor, cache: LayerCache, part: Part, *, with_lse: bool
    ) -> tuple[Tensor, Tensor | None]:
        out_THD, lse_HT = self._kernel(
            q_THD,
            cache["k"],
            cache["v"],
            cu_seqlens_q=part.query_starts,
            max_seqlen_q=part.max_queries,
            max_seqlen_k=part.max_keys,
            seqused_k=part.num_keys_S,
            page_table=part.table_SN,
            softmax_scale=self.need.scale,
            causal=True,
            window_size=self._window,
            softcap=self.need.soft_cap or 0.0,
            return_lse=with_lse,
        )
        return out_THD, lse_HT if with_lse else None
