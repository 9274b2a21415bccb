"""Waste: what a cache that keeps every token in every layer would hold without ever reading it again."""

from __future__ import annotations

from collections.abc import Iterable

from kvhybrid.specs import KVCacheSpec


def uniform_waste(specs: Iterable[KVCacheSpec], num_tokens: int, encoder_tokens: int = 0) -> float:
    """The share of its bytes, 0 to 1, that a uniform cache wastes in a request of ``num_tokens`` tokens.

    A uniform cache keeps all tokens, those of the encoder included, in all layers that keep tokens; as vLLM did
    before it had groups of layers. What the last token reads or writes is not wasted. States are the same in both.
    """
    kept = needed = 0.0
    for spec in specs:
        if spec.state or (not spec.cacheable and spec.source == "decoder"):
            kept += spec.unpadded_page_bytes
            needed += spec.unpadded_page_bytes
            continue
        token = spec.unpadded_page_bytes / spec.block_size
        kept += token * (num_tokens + encoder_tokens)
        needed += token * (encoder_tokens if spec.source == "encoder" else _tokens_needed(spec, num_tokens))
    return 1 - needed / kept if kept else 0.0


def _tokens_needed(spec: KVCacheSpec, num_tokens: int) -> int:
    """The tokens that the last one reads, and itself."""
    return sum(map(len, spec.live(num_tokens - 1))) + 1
