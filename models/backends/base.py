"""The contract of this folder: what a layer asks of a backend, and what a backend declares and does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from kvhybrid.models.backends.visibility import Visibility
from kvhybrid.models.base import ForwardBatch, GroupBatch, LayerCache


@dataclass(frozen=True)
class AttentionNeed:
    """What one attention layer asks of its backend."""

    layer: str
    num_heads: int
    num_kv_heads: int
    head_size: int
    scale: float
    """What scores are multiplied by, before the soft-cap."""
    visibility: Visibility
    soft_cap: float | None = None
    """Scores become ``cap · tanh(score / cap)``."""
    sink_logits: bool = False
    """Each head has one more logit in its softmax, learned, with nothing to read behind it."""


@dataclass(frozen=True)
class MambaNeed:
    """What one Mamba-1 layer asks of its backend."""

    layer: str
    channels: int
    state_size: int
    conv_width: int


class Backend(ABC):
    """What every backend declares. A plan holds the index tensors of one batch for one cache group."""

    name: ClassVar[str]
    dtypes: ClassVar[frozenset[torch.dtype]]
    """Element types of the cache that it reads and writes."""
    devices: ClassVar[frozenset[str] | None] = None
    """Device types that it runs on; None for any."""

    @property
    @abstractmethod
    def plan_key(self) -> Hashable:
        """Backends of equal key make equal plans, so that layers of one group share one."""

    @abstractmethod
    def plan(self, batch: ForwardBatch, group: GroupBatch) -> Any:
        """What this backend's calls need to know about the batch; made once for all layers that share it."""

    def check_cache(self, layer: str, cache: LayerCache) -> None:
        """Refuse, by ValueError, pages that this backend cannot use."""
        for part, pages in cache.items():
            if pages.dtype not in self.dtypes:
                accepted = ", ".join(sorted(str(dtype) for dtype in self.dtypes))
                raise ValueError(
                    f"layer {layer}: backend {self.name} cannot keep {part!r} as {pages.dtype}; "
                    f"accepted: {accepted}"
                )
            if self.devices is not None and pages.device.type not in self.devices:
                raise ValueError(
                    f"layer {layer}: backend {self.name} runs on {', '.join(sorted(self.devices))}, "
                    f"its pages lie on {pages.device.type}"
                )


class AttentionBackend(Backend):
    """Causal attention of a ragged batch over paged keys and values."""

    page_multiple: ClassVar[int] = 1
    """Tokens: the block size must be a multiple."""
    windows: ClassVar[bool] = False
    chunks: ClassVar[bool] = False
    sinks: ClassVar[bool] = False
    soft_caps: ClassVar[bool] = False
    sink_logits: ClassVar[bool] = False

    def __init__(self, need: AttentionNeed) -> None:
        asked = {
            "a window": (need.visibility.window is not None, self.windows),
            "chunks": (need.visibility.chunk is not None, self.chunks),
            "sinks": (need.visibility.sinks > 0, self.sinks),
            "a soft-cap": (need.soft_cap is not None, self.soft_caps),
            "sink logits": (need.sink_logits, self.sink_logits),
        }
        lacking = [what for what, (needed, able) in asked.items() if needed and not able]
        if lacking:
            raise ValueError(
                f"layer {need.layer} needs {' and '.join(lacking)}, which attention backend {self.name} cannot do"
            )
        self.need = need

    @property
    def plan_key(self) -> Hashable:
        return type(self), self.need.visibility

    def check_cache(self, layer: str, cache: LayerCache) -> None:
        super().check_cache(layer, cache)
        block_size = cache["k"].shape[1]
        if block_size % self.page_multiple:
            raise ValueError(
                f"layer {layer}: attention backend {self.name} needs blocks of a multiple of "
                f"{self.page_multiple} tokens, found {block_size}"
            )

    @abstractmethod
    def attend(self, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, cache: LayerCache, plan: Any) -> Tensor:
        """Write the whole batch's keys and values, then return what every query reads, ``out_THD``.

        The writes come first because a sequence may read blocks that another fills in this very batch.
        """

    def attend_with_sinks(
        self, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, sinks_H: Tensor, cache: LayerCache, plan: Any
    ) -> Tensor:
        """As `attend`, for a layer that needs sink logits; a backend that declares ``sink_logits`` overrides it.

        ``sinks_H`` are compared with scores after they were scaled.
        """
        raise NotImplementedError(f"attention backend {self.name} has no sink logits")


class MambaBackend(Backend):
    """The two steps of a Mamba-1 layer that carry a state: the causal convolution and the selective scan.

    Both start from the state after ``context_lens`` tokens, zeros where that is 0, and keep the state after
    the batch. The source and the target block of a sequence may be the same.
    """

    def __init__(self, need: MambaNeed) -> None:
        self.need = need

    @property
    def plan_key(self) -> Hashable:
        return type(self), self.need.channels, self.need.state_size, self.need.conv_width

    @abstractmethod
    def convolve(
        self, x_TC: Tensor, weight_CW: Tensor, bias_C: Tensor | None, cache: LayerCache, plan: Any
    ) -> Tensor:
        """Depthwise causal convolution, ``out_TC``. ``cache["conv"]`` keeps the last W − 1 inputs."""

    @abstractmethod
    def scan(
        self,
        x_TC: Tensor,
        dt_TC: Tensor,
        A_CR: Tensor,
        B_TR: Tensor,
        C_TR: Tensor,
        cache: LayerCache,
        plan: Any,
    ) -> Tensor:
        """``h = exp(dt · A) · h + dt · B · x`` and ``y = C · h``, token by token; returns ``y_TC``, float32.

        ``dt`` is positive and ``A`` negative. ``cache["ssm"]`` keeps ``h_CR``.
        """
