"""What layers keep: one spec per file, and the registry."""

if __name__ != "kvhybrid.specs":
    raise ImportError(f"import this folder as kvhybrid.specs, not as {__name__}")

from kvhybrid.specs.base import AttentionSpec, KVCacheSpec, PagePart, SuffixSpec
from kvhybrid.specs.chunked_local import ChunkedLocalAttentionSpec
from kvhybrid.specs.cross import CrossAttentionSpec
from kvhybrid.specs.full import FullAttentionSpec
from kvhybrid.specs.mamba import MambaSpec, PrivateStateSpec
from kvhybrid.specs.mla import MLAAttentionSpec
from kvhybrid.specs.registry import register_spec, registry
from kvhybrid.specs.sink_window import SinkWindowSpec
from kvhybrid.specs.sliding_window import SlidingWindowSpec

__all__ = [
    "AttentionSpec",
    "ChunkedLocalAttentionSpec",
    "CrossAttentionSpec",
    "FullAttentionSpec",
    "KVCacheSpec",
    "MLAAttentionSpec",
    "MambaSpec",
    "PagePart",
    "PrivateStateSpec",
    "SinkWindowSpec",
    "SlidingWindowSpec",
    "SuffixSpec",
    "register_spec",
    "registry",
]
