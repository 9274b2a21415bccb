"""Orders of reuse, which choose the cached free block that is reused next: one per file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvhybrid.plugins import Registry

if TYPE_CHECKING:
    from kvhybrid.managers.eviction.base import ReuseOrder

orders: Registry[ReuseOrder] = Registry(
    "order of reuse",
    "kvhybrid.orders",
    "kvhybrid.managers.eviction.base:ReuseOrder",
    {
        "lru": "kvhybrid.managers.eviction.lru:LRU",
        "lifetime": "kvhybrid.managers.eviction.lifetime:Lifetime",
        "fifo": "kvhybrid.managers.eviction.fifo:FIFO",
        "lfu": "kvhybrid.managers.eviction.lfu:LFU",
        "s3_fifo": "kvhybrid.managers.eviction.s3_fifo:S3FIFO",
        "sieve": "kvhybrid.managers.eviction.sieve:Sieve",
        "arc": "kvhybrid.managers.eviction.arc:ARC",
        "joint": "kvhybrid.managers.eviction.joint:Joint",
    },
)
