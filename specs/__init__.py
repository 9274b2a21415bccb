"""What layers keep: one spec a file, and the registry."""

if __name__ != "kvhybrid.specs":
    raise ImportError(f"import this folder as kvhybrid.specs, not as {__name__}")

from kvhybrid.specs.base import AttentionSpec, KVCacheSpec, PagePart, SuffixSpec
from kvhybrid.specs.chunked_local import ChunkedLocalAttentionSpec
from kvhybrid.specs.cross import CrossAttentionSpec
from kvhybrid.specs.full import FullAttentionSpec
from kvhybrid.specs.mamba import MambaSpec, PrivateStateSpec
from kvhybrid.specs.mla import MLAAttentionSpec
from kvhybrid.specs.registry import SpecEntry, SpecRegistry, SpecRegistryError, register_spec, registry
from kvhybrid.specs.sink_window import SinkWindowSpec
from kvhybrid.specs.sliding_window import SlidingWindowSpec

_BUILT_IN = {
    FullAttentionSpec: "kvhybrid.managers.full:FullAttentionManager",
    MLAAttentionSpec: "kvhybrid.managers.full:FullAttentionManager",
    SlidingWindowSpec: "kvhybrid.managers.sliding_window:SlidingWindowManager",
    ChunkedLocalAttentionSpec: "kvhybrid.managers.chunked_local:ChunkedLocalAttentionManager",
    CrossAttentionSpec: "kvhybrid.managers.cross:CrossAttentionManager",
    SinkWindowSpec: "kvhybrid.managers.base:SingleTypeKVCacheManager",
    MambaSpec: "kvhybrid.managers.mamba:MambaManager",
    PrivateStateSpec: "kvhybrid.managers.base:SingleTypeKVCacheManager",
}
for _spec, _manager in _BUILT_IN.items():
    registry.register(_spec, manager=_manager, origin="built in")

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
    "SpecEntry",
    "SpecRegistry",
    "SpecRegistryError",
    "SuffixSpec",
    "register_spec",
    "registry",
]
