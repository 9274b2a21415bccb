"""The backend ``auto``: for every layer, the fastest installed backend that supports the layer and its pages.

The choice, and why faster backends were skipped, is logged once.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable
from functools import cache as remember
from typing import Any, ClassVar

import torch
from torch import Tensor

from kvhybrid.models.backends import attention_backends, mamba2_backends, mamba_backends
from kvhybrid.models.backends.base import AttentionBackend, Backend, MambaBackend
from kvhybrid.models.backends.kernels import MissingKernelsError
from kvhybrid.models.backends.mamba2 import Mamba2Backend
from kvhybrid.models.base import ForwardBatch, GroupBatch, LayerCache
from kvhybrid.plugins import Registry

ATTENTION = ("flash_attention3", "flash_attention4", "flash_attention2", "torch_varlen", "torch")
MAMBA = ("mamba_ssm", "torch")

log = logging.getLogger(__name__)


@remember
def say_once(level: int, message: str) -> None:
    log.log(level, message)


def choose(registry: Registry[Any], names: tuple[str, ...], need: Any, cache: LayerCache) -> Any:
    """The first of ``names`` that is installed, supports ``need`` and can use the pages.

    The last one is not checked here; `Backend.check_cache` reports what it cannot do.
    """
    for name in names[:-1]:
        candidate: type[Backend] = registry.get(name)
        lacking = candidate.lacking(need)
        reason = f"cannot do {' and '.join(lacking)}" if lacking else candidate.unusable(need, cache)
        if reason is None:
            try:
                chosen = registry.get(name)(need)
            except MissingKernelsError as error:
                reason = str(error)
            else:
                say_once(logging.INFO, f"{registry.noun} auto: takes {name}")
                return chosen
        say_once(logging.WARNING, f"{registry.noun} auto: not {name}: {reason}")
    say_once(logging.WARNING, f"{registry.noun} auto: falls back to {names[-1]}")
    return registry.get(names[-1])(need)


class _Auto(Backend):
    """Delegates to the backend chosen when the layer is bound to its pages."""

    name: ClassVar[str] = "auto"
    dtypes: ClassVar[frozenset[torch.dtype]] = frozenset()
    """Unused: the chosen backend checks the pages."""
    registry: ClassVar[Registry[Any]]
    names: ClassVar[tuple[str, ...]]
    chosen: Any = None

    def check_cache(self, layer: str, cache: LayerCache) -> None:
        self.chosen = choose(self.registry, self.names, self.need, cache)
        self.chosen.check_cache(layer, cache)

    @property
    def running(self) -> Backend:
        return self.chosen or self

    @property
    def plan_key(self) -> Hashable:
        key: Hashable = self.chosen.plan_key
        return key

    def plan(self, batch: ForwardBatch, group: GroupBatch) -> Any:
        return self.chosen.plan(batch, group)


class AutoAttention(_Auto, AttentionBackend):
    """Falls back to torch, which supports every need."""

    registry: ClassVar[Registry[Any]] = attention_backends
    names: ClassVar[tuple[str, ...]] = ATTENTION
    windows: ClassVar[bool] = True
    chunks: ClassVar[bool] = True
    sinks: ClassVar[bool] = True
    soft_caps: ClassVar[bool] = True
    sink_logits: ClassVar[bool] = True
    shared_caches: ClassVar[bool] = True

    def attend(self, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, cache: LayerCache, plan: Any) -> Tensor:
        read_THD: Tensor = self.chosen.attend(q_THD, k_TKD, v_TKD, cache, plan)
        return read_THD

    def attend_with_sinks(
        self, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, sinks_H: Tensor, cache: LayerCache, plan: Any
    ) -> Tensor:
        read_THD: Tensor = self.chosen.attend_with_sinks(q_THD, k_TKD, v_TKD, sinks_H, cache, plan)
        return read_THD

    def read(self, q_THD: Tensor, cache: LayerCache, plan: Any) -> Tensor:
        read_THD: Tensor = self.chosen.read(q_THD, cache, plan)
        return read_THD


class _AutoStates(_Auto):
    names: ClassVar[tuple[str, ...]] = MAMBA

    def convolve(
        self, x_TC: Tensor, weight_CW: Tensor, bias_C: Tensor | None, cache: LayerCache, plan: Any
    ) -> Tensor:
        out_TC: Tensor = self.chosen.convolve(x_TC, weight_CW, bias_C, cache, plan)
        return out_TC

    def scan(self, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, cache: LayerCache, plan: Any) -> Tensor:
        y: Tensor = self.chosen.scan(x, dt, A, B, C, cache, plan)
        return y


class AutoMamba(_AutoStates, MambaBackend):
    registry: ClassVar[Registry[Any]] = mamba_backends


class AutoMamba2(_AutoStates, Mamba2Backend):
    registry: ClassVar[Registry[Any]] = mamba2_backends
