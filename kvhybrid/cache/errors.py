"""Errors of the cache manager. Either leaves everything as it was before the call."""

from __future__ import annotations


class StaleHitError(ValueError):
    """A hit names blocks that were reused since the look-up."""


class ManagerError(RuntimeError):
    """A single-type manager raised in the middle of a call, which was rolled back."""
