"""The interface of cross-attention backends."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from kvhybrid.models.backends.base import Backend
from kvhybrid.models.base import GroupBatch, LayerCache


@dataclass(frozen=True)
class CrossNeed:
    """The requirements of one cross-attention layer."""

    layer: str
    num_heads: int
    num_kv_heads: int
    head_size: int
    scale: float
    """Factor on the scores, before the soft-cap."""
    soft_cap: float | None = None
    """Scores become ``cap · tanh(score / cap)``."""


class CrossBackend(Backend):
    """Attention of a ragged batch to all paged keys and values of its encoder tokens."""

    noun: ClassVar[str] = "cross-attention backend"
    soft_caps: ClassVar[bool] = False

    def __init__(self, need: CrossNeed) -> None:
        self.accept(need)

    @classmethod
    def lacking(cls, need: CrossNeed) -> list[str]:
        return ["a soft-cap"] if need.soft_cap is not None and not cls.soft_caps else []

    @property
    def plan_key(self) -> Hashable:
        return type(self)

    def write(self, k_TKD: Tensor, v_TKD: Tensor, cache: LayerCache, group: GroupBatch) -> None:
        """Write the keys and values of the concatenated encoder tokens to ``group.slot_mapping_T``."""
        blocks_T = group.slot_mapping_T // group.block_size
        offsets_T = group.slot_mapping_T % group.block_size
        for name, new_TKD in (("k", k_TKD), ("v", v_TKD)):
            cache[name][blocks_T, offsets_T] = new_TKD.to(cache[name].dtype)

    @abstractmethod
    def attend(self, q_THD: Tensor, cache: LayerCache, plan: Any) -> Tensor:
        """The attention output of every decoder token, ``out_THD``."""
