"""The registry of managers by the spec that they serve."""

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
"""Managers by the registered name of the spec that they serve."""


def manager_of(spec: type[KVCacheSpec]) -> type[SingleTypeKVCacheManager]:
    """The class that manages the blocks of ``spec``.

    This is the one in the spec's class variable ``manager``, else the one registered under the spec's name, else
    the generic one. An unregistered spec is served like its nearest registered base class.

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
