"""The keys of a ``config.json`` that decoder families have in common; see `kvhybrid.models.config`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol, TypeVar

import torch
from torch import Tensor

from kvhybrid.models.backends.base import AttentionNeed
from kvhybrid.models.backends.visibility import Visibility
from kvhybrid.models.config import (
    activation,
    count,
    flag,
    listed,
    mapping,
    number,
    optional,
    read_keys,
    section,
    text,
)
from kvhybrid.models.layers.activation import Activation
from kvhybrid.models.layers.rope import Rope, Rotation
from kvhybrid.models.layers.scaled_rope import read_rope

SLIDING, FULL = "sliding_attention", "full_attention"

MOST_LAYERS = 10_000

Self = TypeVar("Self", bound="DecoderConfig")


class RotaryEmbedding(Protocol):
    """Computes the rotation tables of a batch from positions; `Rope` is one."""

    def rotation(self, positions_T: Tensor, dtype: torch.dtype) -> Rotation: ...


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """The keys that decoder configs have in common. A family adds its own and sets its defaults."""

    default_theta: ClassVar[float] = 10_000.0
    """Base of the rope if the config has none."""

    vocab_size: int = count()
    hidden_size: int = count()
    num_hidden_layers: int = count()
    num_attention_heads: int = count()
    num_key_value_heads: int | None = optional(count(None))
    """None: as many as query heads."""
    head_dim: int | None = optional(count(None))
    """None: ``hidden_size`` divided by the number of query heads."""
    max_position_embeddings: int = count()
    rms_norm_eps: float = number(1e-6)
    hidden_act: Activation = activation("silu")
    attention_bias: bool = flag()
    tie_word_embeddings: bool = flag()
    """Whether the output head shares the embedding's weights."""
    final_logit_softcapping: float | None = None
    """Logits become ``cap · tanh(logit / cap)``. Read from the config only by families that have this key."""
    layer_types: tuple[str, ...] | None = listed(text())
    rope_theta: float | None = optional(number(None))
    rope_scaling: Mapping[str, Any] | None = mapping()
    rope_parameters: Mapping[str, Any] | None = mapping()

    @classmethod
    def read(cls: type[Self], config: Mapping[str, Any]) -> Self:
        """Read the dict of a ``config.json``. Raises ValueError with the key, what was found and what is accepted.

        From a multimodal config, ``text_config`` is read; only ``tie_word_embeddings`` comes from the top level.
        """
        inner = section(config, "text_config")
        if not inner:
            return read_keys(cls, config)
        tied = read_keys(_Tied, {"tie_word_embeddings": cls.tie_word_embeddings, **config})
        return read_keys(cls, inner, "text_config.", tie_word_embeddings=tied.tie_word_embeddings)

    def __post_init__(self) -> None:
        """Raises ValueError for inconsistent sizes."""
        if self.num_hidden_layers > MOST_LAYERS:
            raise ValueError(f"num_hidden_layers must be at most {MOST_LAYERS}, found {self.num_hidden_layers}")
        heads, kv_heads = self.num_attention_heads, self.num_kv_heads
        if self.head_dim is None and self.hidden_size % heads:
            raise ValueError(
                f"hidden_size must be a multiple of num_attention_heads = {heads} if head_dim is not given, "
                f"found {self.hidden_size}"
            )
        if heads % kv_heads:
            raise ValueError(
                f"num_attention_heads must be a multiple of num_key_value_heads = {kv_heads}, found {heads}"
            )

    @property
    def num_kv_heads(self) -> int:
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def head_size(self) -> int:
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @cached_property
    def rope(self) -> RotaryEmbedding:
        """The rotation of every layer that has one."""
        return read_rope(self.head_size, self.rope_keys, self.default_theta, self.rope_source)

    @property
    def rope_keys(self) -> dict[str, Any]:
        """The rope's parameters; the older key ``rope_theta`` is used if they have no base."""
        found = {"rope_theta": self.rope_theta, **(self.rope_scaling or self.rope_parameters or {})}
        nested = next((key for key, value in found.items() if isinstance(value, Mapping)), None)
        if nested is not None:
            raise ValueError(f"{self.rope_source}{nested}: this family has one rope for all layers, in one dict")
        return found

    @property
    def rope_source(self) -> str:
        """Location of the rope's keys, for messages."""
        return "rope_scaling." if self.rope_scaling else "rope_parameters."

    @property
    def ropes(self) -> Sequence[RotaryEmbedding | None]:
        """The rope of every layer; None for a layer without rotation."""
        return [self.rope] * self.num_hidden_layers

    def layer_kinds(self, accepted: Sequence[str], default: Sequence[str]) -> tuple[str, ...]:
        """``layer_types``, or ``default`` if the config has none. Raises ValueError for other types."""
        kinds = self.layer_types or tuple(default)
        if len(kinds) != self.num_hidden_layers or not {*kinds} <= {*accepted}:
            raise ValueError(
                f"layer_types must list {' or '.join(map(repr, accepted))} for each of {self.num_hidden_layers} "
                f"layers, found {list(kinds)}"
            )
        return kinds

    def attention_need(
        self,
        index: int,
        *,
        visibility: Visibility = Visibility(),
        scale: float | None = None,
        soft_cap: float | None = None,
        sink_logits: bool = False,
        shared_cache: bool = False,
    ) -> AttentionNeed:
        """The requirements of layer ``index`` on its attention backend."""
        return AttentionNeed(
            layer=f"layers.{index}.self_attn",
            num_heads=self.num_attention_heads,
            num_kv_heads=self.num_kv_heads,
            head_size=self.head_size,
            scale=self.head_size**-0.5 if scale is None else scale,
            visibility=visibility,
            soft_cap=soft_cap,
            sink_logits=sink_logits,
            shared_cache=shared_cache,
        )


