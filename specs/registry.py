"""The registry of specs: built in, registered by decorator, or from another distribution."""

from __future__ import annotations

from typing import TypeVar

from kvhybrid.plugins import Registry
from kvhybrid.specs.base import KVCacheSpec

Spec = TypeVar("Spec", bound=type[KVCacheSpec])

registry: Registry[KVCacheSpec] = Registry(
    "spec",
    "kvhybrid.specs",
    "kvhybrid.specs.base:KVCacheSpec",
    {
        "chunked_local": "kvhybrid.specs.chunked_local:ChunkedLocalAttentionSpec",
        "cross": "kvhybrid.specs.cross:CrossAttentionSpec",
        "full": "kvhybrid.specs.full:FullAttentionSpec",
        "mamba": "kvhybrid.specs.mamba:MambaSpec",
        "mla": "kvhybrid.specs.mla:MLAAttentionSpec",
        "private_state": "kvhybrid.specs.mamba:PrivateStateSpec",
        "sink_window": "kvhybrid.specs.sink_window:SinkWindowSpec",
        "sliding_window": "kvhybrid.specs.sliding_window:SlidingWindowSpec",
    },
)


def register_spec(spec: Spec) -> Spec:
    """Class decorator that registers ``spec`` under its class variable ``kind``.

    Its class variable ``manager`` names the manager of its blocks, by default the generic manager.

    Raises:
        PluginError: It is not a spec class, has no ``kind``, or another class has that name.
    """
    return registry.register(getattr(spec, "kind", ""))(spec)
