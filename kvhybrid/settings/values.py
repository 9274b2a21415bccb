"""Helpers of the schema's dataclasses: the marker of required values, and bounds of numbers."""

from __future__ import annotations

MISSING = "???"
"""OmegaConf's marker of a required value."""

MOST = 1 << 24
"""Default upper bound of tokens, blocks, requests and seconds; larger numbers are assumed to be typos."""
MOST_TOKENS = 1 << 28
"""Upper bound of all prompt and output tokens of a workload, which are drawn before the run starts."""
MOST_BLOCKS = 1 << 28
"""Upper bound of a pool's blocks, whose ids have 32 bits."""
MOST_SEED = (1 << 63) - 1


def at_least(key: str, found: float, least: float, most: float = MOST) -> None:
    """Raise ValueError if ``found`` is below ``least``, above ``most``, or NaN."""
    if found < least:
        raise ValueError(f"{key} must be at least {least}, found {found}")
    if not found <= most:
        raise ValueError(f"{key} must be at most {most:,}, found {found}")
