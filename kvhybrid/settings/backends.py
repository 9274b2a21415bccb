"""The part of the schema that says which kernels a model's layers run on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvhybrid.models.base import BackendChoice


@dataclass(kw_only=True)
class BackendSettings:
    """Kernel backends by the names they are registered under; ``auto`` takes the first that fits."""

    attention: str = "torch"
    mamba: str = "torch"

    def choice(self) -> BackendChoice:
        """As models take it. An unknown name is a ValueError of theirs, which lists the known ones."""
        from kvhybrid.models.base import BackendChoice

        return BackendChoice(attention=self.attention, mamba=self.mamba)
