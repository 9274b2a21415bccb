"""The part of the schema that selects kernels for a model's layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvhybrid.models.base import BackendChoice


@dataclass(kw_only=True)
class BackendSettings:
    """Kernel backends by registered name; ``auto`` picks the first that is usable."""

    attention: str = "torch"
    mamba: str = "torch"

    def choice(self) -> BackendChoice:
        """The choice in the form that models take; they raise ValueError for unknown names."""
        from kvhybrid.models.base import BackendChoice

        return BackendChoice(attention=self.attention, mamba=self.mamba)
