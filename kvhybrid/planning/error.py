"""The error of planning."""

from __future__ import annotations

from kvhybrid.errors import InputError


class PlanningError(InputError):
    """Layers, memory and limits that no cache can be planned for. The text says what to change."""
