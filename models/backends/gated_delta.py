"""The interface of gated delta backends."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from kvhybrid.models.backends.base import Backend
from kvhybrid.models.base import LayerCache


@dataclass(frozen=True)
class GatedDeltaNeed:
    """The requirements of one gated delta layer."""

    layer: str
    num_heads: int
    """Value heads, each with its own state."""
    num_key_heads: int
    """Query and key heads; each is shared by an equal number of consecutive value heads."""
    key_size: int
    value_size: int
    conv_width: int

    @property
    def keys(self) -> int:
        """Channels of the keys, all heads together; the queries have as many."""
        return self.num_key_heads * self.key_size

    @property
    def values(self) -> int:
        """Channels of the values, all heads together."""
        return self.num_heads * self.value_size

    @property
    def channels(self) -> int:
        """Channels of the convolution: queries, keys, values."""
        return 2 * self.keys + self.values


class GatedDeltaBackend(Backend):
    """The two operations of a gated delta layer that have a state: the causal convolution and the delta rule.

    Both start from the state after ``context_lens`` tokens, or zeros for a new sequence, and store the state after
    the batch. The source and the target block of a sequence may be the same.
    """

    noun: ClassVar[str] = "gated delta backend"

    def __init__(self, need: GatedDeltaNeed) -> None:
        if need.num_heads % need.num_key_heads:
            raise ValueError(
                f"layer {need.layer}: {need.num_heads} value heads cannot be divided evenly among "
                f"{need.num_key_heads} key heads"
            )
        self.accept(need)

    @property
    def plan_key(self) -> Hashable:
        return type(self), self.need.conv_width

    @abstractmethod
    def convolve(self, x_TC: Tensor, weight_CW: Tensor, cache: LayerCache, plan: Any) -> Tensor:
        """Depthwise causal convolution, ``out_TC``. ``cache["conv"]`` keeps the last W − 1 inputs."""

    @abstractmethod
    def scan(
        self,
        q_TGR: Tensor,
        k_TGR: Tensor,
        v_THD: Tensor,
        log_decay_TH: Tensor,
        beta_TH: Tensor,
        cache: LayerCache,
        plan: Any,
    ) -> Tensor:
        """The gated delta rule, token by token; returns ``y_THD``, float32.

        ``h = exp(log_decay) · h``, then ``h = h + k ⊗ beta · (v − k · h)``, then ``y = q · h``: what the state
        holds under the key moves towards the value. G key heads of size R; keys are no longer than 1,
        ``log_decay`` is at most 0 and ``beta`` between 0 and 1. ``cache["state"]`` keeps ``h_HRD``.
        """
