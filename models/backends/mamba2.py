"""The interface of Mamba-2 backends."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from kvhybrid.models.backends.base import Backend
from kvhybrid.models.base import LayerCache


@dataclass(frozen=True)
class Mamba2Need:
    """The requirements of one Mamba-2 layer."""

    layer: str
    num_heads: int
    head_size: int
    num_groups: int
    """Groups of an equal number of heads; the heads of a group share B and C."""
    state_size: int
    conv_width: int

    @property
    def inner(self) -> int:
        """Channels of x, all heads together."""
        return self.num_heads * self.head_size

    @property
    def channels(self) -> int:
        """Channels of the convolution: x, then B and C of every group."""
        return self.inner + 2 * self.num_groups * self.state_size


class Mamba2Backend(Backend):
    """The two operations of a Mamba-2 layer that have a state: the causal convolution and the scan.

    Both start from the state after ``context_lens`` tokens, or zeros for a new sequence, and store the state after
    the batch. The source and the target block of a sequence may be the same.
    """

    need: Mamba2Need
    noun: ClassVar[str] = "Mamba-2 backend"

    def __init__(self, need: Mamba2Need) -> None:
        if need.num_heads % need.num_groups:
            raise ValueError(
                f"layer {need.layer}: {need.num_heads} heads cannot be divided evenly among "
                f"{need.num_groups} groups"
            )
        self.accept(need)

    @property
    def plan_key(self) -> Hashable:
        return type(self), self.need.conv_width

    @abstractmethod
    def convolve(
        self, x_TC: Tensor, weight_CW: Tensor, bias_C: Tensor | None, cache: LayerCache, plan: Any
    ) -> Tensor:
        """Depthwise causal convolution, ``out_TC``. ``cache["conv"]`` keeps the last W − 1 inputs."""

    @abstractmethod
    def scan(
        self,
        x_THD: Tensor,
        dt_TH: Tensor,
        A_H: Tensor,
        B_TGR: Tensor,
        C_TGR: Tensor,
        cache: LayerCache,
        plan: Any,
    ) -> Tensor:
        """``h = exp(dt · A) · h + dt · x ⊗ B`` and ``y = h · C``, token by token; returns ``y_THD``, float32.

        ``dt`` is positive and ``A`` negative. G groups; ``cache["ssm"]`` keeps ``h_HDR``.
        """
