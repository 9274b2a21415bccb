"""Rotary embeddings stretched beyond the length that a model was first trained on, frequency by frequency."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, floor, log, pi
from typing import Any

import torch
from torch import Tensor

from kvhybrid.models.layers.rope import Rope, Rotation


@dataclass(frozen=True, kw_only=True)
class Llama3Rope(Rope):
    """Llama 3.1's: slow pairs are divided by ``factor``, fast ones are left, with a ramp between.

    A pair's speed is counted in turns over ``original_len`` positions.
    """

    original_len: int
    low: float
    """Turns up to which a pair is slow."""
    high: float
    """Turns from which a pair is fast."""

    def frequencies(self, device: torch.device) -> Tensor:
        plain = Rope(self.head_size, self.base).frequencies(device)
        turns = self.original_len * plain / (2 * pi)
        # Llama 4 Scout has low = high: a step, not a ramp.
        kept = ((turns - self.low) / max(self.high - self.low, 1e-6)).clamp(0.0, 1.0)
        return plain / self.factor * (1 - kept) + plain * kept


@dataclass(frozen=True, kw_only=True)
class YarnRope(Rope):
    """YaRN (arXiv:2309.00071): a ramp over the pairs' numbers, and larger queries and keys."""

    original_len: int
    fast: float
    """Turns over ``original_len`` positions from which a pair is left as it is."""
    slow: float
    """Turns up to which a pair is divided by ``factor``."""
    truncate: bool
    """Whether the ramp starts and ends on whole pairs."""
    amplitude: float
    """Cosines and sines are multiplied by it."""

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
        """The number, not rounded, of the pair that turns so often over ``original_len`` positions."""
        return self.head_size * log(self.original_len / (turns * 2 * pi)) / (2 * log(self.base))


def read_rope(head_size: int, parameters: Mapping[str, Any], base: float) -> Rope:
    """The rope of a Hugging Face rope dict, of any ``rope_type`` that this file or `Rope` knows.

    Raises ValueError for another type, or where a key that the type needs is missing.
    """
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if kind in ("default", "linear"):
        return Rope.from_parameters(head_size, parameters, base)
    if kind not in ("llama3", "yarn"):
        raise ValueError(f"rope_type {kind!r} is not supported; accepted: default, linear, llama3, yarn")
    needed = ["factor", "original_max_position_embeddings"]
    if kind == "llama3":
        needed += ["low_freq_factor", "high_freq_factor"]
    missing = [key for key in needed if parameters.get(key) is None]
    if missing:
        raise ValueError(f"rope_type {kind!r} needs {', '.join(missing)}")
    base = float(parameters.get("rope_theta") or base)
    factor = float(parameters["factor"])
    original_len = int(parameters["original_max_position_embeddings"])
    if kind == "llama3":
        return Llama3Rope(
            head_size,
            base,
            factor,
            original_len=original_len,
            low=float(parameters["low_freq_factor"]),
            high=float(parameters["high_freq_factor"]),
        )
    return YarnRope(
        head_size,
        base,
        factor,
        original_len=original_len,
        fast=float(parameters.get("beta_fast") or 32.0),
        slow=float(parameters.get("beta_slow") or 1.0),
        truncate=bool(parameters.get("truncate", True)),
        amplitude=_amplitude(parameters, factor),
    )


def _amplitude(parameters: Mapping[str, Any], factor: float) -> float:
    """``attention_factor`` where given, else the paper's, which grows with the logarithm of ``factor``."""
    given = parameters.get("attention_factor")
    if given is not None:
        return float(given)

    def grown(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * log(factor) + 1.0

    over, under = parameters.get("mscale"), parameters.get("mscale_all_dim")
    return grown(over) / grown(under) if over and under else grown(1.0)
