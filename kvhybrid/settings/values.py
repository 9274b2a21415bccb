"""What the dataclasses of the schema share: a value that must be given, and the bounds of numbers."""

from __future__ import annotations

MISSING = "???"
"""A value that the user has to give, as OmegaConf spells it."""

MOST = 1 << 24
"""Tokens, blocks, requests, seconds: where nothing else is said, a larger number is a slip of the pen."""
MOST_TOKENS = 1 << 28
"""Of all prompts and outputs of a workload together: they are drawn before the run starts."""
MOST_BLOCKS = 1 << 28
"""Of a pool, which takes up memory for what is used of it. Blocks are numbered in 32 bits."""
MOST_SEED = (1 << 63) - 1


def at_least(key: str, found: float, least: float, most: float = MOST) -> None:
    """Raises ValueError for ``found`` below ``least`` or above ``most``, and for what is no number (NaN)."""
    if found < least:
        raise ValueError(f"{key} must be at least {least}, found {found}")
    if not found <= most:
        raise ValueError(f"{key} must be at most {most:,}, found {found}")
