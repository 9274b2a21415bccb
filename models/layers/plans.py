"""Index tensors of one batch, shared by the layers that need the same ones."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from kvhybrid.models.backends.base import Backend
from kvhybrid.models.base import ForwardBatch, GroupBatch


class Plans:
    """One batch and the plans made for it so far. Lives as long as one forward pass."""

    def __init__(self, batch: ForwardBatch) -> None:
        self.batch = batch
        # Groups are kept beside their plans, so that an id never passes to another group.
        self._made: dict[Hashable, tuple[GroupBatch, Any]] = {}

    def plan(self, layer: str, backend: Backend) -> Any:
        """``backend``'s plan for the group of ``layer``."""
        group = self.batch.group_of_layer[layer]
        key = (id(group), backend.plan_key)
        if key not in self._made:
            self._made[key] = (group, backend.plan(self.batch, group))
        return self._made[key][1]
