"""How fast a layer's kernels read the cache, and how fast they go through a prompt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import torch

from kvhybrid.models.backends import attention_backends, mamba_backends
from kvhybrid.models.backends.base import AttentionNeed, MambaNeed
from kvhybrid.models.backends.visibility import Visibility
from kvhybrid.models.base import ForwardBatch, GroupBatch, LayerCache

REPEATS = 20


@dataclass(frozen=True)
class AttentionSizes:
    num_heads: int = 32
    num_kv_heads: int = 8
    head_size: int = 128
    block_size: int = 256
    sequences: int = 64
    """Decoded at once."""
    context: int = 8192
    """Tokens of each, and of the prompt."""

    def need(self) -> AttentionNeed:
        return AttentionNeed(
            "layer", self.num_heads, self.num_kv_heads, self.head_size, self.head_size**-0.5, Visibility()
        )


@dataclass(frozen=True)
class StateSizes:
    channels: int = 8192
    state_size: int = 16
    sequences: int = 256


def seconds(call: Callable[[], object], device: str, repeats: int = REPEATS) -> float:
    """The median time of one call, warmed up by two."""
    call(), call()
    times = []
    for _ in range(repeats):
        synchronize(device)
        began = perf_counter()
        call()
        synchronize(device)
        times.append(perf_counter() - began)
    return median(times)


def synchronize(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def copy_bandwidth(num_bytes: int, device: str) -> float:
    """Bytes a second that a copy on the device reads and writes."""
    source = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * num_bytes / seconds(lambda: target.copy_(source), device)


def product_speed(size: int, device: str, dtype: torch.dtype) -> float:
    """Operations a second of a product of square matrices."""
    left, right = (torch.randn(size, size, dtype=dtype, device=device) for _ in range(2))
    return 2 * size**3 / seconds(lambda: left @ right, device)


def decode_bandwidth(name: str, sizes: AttentionSizes, device: str, dtype: torch.dtype) -> float:
    """Bytes of keys and values a second that one step of decoding reads."""
    contexts = (sizes.context - 1,) * sizes.sequences
    took = attend_seconds(name, sizes, contexts, 1, device, dtype)
    return sizes.sequences * sizes.context * sizes.num_kv_heads * sizes.head_size * 2 * dtype.itemsize / took


def prefill_speed(name: str, sizes: AttentionSizes, device: str, dtype: torch.dtype) -> float:
    """Operations a second on one prompt: two products over the pairs of the causal triangle."""
    took = attend_seconds(name, sizes, (0,), sizes.context, device, dtype)
    return 4 * sizes.num_heads * sizes.head_size * sizes.context * (sizes.context + 1) / 2 / took


def attend_seconds(
    name: str, sizes: AttentionSizes, contexts: tuple[int, ...], length: int, device: str, dtype: torch.dtype
) -> float:
    need, size = sizes.need(), sizes.block_size
    width = -(-(max(contexts) + length) // size)
    shape = (1 + len(contexts) * width, size, sizes.num_kv_heads, sizes.head_size)
    cache: LayerCache = {part: torch.randn(shape, dtype=dtype, device=device) for part in ("k", "v")}
    backend = attention_backends.get(name)(need)
    backend.check_cache("layer", cache)
    batch, group = even_batch(contexts, length, size, width, device)
    plan = backend.plan(batch, group)
    q, k, v = (
        torch.randn(len(contexts) * length, heads, sizes.head_size, dtype=dtype, device=device)
        for heads in (sizes.num_heads, sizes.num_kv_heads, sizes.num_kv_heads)
    )
    return seconds(lambda: backend.attend(q, k, v, cache, plan), device)


def state_bandwidth(name: str, sizes: StateSizes, device: str) -> float:
    """Bytes of Mamba states a second that one step of decoding reads and writes."""
    need = MambaNeed("layer", sizes.channels, sizes.state_size, 4)
    channels, states, count = sizes.channels, sizes.state_size, sizes.sequences
    cache: LayerCache = {
        "conv": torch.zeros(count + 1, channels, 3, dtype=torch.bfloat16, device=device),
        "ssm": torch.zeros(count + 1, channels, states, device=device),
    }
    backend = mamba_backends.get(name)(need)
    backend.check_cache("layer", cache)
    plan = backend.plan(*even_batch((1,) * count, 1, 256, 1, device))
    x, dt = (torch.rand(count, channels, device=device) for _ in range(2))
    b, c = (torch.rand(count, states, device=device) for _ in range(2))
    a = -torch.rand(channels, states, device=device)
    took = seconds(lambda: backend.scan(x, dt, a, b, c, cache, plan), device)
    return 2 * count * channels * states * 4 / took


def even_batch(
    contexts: tuple[int, ...], length: int, size: int, width: int, device: str
) -> tuple[ForwardBatch, GroupBatch]:
    """Sequences of ``length`` new tokens each, in ``width`` blocks of their own."""
    count = len(contexts)
    table_SN = torch.arange(1, 1 + count * width, device=device).view(count, width)
    positions = torch.tensor(contexts, device=device)[:, None] + torch.arange(length, device=device)
    slots_T = (table_SN.gather(1, positions // size) * size + positions % size).flatten()
    starts = tuple(range(0, count * length + 1, length))
    nothing = torch.zeros(0, dtype=torch.int64, device=device)
    batch = ForwardBatch(nothing, positions.flatten(), starts, contexts, nothing, {})
    return batch, GroupBatch(size, table_SN, slots_T)
