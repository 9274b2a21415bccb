"""The error of planning."""

from __future__ import annotations

from kvhybrid.errors import InputError


class PlanningError(InputError):
    """No cache can be planned for these layers, memory and limits. The message says what to change."""
