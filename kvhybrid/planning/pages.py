"""Page sizes: brings the pages of all groups to one size in bytes.

Uses only the page size that a spec declares, and whether it grows with the block size: such a page holds tokens,
otherwise it holds a state.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import replace

from kvhybrid.specs import KVCacheSpec


def unify_pages(
    layer_specs: Mapping[str, KVCacheSpec], *, page_multiple: int, max_model_len: int
) -> dict[str, KVCacheSpec]:
    """The specs of the layers, in order, adjusted to one ``page_bytes``.

    First, states: if the largest state does not fit in the largest token page, the block size of token specs is
    raised to the smallest multiple of ``page_multiple`` at which it does. State specs get the same block size.
    Then all pages are enlarged to the largest one: token pages get the largest block size that fits, and the rest
    is padding. A state without prefix caching gets one block for the whole request.

    If all layers have one spec or are of one uniform type (`is_uniform`), nothing changes.
    """
    specs = {layer: cover_request(spec, max_model_len) for layer, spec in layer_specs.items()}
    if len(set(specs.values())) == 1 or is_uniform(specs):
        return specs
    specs = _fit_states(specs, page_multiple)
    page_bytes = max(spec.page_bytes for spec in specs.values())
    return {layer: _fit_page(spec, page_bytes) for layer, spec in specs.items()}


def is_uniform(specs: Mapping[str, KVCacheSpec]) -> bool:
    """Whether all layers are of one class, keep every token, and have one block size, so one block table is
    enough.

    Their pages may differ, e.g. in the number of heads: a single group shares no tensors.
    """
    if not all(spec.prefix for spec in specs.values()):
        return False
    return len({(type(spec), spec.block_size) for spec in specs.values()}) == 1


def _grows(spec: KVCacheSpec) -> bool:
    """Whether a page holds tokens instead of a state of fixed size."""
    double = replace(spec, block_size=2 * spec.block_size, padded_page_bytes=None)
    return double.unpadded_page_bytes > spec.unpadded_page_bytes


def cover_request(spec: KVCacheSpec, max_model_len: int) -> KVCacheSpec:
    """A state that is never reused needs no block boundaries: one block covers the longest request."""
    if spec.cacheable or _grows(spec):
        return spec
    return replace(spec, block_size=max_model_len)


def _fit_states(specs: Mapping[str, KVCacheSpec], page_multiple: int) -> dict[str, KVCacheSpec]:
    """Raise the block size of token specs until a state fits in a page; states get the same block size."""
    tokens = {layer: spec for layer, spec in specs.items() if _grows(spec)}
    if not tokens or len(tokens) == len(specs):
        return dict(specs)
    widest = max(tokens.values(), key=lambda spec: spec.page_bytes)
    state_bytes = max(spec.page_bytes for layer, spec in specs.items() if layer not in tokens)
    block_size = widest.block_size
    if widest.page_bytes < state_bytes:
        sizes = range(page_multiple, (state_bytes + 1) * page_multiple, page_multiple)  # a token has a byte
        at = bisect_left(
            sizes,
            state_bytes,
            key=lambda size: replace(widest, block_size=size, padded_page_bytes=None).page_bytes,
        )
        block_size = sizes[at]
    fitted = {}
    for layer, spec in specs.items():
        if layer in tokens:
            fitted[layer] = _with_block_size(spec, max(block_size, spec.block_size))
        else:
            fitted[layer] = _with_block_size(spec, block_size) if spec.cacheable else spec
    return fitted


def _with_block_size(spec: KVCacheSpec, block_size: int) -> KVCacheSpec:
    if block_size == spec.block_size:
        return spec
    return replace(spec, block_size=block_size, padded_page_bytes=None)


def _fit_page(spec: KVCacheSpec, page_bytes: int) -> KVCacheSpec:
    """``spec`` with pages of ``page_bytes``: the block size is multiplied while it fits; the rest is padding."""
    if _grows(spec):
        one, two = (_with_block_size(spec, n * spec.block_size).unpadded_page_bytes for n in (1, 2))
        fitting = 1 + (page_bytes - one) // (two - one)  # part of a page may not grow with the block
        spec = _with_block_size(spec, fitting * spec.block_size)
    return spec if spec.page_bytes == page_bytes else replace(spec, padded_page_bytes=page_bytes)