@dataclass(frozen=True, kw_only=True)
class _Tied:
    tie_word_embeddings: bool = flag()


@dataclass(frozen=True, kw_only=True)
class WindowedConfig(DecoderConfig):
    """For families with window layers and full-attention layers."""

    sliding_window: int | None = optional(count(None))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sliding_window is None and SLIDING in self.kinds:
            raise ValueError(f"layer_types lists {SLIDING!r}, which needs sliding_window, found null")

    @property
    def full_period(self) -> int | None:
        """Without ``layer_types``, every N-th layer has full attention; None if all layers are alike."""
        return None

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """`SLIDING` or `FULL` for every layer."""
        numbers, period = range(1, self.num_hidden_layers + 1), self.full_period
        alike = FULL if self.sliding_window is None else SLIDING
        default = [alike if period is None else SLIDING if number % period else FULL for number in numbers]
        return self.layer_kinds((SLIDING, FULL), default)

    def visibility(self, index: int) -> Visibility:
        """The keys that queries of layer ``index`` attend to."""
        return Visibility(window=self.sliding_window if self.kinds[index] == SLIDING else None)


def local_ropes(config: WindowedConfig, base: float | None) -> list[Rope]:
    """The rope of every layer, for families whose window layers have a separate rope, as in Gemma 3.

    ``rope_parameters`` has a dict per layer type. If it has no base, that of window layers is ``base`` and that of
    full layers is the older key ``rope_theta``. The older key ``rope_scaling`` applies to full layers only.
    """
    dicts = config.rope_parameters or {}
    local = {"rope_theta": base, **(section(dicts, SLIDING) or {})}
    # As in transformers, this default takes precedence over the older key "type" in rope_scaling.
    given = section(dicts, FULL) or {"rope_type": "default"}
    full = {"rope_theta": config.rope_theta, **given, **(config.rope_scaling or {})}
    source = "rope_scaling." if config.rope_scaling else f"rope_parameters.{FULL}."
    by_kind = {
        SLIDING: read_rope(config.head_size, local, 10_000.0, f"rope_parameters.{SLIDING}."),
        FULL: read_rope(config.head_size, full, 1_000_000.0, source),
    }
    return [by_kind[kind] for kind in config.kinds]
