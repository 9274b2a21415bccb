"""Errors of the cache manager. Either leaves everything as it was before the call."""

from __future__ import annotations


class StaleHitError(ValueError):
    """A hit names blocks that were reused since the look-up."""


class ManagerError(RuntimeError):
    """A manager, a spec, an order of reuse or a retention policy raised. The call was rolled back."""
