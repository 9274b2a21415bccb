"""Backend plans (index tensors) of one batch, shared between layers."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from kvhybrid.models.backends.base import Backend
from kvhybrid.models.base import ForwardBatch, GroupBatch


class Plans:
    """One batch and the plans made for it so far. Lives for one forward pass."""

    def __init__(self, batch: ForwardBatch) -> None:
        self.batch = batch
        # Keeps a reference to each group, so that its id is not reused for another group.
        self._made: dict[Hashable, tuple[GroupBatch, Any]] = {}

    def plan(self, layer: str, backend: Backend) -> Any:
        """``backend``'s plan for the group of ``layer``."""
        group = self.batch.group_of_layer[layer]
        key = (id(group), backend.plan_key)
        if key not in self._made:
            self._made[key] = (group, backend.plan(self.batch, group))
        return self._made[key][1]
