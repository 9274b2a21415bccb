"""What the dataclasses of the schema share: a value that must be given, and the refusal of too small a one."""

from __future__ import annotations

MISSING = "???"
"""A value that the user has to give, as OmegaConf spells it."""


def at_least(key: str, found: int, least: int) -> None:
    """Raises ValueError for ``found`` below ``least``."""
    if found < least:
        raise ValueError(f"{key} must be at least {least}, found {found}")
