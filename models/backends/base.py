"""The backend interface: a layer's requirements, and what a backend declares and implements."""

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
    """The requirements of one attention layer."""

    layer: str
    num_heads: int
    num_kv_heads: int
    head_size: int
    scale: float
    """Factor on the scores, before the soft-cap."""
    visibility: Visibility
    soft_cap: float | None = None
    """Scores become ``cap · tanh(score / cap)``."""
    sink_logits: bool = False
    """Each head has an additional learned logit in its softmax, without a value."""
    shared_cache: bool = False
    """The layer has no cache: it reads that of another layer with the same visibility and key/value heads."""


@dataclass(frozen=True)
class MambaNeed:
    """The requirements of one Mamba-1 layer."""

    layer: str
    channels: int
    state_size: int
    conv_width: int


class Backend(ABC):
    """Base class of all backends. A plan holds the index tensors of one batch for one cache group."""

    name: ClassVar[str]
    noun: ClassVar[str] = "backend"
    """The kind of backend, for messages."""
    dtypes: ClassVar[frozenset[torch.dtype]]
    """Supported element types of the cache."""
    devices: ClassVar[frozenset[str] | None] = None
    """Supported device types; None for any."""
    capabilities: ClassVar[frozenset[int] | None] = None
    """Supported major CUDA compute capabilities; None for any."""
    alignment: ClassVar[int] = 1
    """Bytes: the offset of a page part and the stride of the pages must be multiples."""

    need: Any
    """The layer's requirements."""

    @property
    def running(self) -> Backend:
        """The backend that does the work: itself or, for ``auto`` once bound to pages, the one that it chose."""
        return self

    @classmethod
    def lacking(cls, need: Any) -> list[str]:
        """The requirements that this backend does not support, as text."""
        return []

    @classmethod
    def unusable(cls, need: Any, cache: LayerCache) -> str | None:
        """Why this backend cannot use these pages, as the predicate of a sentence; None if it can."""
        for part, pages in cache.items():
            if pages.dtype not in cls.dtypes:
                accepted = ", ".join(sorted(str(dtype) for dtype in cls.dtypes))
                return f"cannot keep {part!r} as {pages.dtype}; accepted: {accepted}"
            if cls.devices is not None and pages.device.type not in cls.devices:
                return f"runs on {', '.join(sorted(cls.devices))}, its pages lie on {pages.device.type}"
            if cls.capabilities is not None and pages.device.type == "cuda":
                major, minor = torch.cuda.get_device_capability(pages.device)
                if major not in cls.capabilities:
                    accepted = ", ".join(f"{number}.x" for number in sorted(cls.capabilities))
                    return f"runs on CUDA compute capability {accepted}, found {major}.{minor}"
            apart = pages.stride(0) * pages.element_size()
            if apart % cls.alignment or pages.data_ptr() % cls.alignment:
                return (
                    f"needs {part!r} to start at a multiple of {cls.alignment} bytes in every page, "
                    f"found pages of {apart} bytes"
                )
        return None

    def accept(self, need: Any) -> None:
        """Set `need`. Raises ValueError, with the names of layer and backend, if it is not supported."""
        lacking = self.lacking(need)
        if lacking:
            raise ValueError(
                f"layer {need.layer} needs {' and '.join(lacking)}, which {self.noun} {self.name} cannot do"
            )
        self.need = need

    @property
    @abstractmethod
    def plan_key(self) -> Hashable:
        """Backends with equal keys make equal plans, which layers of one group then share."""

    @abstractmethod
    def plan(self, batch: ForwardBatch, group: GroupBatch) -> Any:
        """Precompute what this backend's calls need of the batch; made once for all layers that share it."""

    def check_cache(self, layer: str, cache: LayerCache) -> None:
        """Raise ValueError for pages that this backend cannot use."""
        reason = self.unusable(self.need, cache)
        if reason is not None:
            raise ValueError(f"layer {layer}: {self.noun} {self.name} {reason}")


class AttentionBackend(Backend):
    """Causal attention of a ragged batch over paged keys and values."""

    need: AttentionNeed
    noun: ClassVar[str] = "attention backend"
    page_multiple: ClassVar[int] = 1
    """Tokens that the block size must be a multiple of."""
    head_multiple: ClassVar[int] = 1
    """What the head size must be a multiple of."""
    max_head_size: ClassVar[int | None] = None
    windows: ClassVar[bool] = False
    chunks: ClassVar[bool] = False
    sinks: ClassVar[bool] = False
    soft_caps: ClassVar[bool] = False
    sink_logits: ClassVar[bool] = False
    shared_caches: ClassVar[bool] = False

    def __init__(self, need: AttentionNeed) -> None:
        self.accept(need)

    @classmethod
    def lacking(cls, need: AttentionNeed) -> list[str]:
        size, most = need.head_size, cls.max_head_size
        asked = {
            "a window": (need.visibility.window is not None, cls.windows),
            "chunks": (need.visibility.chunk is not None, cls.chunks),
            "sinks": (need.visibility.sinks > 0, cls.sinks),
            "a soft-cap": (need.soft_cap is not None, cls.soft_caps),
            "sink logits": (need.sink_logits, cls.sink_logits),
            "to read another layer's cache": (need.shared_cache, cls.shared_caches),
            f"heads of {size}, no multiple of {cls.head_multiple}": (size % cls.head_multiple > 0, False),
            f"heads of {size}, more than {most}": (most is not None and size > most, False),
        }
        return [what for what, (needed, able) in asked.items() if needed and not able]

    @property
    def plan_key(self) -> Hashable:
        return type(self), self.need.visibility

    @classmethod
    def unusable(cls, need: AttentionNeed, cache: LayerCache) -> str | None:
        reason = super().unusable(need, cache)
        block_size = cache["k"].shape[1]
        if reason is None and block_size % cls.page_multiple:
            return f"needs blocks of a multiple of {cls.page_multiple} tokens, found {block_size}"
        return reason

    @abstractmethod
    def attend(self, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, cache: LayerCache, plan: Any) -> Tensor:
        """Write the batch's keys and values, then return the attention output ``out_THD``.

        All writes come first because a sequence may read blocks that another one fills in the same batch.
        """

    def attend_with_sinks(
        self, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, sinks_H: Tensor, cache: LayerCache, plan: Any
    ) -> Tensor:
        """Like `attend`, for a layer with sink logits; overridden by backends that declare ``sink_logits``.

        ``sinks_H`` are added to the softmax next to the scaled scores.
        """
        raise NotImplementedError(f"attention backend {self.name} has no sink logits")

    def read(self, q_THD: Tensor, cache: LayerCache, plan: Any) -> Tensor:
        """Like `attend`, but without writing: the pages already have the batch's keys and values.

        For a layer that reads another layer's cache; overridden by backends that declare ``shared_caches``.
        ``plan`` may be that of the layer that wrote.
        """
        raise NotImplementedError(f"attention backend {self.name} cannot read another layer's cache")


class MambaBackend(Backend):
    """The two operations of a Mamba-1 layer that have a state: the causal convolution and the selective scan.

    Both start from the state after ``context_lens`` tokens, or zeros for a new sequence, and store the state after
    the batch. The source and the target block of a sequence may be the same.
    """

    need: MambaNeed
    noun: ClassVar[str] = "mamba backend"

    def __init__(self, need: MambaNeed) -> None:
        self.accept(need)

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
