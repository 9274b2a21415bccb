"""A research framework for the KV caches of hybrid models.

The names in ``__all__`` are the public interface. Each is imported on first use, so that ``import kvhybrid`` takes
neither torch nor transformers.
"""

from __future__ import annotations

import os
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from kvhybrid.cache.config import CacheConfigError, KVCacheConfig, KVCacheGroup
    from kvhybrid.cache.extra_keys import LoRA, MediaItem
    from kvhybrid.cache.manager import KVCacheManager
    from kvhybrid.cache.request import Request, RequestStatus
    from kvhybrid.cache.stats import CacheStats, GroupStats
    from kvhybrid.engine.engine import Engine
    from kvhybrid.engine.sampling import SamplingParams
    from kvhybrid.errors import InputError
    from kvhybrid.planning import CachePlan, PlanningError, plan_cache
    from kvhybrid.scheduling.base import CapacityError
    from kvhybrid.scheduling.scheduler import Scheduler
    from kvhybrid.specs import (
        AttentionSpec,
        ChunkedLocalAttentionSpec,
        CrossAttentionSpec,
        FullAttentionSpec,
        KVCacheSpec,
        MambaSpec,
        MLAAttentionSpec,
        PrivateStateSpec,
        SinkWindowSpec,
        SlidingWindowSpec,
        SuffixSpec,
        register_spec,
    )

__all__ = [
    "AttentionSpec",
    "CacheConfigError",
    "CachePlan",
    "CacheStats",
    "CapacityError",
    "ChunkedLocalAttentionSpec",
    "CrossAttentionSpec",
    "Engine",
    "FullAttentionSpec",
    "GroupStats",
    "InputError",
    "KVCacheConfig",
    "KVCacheGroup",
    "KVCacheManager",
    "KVCacheSpec",
    "LoRA",
    "MLAAttentionSpec",
    "MambaSpec",
    "MediaItem",
    "PlanningError",
    "PrivateStateSpec",
    "Request",
    "RequestStatus",
    "SamplingParams",
    "Scheduler",
    "SinkWindowSpec",
    "SlidingWindowSpec",
    "SuffixSpec",
    "is_compiled",
    "plan_cache",
    "register_spec",
]

_MANAGER = os.path.join(os.path.dirname(__file__), "cache", "manager")
is_compiled: Final = any(os.path.exists(_MANAGER + suffix) for suffix in EXTENSION_SUFFIXES)
"""Whether the hot modules are compiled: they are after ``pip install .``, not in an editable install."""

_HOMES = (
    "kvhybrid.errors",
    "kvhybrid.specs",
    "kvhybrid.cache.config",
    "kvhybrid.cache.extra_keys",
    "kvhybrid.cache.request",
    "kvhybrid.cache.stats",
    "kvhybrid.cache.manager",
    "kvhybrid.planning",
    "kvhybrid.scheduling.base",
    "kvhybrid.scheduling.scheduler",
    "kvhybrid.engine.sampling",
    "kvhybrid.engine.engine",
)
"""Where the names of ``__all__`` are defined. Those that need torch come last, so that no other name importsit."""


def __getattr__(name: str) -> Any:
    if name in __all__:
        for home in map(import_module, _HOMES):
            if hasattr(home, name):
                value = globals()[name] = getattr(home, name)
                return value
    raise AttributeError(f"module 'kvhybrid' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
