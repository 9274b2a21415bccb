"""The keys of a ``config.json`` that decoder families have in common.

Fields of a config are keys of the same name, unless they say otherwise; see `kvhybrid.models.config`.
"""

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
    """What turns positions into the tables of a batch; `Rope` is one."""

    def rotation(self, positions_T: Tensor, dtype: torch.dtype) -> Rotation: ...


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """The keys that decoder configs have in common. A family adds its own and sets its defaults."""

    default_theta: ClassVar[float] = 10_000.0
    """The base of the rope of a config that names none."""

    vocab_size: int = count()
    hidden_size: int = count()
    num_hidden_layers: int = count()
    num_attention_heads: int = count()
    num_key_value_heads: int | None = optional(count(None))
    """As many as query heads if None."""
    head_dim: int | None = optional(count(None))
    """The share of a head in ``hidden_size`` if None."""
    max_position_embeddings: int = count()
    rms_norm_eps: float = number(1e-6)
    hidden_act: Activation = activation("silu")
    attention_bias: bool = flag()
    tie_word_embeddings: bool = flag()
    """Whether the output head is the embedding."""
    final_logit_softcapping: float | None = None
    """Logits become ``cap · tanh(logit / cap)``. Not a key, unless a family makes it one."""
    layer_types: tuple[str, ...] | None = listed(text())
    rope_theta: float | None = optional(number(None))
    rope_scaling: Mapping[str, Any] | None = mapping()
    rope_parameters: Mapping[str, Any] | None = mapping()

    @classmethod
    def read(cls: type[Self], config: Mapping[str, Any]) -> Self:
        """From the dict of a ``config.json``. Raises ValueError with the key, what was found and what is accepted.

        Of a multimodal config, ``text_config`` is read, and from the top whether embeddings are tied.
        """
        inner = section(config, "text_config")
        if not inner:
            return read_keys(cls, config)
        tied = read_keys(_Tied, {"tie_word_embeddings": cls.tie_word_embeddings, **config})
        return read_keys(cls, inner, "text_config.", tie_word_embeddings=tied.tie_word_embeddings)

    def __post_init__(self) -> None:
        """Raises ValueError for sizes that do not go together."""
        if self.num_hidden_layers > MOST_LAYERS:
            raise ValueError(f"num_hidden_layers must be at most {MOST_LAYERS}, found {self.num_hidden_layers}")
        heads, kv_heads = self.num_attention_heads, self.num_kv_heads
        if self.head_dim is None and self.hidden_size % heads:
            raise ValueError(
                f"hidden_size must be a multiple of num_attention_heads = {heads} where head_dim is not given, "
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
        """The dict that describes the rope; the older ``rope_theta`` is used if the dict names no base."""
        found = {"rope_theta": self.rope_theta, **(self.rope_scaling or self.rope_parameters or {})}
        nested = next((key for key, value in found.items() if isinstance(value, Mapping)), None)
        if nested is not None:
            raise ValueError(f"{self.rope_source}{nested}: this family has one rope for all layers, in one dict")
        return found

    @property
    def rope_source(self) -> str:
        """Where messages say that the rope's keys lie."""
        return "rope_scaling." if self.rope_scaling else "rope_parameters."

    @property
    def ropes(self) -> Sequence[RotaryEmbedding | None]:
        """Layer by layer; None for a layer that does not rotate."""
        return [self.rope] * self.num_hidden_layers

    def layer_kinds(self, accepted: Sequence[str], default: Sequence[str]) -> tuple[str, ...]:
        """``layer_types``, or ``default`` if the config has none. ValueError for a type that is not accepted."""
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
        """What the attention of layer ``index`` asks of its backend; see `AttentionNeed`."""
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
    """For families whose layers have a window or see everything."""

    sliding_window: int | None = optional(count(None))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sliding_window is None and SLIDING in self.kinds:
            raise ValueError(f"layer_types lists {SLIDING!r}, which needs sliding_window, found null")

    @property
    def full_period(self) -> int | None:
        """Without ``layer_types``, one layer in this many is full; None if all are alike."""
        return None

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """`SLIDING` or `FULL`, layer by layer."""
        numbers, period = range(1, self.num_hidden_layers + 1), self.full_period
        alike = FULL if self.sliding_window is None else SLIDING
        default = [alike if period is None else SLIDING if number % period else FULL for number in numbers]
        return self.layer_kinds((SLIDING, FULL), default)

    def visibility(self, index: int) -> Visibility:
        """What the attention of layer ``index`` sees."""
        return Visibility(window=self.sliding_window if self.kinds[index] == SLIDING else None)


def local_ropes(config: WindowedConfig, base: float | None) -> list[Rope]:
    """Layer by layer, for families whose window layers have a rope of their own, as in Gemma 3.

    ``rope_parameters`` has a dict for each kind of layer. For bases that it leaves out, ``base`` is that of window
    layers and the older ``rope_theta`` that of full layers. The older ``rope_scaling`` changes full layers only.
    """
    dicts = config.rope_parameters or {}
    local = {"rope_theta": base, **(section(dicts, SLIDING) or {})}
    # As in transformers, the default type stands against the older "type", which only "rope_type" overrides.
    given = section(dicts, FULL) or {"rope_type": "default"}
    full = {"rope_theta": config.rope_theta, **given, **(config.rope_scaling or {})}
    source = "rope_scaling." if config.rope_scaling else f"rope_parameters.{FULL}."
    by_kind = {
        SLIDING: read_rope(config.head_size, local, 10_000.0, f"rope_parameters.{SLIDING}."),
        FULL: read_rope(config.head_size, full, 1_000_000.0, source),
    }
    return [by_kind[kind] for kind in config.kinds]
