"""FlashAttention 2 (arXiv:2307.08691), from the package flash-attn."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from kvhybrid.models.backends.base import AttentionNeed
from kvhybrid.models.backends.kernels import load_kernels, require_parameters
from kvhybrid.models.backends.paged import PagedAttention, Part
from kvhybrid.models.base import LayerCache


class FlashAttention2(PagedAttention):
    """Single queries use the decode kernel, which splits long contexts; other runs use the prefill kernel."""

    name: ClassVar[str] = "flash_attention2"
    page_multiple: ClassVar[int] = 256
    soft_caps: ClassVar[bool] = True
    decode_apart: ClassVar[bool] = True

    def __init__(self, need: AttentionNeed) -> None:
        super().__init__(need)
        backend = f"{self.noun} {self.name}"
        self._prefill, self._decode = load_kernels(
            backend,
            "flash_attn",
            ("flash_attn_varlen_func", "flash_attn_with_kvcache"),
            package="flash-attn",
            install="pip install 'kvhybrid[gpu]'",
        )
        for kernel in (self._prefill, self._decode):
            require_parameters(backend, kernel, ("block_table", "softcap"), package="flash-attn")
        # A window's left side does not count the query itself; -1 means unbounded.
        window = need.visibility.window
        self._scores = {
            "softmax_scale": need.scale,
            "causal": True,
            "window_size": (-1, -1) if window is None else (window - 1, 0),
            "softcap": need.soft_cap or 0.0,
        }

    def call(
        self, q_THD: Tensor, cache: LayerCache, part: Part, *, with_lse: bool
    ) -> tuple[Tensor, Tensor | None]:
        if part.max_queries == 1:
            found = self._decode(
                q_THD[:, None],
                cache["k"],
                cache["v"],
                cache_seqlens=part.num_keys_S,
                block_table=part.table_SN,
                return_softmax_lse=with_lse,
                **self._scores,
            )
            return (found[0][:, 0], found[1][:, :, 0].t()) if with_lse else (found[:, 0], None)
        found = self._prefill(
            q_THD,
            cache["k"],
            cache["v"],
            part.query_starts,
            part.key_starts,
            part.max_queries,
            part.max_keys,
            return_attn_probs=with_lse,
            block_table=part.table_SN,
            **self._scores,
        )
        return (found[0], found[1]) if with_lse else (found, None)
