"""Who watches the pools of a cache: the ledger of misses, the log of events, the meters of residency."""

from __future__ import annotations

from collections.abc import Callable

from kvhybrid.cache.coordinators import KVCacheCoordinator
from kvhybrid.cache.event_log import EventLog
from kvhybrid.cache.misses import MissLedger
from kvhybrid.cache.residency_meter import GroupResidency, ResidencyMeter
from kvhybrid.managers.pool.observer import PoolObserver


def observe(
    coordinator: KVCacheCoordinator, misses: bool, events: bool, clock: Callable[[], float] | None
) -> tuple[EventLog | None, list[GroupResidency] | None]:
    """Have every pool of ``coordinator`` watched by those that are asked for.

    Returns the log of events, and per group, how long its blocks live by ``clock``.
    """
    config, observers = coordinator.config, list[PoolObserver]()
    if misses:
        coordinator.ledger = MissLedger(len(config.groups))
        observers.append(coordinator.ledger)
    log = EventLog(config, coordinator.index) if events else None
    if log:
        observers.append(log)
    residency = [GroupResidency() for _ in config.groups] if clock else None
    for pool in coordinator.pools:
        meter = (ResidencyMeter(pool, residency, clock),) if clock and residency is not None else ()
        pool.observers = (*observers, *meter)
    return log, residency
