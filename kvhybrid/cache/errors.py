"""Errors of the cache manager. Either leaves everything as it was before the call."""

from __future__ import annotations

from kvhybrid.cache.coordinators import KVCacheCoordinator


class StaleHitError(ValueError):
    """A hit names blocks that were reused since the look-up."""


class ManagerError(RuntimeError):
    """A single-type manager raised in the middle of a call, which was rolled back."""


def manager_error(coordinator: KVCacheCoordinator, error: Exception, where: str) -> ManagerError:
    """One of the managers raised ``error`` in the call that ``where`` describes."""
    kinds = ", ".join(sorted({f"{type(m).__name__} ({m.spec.kind})" for m in coordinator.managers}))
    what = f"{type(error).__name__}: {error}"
    told = ManagerError(f"{where}: one of the managers {kinds} raised {what}; the call was rolled back")
    told.__cause__ = error  # compiled, "raise … from …" does not set it
    return told
