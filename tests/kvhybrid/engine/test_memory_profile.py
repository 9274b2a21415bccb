"""The memory profile: what the largest batch leaves of a device for the cache."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kvhybrid.engine.engine import Engine
from kvhybrid.engine.memory_profile import CudaMemory, MemoryProfile, profile_memory
from kvhybrid.planning import PlanningError
from kvhybrid.settings.model import Gemma3Settings, JambaSettings

TOKENS, SEQS = 256, 8


class CountedMemory(TorchDispatchMode):
    """A device of which torch's own tensors on the CPU are counted, as they are made and as they go."""

    def __init__(self, total: int, outside: int = 0) -> None:
        super().__init__()
        self.total, self._outside = total, outside
        self._seen: set[int] = set()
        self._now = self._most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for found in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(found, torch.Tensor):
                self.count(found)
        return out

    def count(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        name = storage._cdata
        if name not in self._seen:
            self._seen.add(name)
            self._change(name, storage.nbytes())
            weakref.finalize(storage, self._change, name, -storage.nbytes())

    def _change(self, name: int, by: int) -> None:
        self._now += by
        self._most = max(self._most, self._now)
        if by < 0:
            self._seen.discard(name)

    def free(self) -> int:
        return self.total - self._outside - self._now

    def allocated(self) -> int:
        return self._now

    def outside(self) -> int:
        return self._outside

    def restart_peak(self) -> None:
        self._most = self._now

    def peak(self) -> int:
        return self._most


@pytest.mark.parametrize("settings", [Gemma3Settings(), JambaSettings()], ids=["gemma3", "jamba"])
def test_an_engine_of_the_measured_size_stays_within_its_share(settings: Any) -> None:
    """The largest batch on the real pool takes no more than utilization × total, and nearly all of it."""
    memory = CountedMemory(total=64 << 20, outside=1 << 20)
    with memory:
        model = settings.build()
        for weight in model.parameters():
            memory.count(weight.data)
        profile = profile_memory(
            model, "cpu", max_batched_tokens=TOKENS, max_num_seqs=SEQS, max_model_len=512, memory=memory
        )
        size = profile.cache_bytes(0.9, reserve=1 << 20)
        engine = Engine(model, memory_bytes=size, max_batched_tokens=TOKENS, max_num_seqs=SEQS, max_model_len=512)
        assert engine.plan.memory_bytes <= size < engine.plan.memory_bytes + engine.plan.bytes_per_block
        memory.restart_peak()
        for number in range(SEQS):
            engine.add_request([number] * (TOKENS // SEQS), max_new_tokens=2)
        while engine.has_unfinished:
            engine.step()
    assert profile.activations > 0
    assert memory.peak() + memory.outside() + (1 << 20) <= 0.9 * memory.total
    assert memory.peak() > 0.8 * memory.total, "the cache takes what is left"


def test_the_activations_grow_with_the_largest_batch() -> None:
    memory = CountedMemory(total=1 << 30)
    with memory:
        model = Gemma3Settings().build()
        small, large = (
            profile_memory(model, "cpu", max_batched_tokens=tokens, max_model_len=2048, memory=memory)
            for tokens in (64, 1024)
        )
    assert large.activations > 4 * small.activations


GIB = 1 << 30
PROFILE = MemoryProfile(total=80 * GIB, free=79 * GIB, outside=GIB, weights=50 * GIB, activations=4 * GIB)


def test_the_cache_gets_what_is_left() -> None:
    assert PROFILE.cache_bytes(0.9, reserve=2 * GIB) == (72 - 1 - 50 - 4 - 2) * GIB


@pytest.mark.parametrize(
    ("utilization", "reserve", "says"),
    [
        (0.5, 0, r"no memory is left for the cache: .* × 0\.5 .* = -\d[\d,]+; raise pool\.utilization or lower"),
        (0.9, 17 * GIB, r"no memory is left .* reserve 18,253,611,008 = 0;"),
        (0.99, 0, r"pool\.utilization=0\.99 asks for .* 84,825,604,096 are free; lower it"),
    ],
)
def test_what_cannot_be_sized_says_why(utilization: float, reserve: int, says: str) -> None:
    with pytest.raises(PlanningError, match=says):
        PROFILE.cache_bytes(utilization, reserve)


@pytest.mark.gpu
def test_a_gpu_is_filled_to_its_share() -> None:
    model = Gemma3Settings().build()
    profile = profile_memory(model, "cuda", max_batched_tokens=TOKENS, max_num_seqs=SEQS)
    engine = Engine(
        model,
        memory_bytes=profile.cache_bytes(0.5),
        max_batched_tokens=TOKENS,
        max_num_seqs=SEQS,
        device="cuda",
    )
    engine.generate([[number] * (TOKENS // SEQS) for number in range(SEQS)], max_new_tokens=2)
    memory = CudaMemory("cuda")
    assert 0.45 * memory.total < memory.peak() + memory.outside() <= 0.5 * memory.total
