"""Rotary embeddings extended beyond the original training length by scaling each frequency."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, floor, log, pi
from typing import Any

import torch
from torch import Tensor

from kvhybrid.models.config import count, flag, number, optional, read_keys, text
from kvhybrid.models.layers.rope import Rope, Rotation


@dataclass(frozen=True, kw_only=True)
class Llama3Rope(Rope):
    """Llama 3.1's: slow frequencies are divided by ``factor``, fast ones are unchanged, with a ramp in between.

    The unit of frequencies is turns per ``original_len`` positions.
    """

    original_len: int
    low: float
    """Frequencies up to this many turns are slow."""
    high: float
    """Frequencies from this many turns are fast."""

    def frequencies(self, device: torch.device) -> Tensor:
        plain = Rope(self.head_size, self.base).frequencies(device)
        turns = self.original_len * plain / (2 * pi)
        # Llama 4 Scout has low = high: a step, not a ramp.
        kept = ((turns - self.low) / max(self.high - self.low, 1e-6)).clamp(0.0, 1.0)
        return plain / self.factor * (1 - kept) + plain * kept


@dataclass(frozen=True, kw_only=True)
class YarnRope(Rope):
    """YaRN (arXiv:2309.00071): a ramp over the indices of the pairs, and larger queries and keys."""

    original_len: int
    fast: float
    """Pairs with at least this many turns over ``original_len`` positions are unchanged."""
    slow: float
    """Pairs with at most this many turns have their frequency divided by ``factor``."""
    truncate: bool
    """Whether the ends of the ramp are rounded to whole indices."""
    amplitude: float
    """Factor on cosines and sines."""

    def frequencies(self, device: torch.device) -> Tensor:
        plain = Rope(self.head_size, self.base).frequencies(device)
        first, last = self._pair(self.fast), self._pair(self.slow)
        if self.truncate:
            first, last = floor(first), ceil(last)
        first, last = max(first, 0), min(last, self.head_size - 1)
        pairs = torch.arange(self.head_size // 2, dtype=torch.float32, device=device)
        kept = 1 - ((pairs - first) / max(last - first, 1e-3)).clamp(0.0, 1.0)
        return plain / self.factor * (1 - kept) + plain * kept

    def rotation(self, positions_T: Tensor, dtype: torch.dtype) -> Rotation:
        cos_TD, sin_TD = super().rotation(positions_T, torch.float32)
        return (cos_TD * self.amplitude).to(dtype), (sin_TD * self.amplitude).to(dtype)

    def _pair(self, turns: float) -> float:
        """The fractional index of the pair that turns ``turns`` times over ``original_len`` positions."""
        return self.head_size * log(self.original_len / (turns * 2 * pi)) / (2 * log(self.base))


@dataclass(frozen=True, kw_only=True)
class RopeKeys:
    """The keys of a Hugging Face rope dict, for all rope types."""

    rope_type: str | None = optional(text(None))
    type: str | None = optional(text(None))
    rope_theta: float | None = optional(number(None))
    factor: float | None = optional(number(None))
    original_max_position_embeddings: int | None = optional(count(None))
    low_freq_factor: float | None = optional(number(None))
    high_freq_factor: float | None = optional(number(None))
    beta_fast: float | None = optional(number(None))
    beta_slow: float | None = optional(number(None))
    truncate: bool = flag(True)
    attention_factor: float | None = optional(number(None))
    mscale: float | None = optional(number(None, zero=True))
    mscale_all_dim: float | None = optional(number(None, zero=True))


NEEDED = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor", "original_max_position_embeddings"),
}
"""The supported rope types and the keys that each requires."""


def read_rope(head_size: int, parameters: Mapping[str, Any], base: float, where: str = "rope_parameters.") -> Rope:
    """The rope of a Hugging Face rope dict.

    ``base`` is the default of ``rope_theta``. In messages, ``where`` precedes the names of keys.

    Raises ValueError for a type that is not in `NEEDED`, for missing keys and for invalid values.
    """
    keys = read_keys(RopeKeys, parameters, where)
    kind = keys.rope_type or keys.type or "default"
    if kind not in NEEDED:
        raise ValueError(f"{where}rope_type {kind!r} is not supported; accepted: {', '.join(NEEDED)}")
    missing = [key for key in NEEDED[kind] if getattr(keys, key) is None]
    if missing:
        raise ValueError(f"{where}rope_type {kind!r} needs {', '.join(missing)}")
    base = float(keys.rope_theta or base)
    if base <= 1:
        raise ValueError(f"{where}rope_theta must be above 1, found {base:g}")
    if head_size % 2:
        raise ValueError(f"a head that rotates must have an even size, found {head_size}")
    factor, original_len = keys.factor, keys.original_max_position_embeddings
    if kind == "default" or factor is None:
        return Rope(head_size, base)
    if kind == "linear" or original_len is None:
        return Rope(head_size, base, float(factor))
    if kind == "llama3":
        assert keys.low_freq_factor is not None
        assert keys.high_freq_factor is not None
        return Llama3Rope(
            head_size,
            base,
            float(factor),
            original_len=original_len,
            low=float(keys.low_freq_factor),
            high=float(keys.high_freq_factor),
        )
    return YarnRope(
        head_size,
        base,
        float(factor),
        original_len=original_len,
        fast=float(keys.beta_fast or 32.0),
        slow=float(keys.beta_slow or 1.0),
        truncate=keys.truncate,
        amplitude=_amplitude(keys, factor),
    )


def _amplitude(keys: RopeKeys, factor: float) -> float:
    """``attention_factor`` if given, else the paper's, which grows with the logarithm of ``factor``."""
    if keys.attention_factor is not None:
        return float(keys.attention_factor)

    def grown(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * log(factor) + 1.0

    over, under = keys.mscale, keys.mscale_all_dim
    return grown(over) / grown(under) if over and under else grown(1.0)
