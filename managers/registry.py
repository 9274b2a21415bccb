"""Which manager serves the blocks of a spec."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvhybrid.plugins import PluginError, Registry
from kvhybrid.specs import KVCacheSpec
from kvhybrid.specs import registry as specs

if TYPE_CHECKING:
    from kvhybrid.managers.base import SingleTypeKVCacheManager

GENERIC = "kvhybrid.managers.base:SingleTypeKVCacheManager"

managers: Registry[SingleTypeKVCacheManager] = Registry(
    "manager",
    "kvhybrid.managers",
    GENERIC,
    {
        "chunked_local": "kvhybrid.managers.chunked_local:ChunkedLocalAttentionManager",
        "cross": "kvhybrid.managers.cross:CrossAttentionManager",
        "full": "kvhybrid.managers.full:FullAttentionManager",
        "mamba": "kvhybrid.managers.mamba:MambaManager",
        "mla": "kvhybrid.managers.full:FullAttentionManager",
        "sliding_window": "kvhybrid.managers.sliding_window:SlidingWindowManager",
    },
)
"""By the registered name of the spec that they serve."""


def manager_of(spec: type[KVCacheSpec]) -> type[SingleTypeKVCacheManager]:
    """The class that manages the blocks of ``spec``.

    It is the one that the spec names in its class variable ``manager``, else the one registered under the spec's
    name, else the generic one. A spec that is not registered is served as its nearest registered base class.

    Raises:
        PluginError: Neither the spec nor a base class is registered, or the manager cannot be loaded.
    """
    name = specs.name_of(spec)
    try:
        if spec.manager is not None:
            return managers.find(spec.manager)
        return managers.get(name) if name in managers else managers.find(GENERIC)
    except PluginError as error:
        raise PluginError(f"spec {name!r}: {error}") from error
