"""Random cache managers with every feature on."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

from hypothesis import strategies as st

from kvhybrid.cache.config import KVCacheConfig, KVCacheGroup
from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.specs import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    PrivateStateSpec,
    SinkWindowSpec,
    SlidingWindowSpec,
)

MAX_LEN = 48


def spec_of(kind: str, size: int, extent: int) -> KVCacheSpec:
    """``extent`` is the window, or the chunk."""
    if kind == "window":
        return SlidingWindowSpec(block_size=size, window=extent)
    if kind == "sinks":
        return SinkWindowSpec(block_size=size, window=extent, sinks=1 + extent // 3)
    if kind == "chunked":
        return ChunkedLocalAttentionSpec(block_size=size, chunk=extent)
    if kind == "private":
        return PrivateStateSpec(block_size=MAX_LEN)
    plain = {"full": FullAttentionSpec, "mla": MLAAttentionSpec, "cross": CrossAttentionSpec, "mamba": MambaSpec}
    return plain[kind](block_size=size)


@dataclass(frozen=True)
class Features:
    """A cache manager's arguments, so that a failing example shows them."""

    config: KVCacheConfig
    max_in_flight_tokens: int | None = None
    watermark: float = 0.0
    retention_interval: int | None = None
    room: int | None = None
    """Prefix numbers given between two sweeps, if not the default."""
    enable_caching: bool = True
    watched: bool = True
    """With miss causes, events and residency."""

    def build(self) -> KVCacheManager:
        """The manager; its clock ticks every time it is read."""
        ticks = count()
        manager = KVCacheManager(
            self.config,
            max_model_len=MAX_LEN,
            max_in_flight_tokens=self.max_in_flight_tokens,
            watermark=self.watermark,
            enable_caching=self.enable_caching,
            retention_interval=self.retention_interval,
            track_misses=self.watched,
            record_events=self.watched,
            residency_clock=(lambda: float(next(ticks))) if self.watched else None,
        )
        if self.room is not None:
            manager.coordinator.index.room = self.room
        return manager


@st.composite
def cached_specs(draw: st.DrawFn) -> tuple[list[KVCacheSpec], int | None, int]:
    """One to four specs, the tokens per key, and the ranks of context parallelism."""
    unit = draw(st.integers(1, 4))
    layout = draw(st.sampled_from(["equal", "mixed", "sub_block", "sub_block", "parallel"]))
    kinds = ["full", "mla", "mamba"]
    if layout != "parallel":
        kinds += ["window", "sinks", "chunked", "cross"]
    chosen = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=4))
    if all(kind == "cross" for kind in chosen):
        chosen[0] = "full"
    alone = len(chosen) == 1
    specs = []
    for kind in chosen:
        factor = 1
        if layout == "mixed" and not alone:
            factor = draw(st.integers(1, 2))
        if layout == "sub_block" and not alone and kind in ("full", "mla", "mamba"):
            factor = 2 if kind == "mamba" else draw(st.integers(1, 2))
        specs.append(spec_of(kind, unit * factor, draw(st.integers(1, 10))))
    return specs, None if alone else unit, 2 if layout == "parallel" else 1


@st.composite
def uncached_specs(draw: st.DrawFn) -> tuple[list[KVCacheSpec], int | None, int]:
    """As `cached_specs`, without prefix caching: also states that are never shared."""
    kinds = st.sampled_from(["full", "window", "sinks", "chunked", "cross", "private"])
    chosen = draw(st.lists(kinds, min_size=1, max_size=4))
    return [spec_of(kind, draw(st.integers(1, 4)), draw(st.integers(1, 10))) for kind in chosen], None, 1


@st.composite
def features(draw: st.DrawFn, watched: bool = True) -> Features:
    """Unless it is to be ``watched``, caching and what is recorded of it may be off."""
    caching = watched or draw(st.sampled_from([True, True, True, False]))
    specs, unit, ranks = draw(cached_specs() if caching else uncached_specs())
    drafts = caching and draw(st.sampled_from([False, False, True]))
    private = draw(st.sampled_from([False, True]))
    groups = tuple(
        KVCacheGroup(
            f"g{g}",
            spec,
            draft=drafts and spec.kind in ("full", "mla", "sliding_window") and draw(st.booleans()),
            private_blocks=draw(st.none() | st.sampled_from([6, 14, 30, 60])) if private else None,
        )
        for g, spec in enumerate(specs)
    )
    config = KVCacheConfig(
        groups,
        draw(st.sampled_from([8, 16, 24, 40, 60, 90]) | st.integers(4, 90)),
        hash_block_size=unit,
        context_parallel=ranks,
    )
    common = config.scheduler_block_size
    thinned = any(spec.retained for spec in specs)
    intervals = st.sampled_from([None, None, 0, *((common, 2 * common) if thinned else ())])
    return Features(
        config,
        max_in_flight_tokens=draw(st.sampled_from([None, 16])),
        watermark=draw(st.sampled_from([0.0, 0.0, 0.1])),
        retention_interval=draw(intervals) if caching else None,
        room=draw(st.sampled_from([None, None, 4, 40])),
        enable_caching=caching,
        watched=watched or draw(st.booleans()),
    )
