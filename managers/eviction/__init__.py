"""Orders of reuse: which cached free block goes next, one order a file."""

from __future__ import annotations

from importlib import import_module

from kvhybrid.managers.eviction.base import ReuseOrder

ORDERS = {"lru": "kvhybrid.managers.eviction.lru:LRU"}


def reuse_order(name: str) -> type[ReuseOrder]:
    """The class of the order called ``name``, or of ``"module:Class"``."""
    path = ORDERS.get(name, name)
    module, colon, attribute = path.partition(":")
    if not colon:
        raise ValueError(f"unknown eviction {name!r}; accepted: {', '.join(ORDERS)} or module:Class")
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"eviction {name!r} cannot be imported: {error}") from error
    if not (isinstance(found, type) and issubclass(found, ReuseOrder)):
        raise ValueError(
            f"eviction {name!r} is no subclass of ReuseOrder; accepted: {', '.join(ORDERS)} or module:Class"
        )
    return found


__all__ = ["ORDERS", "ReuseOrder", "reuse_order"]
